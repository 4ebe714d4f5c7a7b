"""The shares of a tenant's quota that one process reserves."""

from tenantry.domain.entitlements import Usage, UsagePeriod
from tenantry.domain.features import LARGEST_VALUE
from tenantry.domain.request_quotas import TERMS, grant_of
from tenantry.domain.shares import IDLE_SECONDS, Share, take
from tests.support.cases import cases

PERIOD = UsagePeriod(0, 1000)
NEXT = UsagePeriod(1000, 2000)


def share_of(limit: int) -> Share[str]:
    return Share("acme", limit, TERMS)


def reserve(
    share: Share[str], used: int, second: int, waiting: int = 1, period: UsagePeriod = PERIOD
) -> int:
    """Reserve as a process does, for so many that wait; return how many were reserved."""
    request = share.request(second, waiting)
    assert request is not None
    granted = grant_of(request, Usage(used, period))
    share.receive(request, second, granted)
    return granted.number


def reserve_and_use(share: Share[str], used: int, second: int) -> int:
    """Reserve, and use all of it; return how many these are."""
    number = reserve(share, used, second)
    assert [take([share], second) for _ in range(number + 1)] == [True] * number + [False]
    return number


def test_share_is_at_most_a_hundredth_of_what_is_left() -> None:
    share = share_of(10_000)
    assert [reserve_and_use(share, 2000, 1) for _ in range(6)] == [1, 8, 64, 80, 80, 80]


def test_last_requests_are_reserved_one_by_one() -> None:
    share = share_of(1000)
    assert [reserve_and_use(share, used, 1) for used in (850, 950, 999)] == [1, 1, 1]


def test_requests_that_wait_are_reserved_beyond_a_hundredth() -> None:
    assert reserve(share_of(1000), 500, 1, waiting=20) == 20
    assert reserve(share_of(1000), 990, 1, waiting=20) == 10


def test_share_grows_until_it_lasts_for_half_a_minute() -> None:
    share = share_of(LARGEST_VALUE)
    seconds = (1, 1, 30, 60, 90, 120)
    assert [reserve_and_use(share, 0, second) for second in seconds] == [1, 8, 64, 80, 100, 125]


def test_share_that_lasts_longer_is_followed_by_a_smaller_one() -> None:
    share = share_of(LARGEST_VALUE)
    seconds = (1, 1, 1, 61, 121, 181)
    assert [reserve_and_use(share, 0, second) for second in seconds] == [1, 8, 64, 40, 25, 15]


def test_share_is_used_until_it_is_empty() -> None:
    share = share_of(1000)
    reserve(share, 0, 1, waiting=2)
    assert [take([share], 1) for _ in range(3)] == [True, True, False]


def test_share_ends_with_its_period() -> None:
    share = share_of(1000)
    reserve(share, 0, 999)
    assert not take([share], 1000)
    request = share.request(1000, 1)
    assert request is not None
    assert (request.counted_in, request.unused) == (PERIOD.start, 1)
    share.receive(request, 1000, grant_of(request, Usage(0, NEXT)))
    assert take([share], 1000)


def test_share_of_a_larger_limit_is_not_used() -> None:
    share = share_of(1000)
    reserve(share, 0, 1)
    share.set_limit(10)
    assert not take([share], 1)


def test_share_that_was_requested_under_a_larger_limit_is_returned() -> None:
    share = share_of(1000)
    request = share.request(1, 1)
    assert request is not None
    share.set_limit(10)
    share.receive(request, 1, grant_of(request, Usage(0, PERIOD)))
    assert not take([share], 1)
    assert share.release().unused == 1


def test_quota_is_exhausted_until_the_next_second_or_another_limit() -> None:
    share = share_of(10)
    assert reserve(share, 10, 1) == 0
    assert share.is_exhausted(1)
    assert not share.is_exhausted(2)
    share.set_limit(20)
    assert not share.is_exhausted(1)


def test_lowered_quota_reserves_nothing() -> None:
    assert reserve(share_of(10), 25, 1) == 0


@cases(
    ("second", "is_idle"),
    [(7, False), (7 + IDLE_SECONDS - 1, False), (7 + IDLE_SECONDS, True), (6, True)],
)
def test_share_is_idle_some_seconds_after_its_last_request(second: int, is_idle: bool) -> None:
    share = share_of(1000)
    reserve(share, 0, 7, waiting=2)
    take([share], 7)
    assert share.is_idle(second) is is_idle
