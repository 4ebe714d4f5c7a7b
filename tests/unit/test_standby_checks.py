"""Which answers of standbys count, and how long a change waits for standbys."""

import pytest

from tenantry.domain.standby_checks import (
    CHANGE_WAIT,
    EXTENSION_INTERVAL,
    EXTENSION_TRUSTED,
    LEASE,
    NEARER_HOST_INTERVAL,
    CheckSource,
    HostFailures,
    Position,
    Registration,
    ReplicatingStandby,
    StandbySession,
    StandbyState,
    answer_counts,
    have_replayed,
    hosts_to_try,
    is_waited_out,
    needs_extension,
    position_to_reach,
    registered,
    rest_after,
    with_position,
)

_SINCE = Registration(timeline=3, since=10, extended_at=10)
_SESSION = StandbySession(connected_at=10, proven_timeline=3)


def test_the_oldest_position_that_still_counts_is_the_one_to_reach() -> None:
    positions = (Position(10, 3, 100), Position(10.5, 3, 200), Position(11, 3, 300))
    assert position_to_reach(positions, _SESSION, _SINCE, 10 + LEASE) == positions[0]
    assert position_to_reach(positions, _SESSION, _SINCE, 10.1 + LEASE) == positions[1]
    assert position_to_reach(positions, _SESSION, _SINCE, 11.1 + LEASE) is CheckSource.NO_POSITION
    assert position_to_reach((), _SESSION, _SINCE, 11) is CheckSource.NO_POSITION


@pytest.mark.parametrize(
    ("session", "registration"),
    [
        (StandbySession(connected_at=11.5), _SINCE),
        (_SESSION, Registration(timeline=3, since=11.5, extended_at=11)),
    ],
)
def test_a_position_from_before_the_connection_or_the_registration_does_not_count(
    session: StandbySession, registration: Registration
) -> None:
    before = Position(11, 3, 100)
    after = Position(11.5, 3, 200)
    assert position_to_reach((before,), session, registration, 11.6) is CheckSource.NO_POSITION
    assert position_to_reach((before, after), session, registration, 11.6) == after


def test_an_unregistered_standby_does_not_count() -> None:
    late = Position(10.5 + EXTENSION_TRUSTED, 3, 100)
    assert position_to_reach((late,), _SESSION, None, late.taken_at) is CheckSource.UNREGISTERED
    assert position_to_reach((late,), _SESSION, _SINCE, late.taken_at) is CheckSource.UNREGISTERED
    promoted = Position(11, 4, 100)
    assert position_to_reach((promoted,), _SESSION, _SINCE, 11) is CheckSource.UNREGISTERED


@pytest.mark.parametrize(
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


def test_an_extension_in_time_keeps_a_registration_without_a_gap() -> None:
    extended = registered(_SINCE, 3, asked_at=40, committed_at=41)
    assert extended == Registration(timeline=3, since=10, extended_at=40)


@pytest.mark.parametrize(
    ("former", "timeline", "committed_at"),
    [
        (None, 3, 41),
        (_SINCE, 4, 41),
        (_SINCE, 3, 10.5 + EXTENSION_TRUSTED),
    ],
)
def test_a_registration_with_a_gap_begins_anew(
    former: Registration | None, timeline: int, committed_at: float
) -> None:
    begun = registered(former, timeline, asked_at=40, committed_at=committed_at)
    assert begun == Registration(timeline, since=committed_at, extended_at=40)


def test_a_registration_is_extended_in_time_and_on_each_new_primary() -> None:
    assert not needs_extension(_SINCE, 3, 9.5 + EXTENSION_INTERVAL)
    assert needs_extension(_SINCE, 3, 10 + EXTENSION_INTERVAL)
    assert needs_extension(_SINCE, 4, 11)


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


@pytest.mark.parametrize(
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
    before = Position(taken_at=0, timeline=3, lsn=1)
    session = StandbySession(connected_at=0)
    registration = Registration(timeline=3, since=0, extended_at=0)
    waited = CHANGE_WAIT
    assert not is_waited_out(0, LEASE)
    assert is_waited_out(0, waited)
    assert position_to_reach((before,), session, registration, waited) is CheckSource.NO_POSITION
