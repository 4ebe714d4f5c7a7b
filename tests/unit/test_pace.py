"""A steady rate at most."""

import pytest

from tenantry.common.clock import Pace


def test_a_few_go_at_once_and_the_others_one_after_the_other() -> None:
    pace = Pace(10, at_once=3, longest=5)
    assert [pace.wait(100.0) for _ in range(6)] == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3])


def test_whoever_comes_no_faster_never_waits() -> None:
    pace = Pace(10, at_once=1, longest=5)
    assert [pace.wait(100 + number / 10) for number in range(50)] == pytest.approx([0] * 50)


def test_no_more_go_in_any_second_than_the_rate_and_the_lead() -> None:
    pace = Pace(10, at_once=3, longest=60)
    gone = [100 + number / 1000 + pace.wait(100 + number / 1000) for number in range(300)]
    assert gone == sorted(gone)
    for start in gone:
        assert sum(start <= moment < start + 1 for moment in gone) <= 10 + 3


def test_nobody_waits_longer_than_the_longest() -> None:
    pace = Pace(10, at_once=3, longest=2)
    assert max(pace.wait(100.0) for _ in range(1000)) == 2


def test_a_flood_is_forgotten_as_soon_as_it_is_over() -> None:
    pace = Pace(10, at_once=3, longest=2)
    for _ in range(1000):
        pace.wait(100.0)
    assert pace.wait(102.5) == 0


def test_after_a_quiet_time_no_more_go_at_once_than_before() -> None:
    pace = Pace(10, at_once=3, longest=5)
    pace.wait(100.0)
    assert [pace.wait(10_000.0) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1], abs=1e-6)
