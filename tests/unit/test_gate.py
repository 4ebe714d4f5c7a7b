"""When a process has more to do than it can."""

import pytest

from tenantry.server.metrics import Metrics
from tenantry.server.overload_detection import ALWAYS, AT_FIRST, WAIT, OverloadDetector


class Watch:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def gate(watch: Watch) -> OverloadDetector:
    return OverloadDetector(Metrics(several_processes=False), now=watch)


def most(gate: OverloadDetector, answered: int) -> int:
    """How many may be under way."""
    return next(under_way for under_way in range(100_000) if gate.is_full(under_way, answered))


def answer(gate: OverloadDetector, watch: Watch, per_second: int, seconds: float) -> int:
    """Let so many be answered while others come; returns how many."""
    steps = round(seconds / 0.25)
    for step in range(steps + 1):
        watch.now += 0.25
        gate.is_full(ALWAYS, step * per_second // 4)
    return steps * per_second // 4


def test_before_anything_is_known_a_burst_is_let_in(gate: OverloadDetector) -> None:
    assert most(gate, 0) == AT_FIRST


@pytest.mark.parametrize("per_second", [1000, 4000, 20_000])
def test_as_many_may_wait_as_are_answered_in_time(gate: OverloadDetector, watch: Watch, per_second: int) -> None:
    answered = answer(gate, watch, per_second, 5)
    assert most(gate, answered) == pytest.approx(max(ALWAYS, per_second * WAIT), rel=0.1)


def test_when_nothing_is_answered_any_more_one_batch_may_wait(gate: OverloadDetector, watch: Watch) -> None:
    answered = answer(gate, watch, 20_000, 5)
    for _ in range(40):
        gate.is_full(AT_FIRST, answered)
        watch.now += 0.25
    assert most(gate, answered) == ALWAYS


def test_a_quiet_hour_says_nothing_about_what_can_be_done(gate: OverloadDetector, watch: Watch) -> None:
    answered = answer(gate, watch, 20_000, 5)
    known = most(gate, answered)
    watch.now += 3600
    assert most(gate, answered + 5) == known


def test_overload_that_is_over_is_forgotten(gate: OverloadDetector, watch: Watch) -> None:
    answered = answer(gate, watch, 500, 5)
    assert most(gate, answered) == ALWAYS
    watch.now += 2
    assert most(gate, answered) == AT_FIRST


def test_who_waits_for_something_else_does_not_count(watch: Watch) -> None:
    gate = OverloadDetector(Metrics(several_processes=False), lambda: 500, now=watch)
    assert most(gate, 0) == AT_FIRST + 500


def test_request_that_still_arrives_does_not_count(gate: OverloadDetector) -> None:
    gate.arriving = 500
    assert most(gate, 0) == AT_FIRST + 500


def test_refusals_are_counted_and_told_of_once_in_a_while(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics(several_processes=False)
    gate = OverloadDetector(metrics, now=watch)
    for _ in range(3):
        assert gate.is_full(AT_FIRST, 0)
        gate.count()
    assert b"tenantry_requests_shed_total 3.0" in metrics.render()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    watch.now += 61
    assert gate.is_full(AT_FIRST, 0)
    gate.count()
    assert len(caplog.records) == 2
