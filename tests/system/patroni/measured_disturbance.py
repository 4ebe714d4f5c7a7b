"""What happened during one disturbance."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from bench.torture.client import OK
from bench.torture.clients import AnsweredRequest
from bench.torture.disturbances import EVENTS
from bench.torture.load import REVOKED
from bench.torture.run import Injection
from tests.system.patroni.primary_monitor import PrimaryMonitor
from tests.system.patroni.revocation_monitor import RevocationMonitor


class MeasuredDisturbance(NamedTuple):
    """One disturbance; times in seconds."""

    outage: float
    """The longest time between two acknowledged events."""
    acknowledged: int
    lost: int
    revoked: int
    """Requests with keys whose revocation had been answered."""
    accepted: int
    """Those that were accepted."""
    two_primaries: float


def measure(
    result: Injection,
    requests: Sequence[AnsweredRequest],
    lost: int,
    primaries: PrimaryMonitor,
    revocations: RevocationMonitor,
) -> MeasuredDisturbance:
    """Count what happened from its beginning until every request succeeded again."""
    during = [request for request in requests if result.began - 1 <= request.at <= result.recovered]
    events = [request.at for request in during if request.kind in EVENTS and request.status == OK]
    revoked = [request.status for request in during if request.kind == REVOKED]
    revoked += [
        status for at, status in revocations.revoked if result.began - 1 <= at <= result.recovered
    ]
    return MeasuredDisturbance(
        outage=max((after - before for before, after in itertools.pairwise(events)), default=0.0),
        acknowledged=len(events),
        lost=lost,
        revoked=len(revoked),
        accepted=revoked.count(OK),
        two_primaries=primaries.two_primaries(result.began, result.recovered),
    )
