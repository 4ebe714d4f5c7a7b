"""When billing periods end."""

from datetime import UTC, datetime

from tenantry_devkit.simulator.account import Schedule, SimulatedClock, period_end
from tests.support.cases import cases


def moment(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@cases(
    ("anchor", "interval", "count", "after", "end"),
    [
        ("2026-01-15T10:00", "month", 1, "2026-01-15T10:00", "2026-02-15T10:00"),
        ("2026-01-31T10:00", "month", 1, "2026-01-31T10:00", "2026-02-28T10:00"),
        ("2026-01-31T10:00", "month", 1, "2026-02-28T10:00", "2026-03-31T10:00"),
        ("2026-01-31T10:00", "month", 3, "2026-01-31T10:00", "2026-04-30T10:00"),
        ("2024-02-29T10:00", "year", 1, "2024-02-29T10:00", "2025-02-28T10:00"),
        ("2024-02-29T10:00", "year", 1, "2027-02-28T10:00", "2028-02-29T10:00"),
        ("2026-01-15T10:00", "month", 1, "2031-07-20T00:00", "2031-08-15T10:00"),
        ("2026-01-15T10:00", "week", 2, "2026-01-15T10:00", "2026-01-29T10:00"),
        ("2026-01-15T10:00", "day", 1, "2026-01-17T09:00", "2026-01-17T10:00"),
    ],
)
def test_a_period_ends_on_the_anchors_day(
    anchor: str, interval: str, count: int, after: str, end: str
) -> None:
    assert period_end(moment(anchor), interval, count, moment(after)) == moment(end)


def test_what_is_due_is_taken_in_the_order_of_its_moments() -> None:
    schedule = Schedule[str]()
    schedule.add(20, "second")
    schedule.add(10, "first")
    schedule.add(20, "third")
    schedule.add(30, "later")
    assert schedule.items() == ["first", "second", "third", "later"]
    assert list(schedule.take_due(20)) == ["first", "second", "third"]
    assert schedule.next_moment() == 30
    schedule.add(5, "fourth")
    assert list(schedule.take_due(30)) == ["fourth", "later"]
    assert schedule.next_moment() is None


def test_clock_stands_still_and_never_goes_back() -> None:
    clock = SimulatedClock(100)
    clock.move_to(50)
    assert clock.now() == 100
    clock.move_to(150)
    assert clock.now() == 150


def test_running_clock_continues_after_a_move() -> None:
    wall_clock = [moment("2026-01-01T00:00")]
    clock = SimulatedClock(100, running=lambda: datetime.fromtimestamp(wall_clock[0], UTC))
    wall_clock[0] += 5
    assert clock.now() == 105
    clock.move_to(1000)
    wall_clock[0] += 5
    assert clock.now() == 1005
