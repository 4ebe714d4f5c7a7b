"""However processes take, return and lose shares of a quota: never more than the quota, and each
loss is at most a hundredth of it.
"""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tenantry.domain.entitlements import Usage, UsagePeriod
from tenantry.domain.request_quotas import TERMS, grant_of
from tenantry.domain.shares import Share, take

PROCESSES = 3
PERIOD = UsagePeriod(0, 10_000)


class Step(NamedTuple):
    """So many requests at a process, and what happens to it after them."""

    process: int
    requests: int
    at_once: int
    is_killed: bool
    gives_back: bool
    seconds: int


steps = st.builds(
    Step,
    st.integers(0, PROCESSES - 1),
    st.integers(0, 200),
    st.integers(1, 20),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 0, 1, 31]),
)


class World:
    """The counter of a quota, and the processes that reserve shares of it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.accepted = 0
        self.lost = 0
        self.second = 0
        self.shares = [Share("acme", limit, TERMS) for _ in range(PROCESSES)]

    def run(self, step: Step) -> None:
        """Take a step as the processes do."""
        share = self.shares[step.process]
        for _ in range(step.requests):
            if take([share], self.second):
                self.accepted += 1
            elif not share.is_exhausted(self.second):
                self._reserve(share, step.at_once)
        if step.is_killed:
            assert share.left <= self.limit // 100
            self.lost += share.left
            self.shares[step.process] = Share("acme", self.limit, TERMS)
        elif step.gives_back:
            self.used -= share.release().unused
        self.second += step.seconds

    def _reserve(self, share: Share[str], waiting: int) -> None:
        request = share.request(self.second, waiting)
        assert request is not None
        self.used -= request.unused
        granted = grant_of(request, Usage(self.used, PERIOD))
        self.used = granted.total
        share.receive(request, self.second, granted)
        self.accepted += sum(take([share], self.second) for _ in range(waiting))


@given(st.sampled_from([1, 5, 99, 100, 1000]), st.lists(steps, max_size=30))
def test_processes_never_accept_more_than_the_quota(limit: int, taken: list[Step]) -> None:
    world = World(limit)
    for step in taken:
        world.run(step)
        assert world.used <= limit
        held = sum(share.left for share in world.shares)
        assert world.used == world.accepted + world.lost + held


@given(st.integers(1, 1000), st.lists(st.integers(0, PROCESSES - 1)))
def test_quota_is_used_up_to_the_last_request(limit: int, order: list[int]) -> None:
    world = World(limit)
    for process in (*order, 0):
        requests = 50 if process else 2 * limit + 2  # a request that reserves is not counted twice
        world.run(Step(process, requests, 1, is_killed=False, gives_back=True, seconds=1))
    assert world.accepted == limit
