"""Which answers of standbys count, and how long a change waits for standbys."""

from tenantry.domain.standby_checks import (
    CHANGE_WAIT,
    EXTENSION_INTERVAL,
    EXTENSION_TRUSTED,
    LEASE,
    NEARER_HOST_INTERVAL,
    CheckSource,
    HostFailures,
    Position,
    Positions,
    ReplicatingStandby,
    StandbySession,
    StandbyState,
    answer_counts,
    have_replayed,
    hosts_to_try,
    is_trusted,
    is_waited_out,
    needs_extension,
    position_to_reach,
    rest_after,
    timeline_of,
    with_position,
)
from tests.support.cases import cases

_SHOWN = {"eu": "version 1"}
_SESSION = StandbySession(connected_at=10, proven_timeline=3)


def reached(positions: Positions, now: float) -> Position | CheckSource:
    return position_to_reach(positions, _SESSION, "eu", now)


def test_the_oldest_position_that_still_counts_is_the_one_to_reach() -> None:
    positions = tuple(Position(at, 3, 100, _SHOWN) for at in (10, 10.5, 11))
    assert reached(positions, 10 + LEASE) == positions[0]
    assert reached(positions, 10.1 + LEASE) == positions[1]
    assert reached(positions, 11.1 + LEASE) is CheckSource.NO_POSITION
    assert reached((), 11) is CheckSource.NO_POSITION


def test_a_position_from_before_the_connection_does_not_count() -> None:
    before, after = Position(9.5, 3, 100, _SHOWN), Position(10, 3, 200, _SHOWN)
    assert reached((before,), 10.1) is CheckSource.NO_POSITION
    assert reached((before, after), 10.1) == after


def test_a_position_counts_only_for_the_standbys_whose_registration_it_shows() -> None:
    without = Position(10, 3, 100, {"us": "version 1"})
    shown = Position(10.5, 3, 200, _SHOWN)
    assert reached((without,), 10.6) is CheckSource.UNREGISTERED
    assert reached((without, shown), 10.6) == shown
    assert reached((shown, without), 10.6) is CheckSource.UNREGISTERED


def test_a_standby_that_shows_a_version_has_the_history_of_the_primary_that_has_shown_it() -> None:
    positions = (Position(10, 3, 100, _SHOWN), Position(11, 3, 200, {"eu": "version 2"}))
    assert timeline_of(positions, "eu", "version 1") == 3
    assert timeline_of(positions, "eu", "version of a copy") is None
    assert timeline_of(positions, "us", "version 1") is None


@cases(
    ("state", "timeline", "counts"),
    [
        (StandbyState(is_in_recovery=True, replayed_lsn=100), 3, True),
        (StandbyState(is_in_recovery=True, replayed_lsn=99), 3, False),
        (StandbyState(is_in_recovery=False, replayed_lsn=100), 3, False),
        (StandbyState(is_in_recovery=True, replayed_lsn=900), 2, False),
        (StandbyState(is_in_recovery=True, replayed_lsn=900), None, False),
    ],
)
def test_an_answer_counts_if_the_standby_had_replayed_the_position_on_its_timeline(
    *, state: StandbyState, timeline: int | None, counts: bool
) -> None:
    session = StandbySession(connected_at=10, proven_timeline=timeline)
    assert answer_counts(Position(10, 3, 100), session, state) is counts


def test_positions_of_a_former_primary_are_dropped_or_ignored() -> None:
    former = Position(10, 3, 900)
    promoted = Position(10.2, 4, 100)
    assert with_position((former,), promoted) == (promoted,)
    assert with_position((promoted,), former) == (promoted,)


def test_positions_are_kept_for_the_lease() -> None:
    positions = with_position((Position(10, 3, 1), Position(11, 3, 2)), Position(11.6, 3, 3))
    assert [position.lsn for position in positions] == [2, 3]


def test_a_registration_is_extended_in_time() -> None:
    assert not needs_extension(10, 9.5 + EXTENSION_INTERVAL)
    assert needs_extension(10, 10 + EXTENSION_INTERVAL)
    assert is_trusted(10, 10 + EXTENSION_TRUSTED)
    assert not is_trusted(10, 10.5 + EXTENSION_TRUSTED)


def test_a_standby_rests_longer_after_each_error_and_ten_seconds_at_most() -> None:
    assert [rest_after(failures) for failures in range(1, 7)] == [1, 2, 4, 8, 10, 10]
    assert rest_after(10_000) == 10  # after a day


def test_the_next_standby_is_used_while_the_nearest_one_rests() -> None:
    nearest = HostFailures(2, last_at=100)
    assert hosts_to_try([HostFailures(), HostFailures()], None, 100) == [0, 1]
    assert hosts_to_try([nearest, HostFailures()], None, 101.9) == [1]
    assert hosts_to_try([nearest, HostFailures()], None, 102) == [0, 1]
    assert hosts_to_try([nearest, nearest], None, 101.9) == []


def test_nearer_standbys_are_tried_seldom_while_a_farther_one_is_used() -> None:
    hosts = [HostFailures(2, last_at=100), HostFailures(1, last_at=110), HostFailures()]
    assert hosts_to_try(hosts, 2, 99.9 + NEARER_HOST_INTERVAL) == []
    assert hosts_to_try(hosts, 2, 100 + NEARER_HOST_INTERVAL) == [0]
    assert hosts_to_try(hosts, 2, 110 + NEARER_HOST_INTERVAL) == [0, 1]
    assert hosts_to_try(hosts, 0, 110 + NEARER_HOST_INTERVAL) == []


def test_a_change_waits_until_each_registered_standby_has_replayed_it() -> None:
    shown = [ReplicatingStandby("a", 100), ReplicatingStandby("b", 99)]
    assert have_replayed(["a"], shown, 100)
    assert not have_replayed(["a", "b"], shown, 100)


@cases(
    "shown",
    [
        [],
        [ReplicatingStandby("a", None)],
        [ReplicatingStandby("a", 100), ReplicatingStandby("a", 100)],
    ],
)
def test_a_standby_that_is_missing_unknown_or_shown_twice_has_replayed_nothing(
    shown: list[ReplicatingStandby],
) -> None:
    assert not have_replayed(["a"], shown, 1)


def test_a_change_waits_longer_than_any_position_from_before_it_counts() -> None:
    before = Position(taken_at=10, timeline=3, lsn=1, registrations=_SHOWN)
    waited = CHANGE_WAIT
    assert not is_waited_out(0, LEASE)
    assert is_waited_out(0, waited)
    assert reached((before,), before.taken_at + waited) is CheckSource.NO_POSITION
