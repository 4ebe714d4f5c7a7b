"""Which reports of a primary show that standbys have replayed a change."""

from tenantry.db.standby_waits import (
    CommittedChange,
    ReplicationReport,
    StandbyWaits,
    reason_to_wait,
)
from tenantry.domain.standby_checks import CHANGE_WAIT, ReplicatingStandby
from tests.support.cases import cases

CHANGE = CommittedChange(0.0, ("eu", "us"), timeline=2, lsn=100)
US = ReplicatingStandby("us", 100)


def report(*standbys: ReplicatingStandby, timeline: int = 2) -> ReplicationReport:
    return ReplicationReport(timeline, standbys)


def test_change_is_replayed_when_all_its_standbys_are_at_its_position() -> None:
    others = (ReplicatingStandby("not registered", 1), ReplicatingStandby("backup", None))
    assert reason_to_wait(CHANGE, report(US, ReplicatingStandby("eu", 101), *others)) is None


@cases(
    ("found", "reason"),
    [
        (report(US), "standby 'eu' is not connected to the primary"),
        (report(US, ReplicatingStandby("eu", 99)), "standby 'eu' is behind"),
        (report(US, ReplicatingStandby("eu", None)), "GRANT pg_read_all_stats"),
        (report(US, *[ReplicatingStandby("eu", 100)] * 2), "an application_name of its own"),
        (report(US, ReplicatingStandby("eu", 100), timeline=3), "another server"),
        (None, "the primary does not tell"),
    ],
)
def test_report_that_does_not_show_the_change_says_why(
    found: ReplicationReport | None, reason: str
) -> None:
    assert reason in (reason_to_wait(CHANGE, found) or "")


def test_unread_registrations_are_waited_for() -> None:
    change = CommittedChange(0.0, None)
    assert "could not be read" in (reason_to_wait(change, report(US)) or "")


async def test_change_from_long_ago_waits_no_more() -> None:
    change = CommittedChange(-CHANGE_WAIT, ("gone",))
    assert await StandbyWaits().wait(change) is False
