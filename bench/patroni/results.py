"""The results of each fault, and their table."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from bench.faults.client import OK
from bench.faults.fault_types import EVENTS
from bench.faults.load import REVOKED, AnsweredRequest
from bench.faults.run import FaultResult
from bench.patroni.primary_monitor import PrimaryMonitor
from bench.patroni.revocations import RevocationMonitor

_HEAD: Final = (
    "fault",
    "way to connect",
    "seconds without an acknowledged event",
    "events acknowledged",
    "events lost",
    "requests with revoked keys",
    "revoked keys accepted",
    "longest time with two primaries",
)


class MeasuredFault(msgspec.Struct, frozen=True):
    """One fault on one way to connect; times in seconds."""

    fault: str
    way: str
    outage: float
    """The longest time between two acknowledged events."""
    acknowledged: int
    lost: int
    revoked: int
    """Requests with keys whose revocation had been answered."""
    accepted: int
    """Those that were accepted."""
    two_primaries: float


class MeasuredRun(msgspec.Struct, frozen=True):
    """A run on one way to connect."""

    faults: list[MeasuredFault]
    acknowledged: int
    violations: list[str]
    """Broken promises."""


def measure(
    result: FaultResult,
    way: str,
    requests: Sequence[AnsweredRequest],
    primaries: PrimaryMonitor,
    revocations: RevocationMonitor,
) -> MeasuredFault:
    """Count what happened from the beginning of a fault until every request succeeded again."""
    during = [request for request in requests if result.began - 1 <= request.at <= result.recovered]
    events = [request.at for request in during if request.kind in EVENTS and request.status == OK]
    revoked = [request.status for request in during if request.kind == REVOKED]
    revoked += [
        status for at, status in revocations.revoked if result.began - 1 <= at <= result.recovered
    ]
    return MeasuredFault(
        result.fault.name,
        way,
        outage=max((after - before for before, after in itertools.pairwise(events)), default=0.0),
        acknowledged=len(events),
        lost=result.lost,
        revoked=len(revoked),
        accepted=revoked.count(OK),
        two_primaries=primaries.two_primaries(result.began, result.recovered),
    )


def table(faults: Sequence[MeasuredFault]) -> Iterator[str]:
    """Return the faults in Markdown."""
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---|---" + "|---:" * (len(_HEAD) - 2) + "|"
    for each in faults:
        yield (
            f"| {each.fault} | {each.way} | {each.outage:.1f} | {each.acknowledged:,} | {each.lost} "
            f"| {each.revoked:,} | {each.accepted} | {each.two_primaries:.1f} |"
        )
