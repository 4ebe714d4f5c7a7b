"""Overload detection: when a process has more requests than it can answer in time."""

import pytest

from tenantry.server.load_shedding import (
    INITIAL_CONCURRENT,
    MAX_WAIT,
    MIN_CONCURRENT,
    OverloadDetector,
)
from tenantry.server.metrics import Metrics


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def detector(clock: ManualClock) -> OverloadDetector:
    return OverloadDetector(Metrics(several_processes=False), now=clock)


def limit(detector: OverloadDetector, answered: int) -> int:
    """Return how many requests may be in progress."""
    return next(number for number in range(100_000) if detector.is_overloaded(number, answered))


def answer(detector: OverloadDetector, clock: ManualClock, per_second: int, seconds: float) -> int:
    """Answer requests at a rate while others arrive; return their number."""
    steps = round(seconds / 0.25)
    for step in range(steps + 1):
        clock.now += 0.25
        detector.is_overloaded(MIN_CONCURRENT, step * per_second // 4)
    return steps * per_second // 4


def test_burst_is_accepted_before_the_throughput_is_known(detector: OverloadDetector) -> None:
    assert limit(detector, 0) == INITIAL_CONCURRENT


@pytest.mark.parametrize("per_second", [1000, 4000, 20_000])
def test_limit_follows_the_throughput(
    detector: OverloadDetector, clock: ManualClock, per_second: int
) -> None:
    answered = answer(detector, clock, per_second, 5)
    assert limit(detector, answered) == pytest.approx(
        max(MIN_CONCURRENT, per_second * MAX_WAIT), rel=0.1
    )


def test_one_batch_is_accepted_while_nothing_is_answered(
    detector: OverloadDetector, clock: ManualClock
) -> None:
    answered = answer(detector, clock, 20_000, 5)
    for _ in range(40):
        detector.is_overloaded(INITIAL_CONCURRENT, answered)
        clock.now += 0.25
    assert limit(detector, answered) == MIN_CONCURRENT


def test_quiet_period_does_not_change_the_limit(
    detector: OverloadDetector, clock: ManualClock
) -> None:
    answered = answer(detector, clock, 20_000, 5)
    known = limit(detector, answered)
    clock.now += 3600
    assert limit(detector, answered + 5) == known


def test_limit_recovers_after_an_overload(detector: OverloadDetector, clock: ManualClock) -> None:
    answered = answer(detector, clock, 500, 5)
    assert limit(detector, answered) == MIN_CONCURRENT
    clock.now += 2
    assert limit(detector, answered) == INITIAL_CONCURRENT


def test_excluded_requests_do_not_count(clock: ManualClock) -> None:
    detector = OverloadDetector(Metrics(several_processes=False), lambda: 500, now=clock)
    assert limit(detector, 0) == INITIAL_CONCURRENT + 500


def test_arriving_requests_do_not_count(detector: OverloadDetector) -> None:
    detector.arriving = 500
    assert limit(detector, 0) == INITIAL_CONCURRENT + 500


def test_shed_requests_are_counted_and_logged_once_a_minute(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics(several_processes=False)
    detector = OverloadDetector(metrics, now=clock)
    for _ in range(3):
        assert detector.is_overloaded(INITIAL_CONCURRENT, 0)
        detector.count()
    assert b"tenantry_requests_shed_total 3.0" in metrics.render()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    clock.now += 61
    assert detector.is_overloaded(INITIAL_CONCURRENT, 0)
    detector.count()
    assert len(caplog.records) == 2
