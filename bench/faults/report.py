"""Print the results of a run: the table of faults, and every violation."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from bench.faults.client import OK
from bench.faults.fault_types import EVENTS
from bench.faults.load import CHANGES, READS, SUCCESSES
from bench.faults.run import MAIL, FaultResult, PhaseResult

_HEAD: Final = (
    "fault",
    "times",
    "requests",
    "not served",
    "acknowledged",
    "lost",
    "doubled",
    "mailed again",
    "events",
    "reads",
    "changes",
    "checkouts",
    "first mail",
    "all servers",
)


def table(phases: Sequence[PhaseResult]) -> Iterator[str]:
    """Return the faults in Markdown. Recoveries are the median and the maximum, in seconds after
    the fault's end.
    """
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---" + "|---:" * (len(_HEAD) - 1) + "|"
    for phase in phases:
        for name in dict.fromkeys(each.fault.name for each in phase.faults):
            yield f"| {' | '.join(_row(phase, name))} |"


def _row(phase: PhaseResult, name: str) -> Iterator[str]:
    faults = [each for each in phase.faults if each.fault.name == name]
    during = [
        request
        for each in faults
        for request in phase.requests
        if each.began <= request.at <= each.recovered
    ]
    yield name
    yield f"{len(faults)}"
    yield f"{len(during):,}"
    yield f"{sum(not request.is_success for request in during):,}"
    yield f"{sum(request.kind in EVENTS and request.status == OK for request in during):,}"
    yield f"{sum(each.lost for each in faults)}"
    yield f"{sum(each.doubled for each in faults)}"
    yield f"{sum(_mailed_again(each, phase) for each in faults)}"
    for kinds in (("event",), READS, CHANGES, ("checkout",)):
        longest = [
            max((each.recoveries.get(kind, 0.0) for kind in kinds), default=0.0) for each in faults
        ]
        yield _median_and_max(longest) if any(longest) else "at once"
    mailed = [each.recoveries[MAIL] for each in faults if MAIL in each.recoveries]
    yield _median_and_max(mailed) if mailed else "none came"
    yield _median_and_max([each.recovered - each.ended for each in faults])


def _mailed_again(fault: FaultResult, phase: PhaseResult) -> int:
    """Count the mails that were sent again because of a fault."""
    return sum(mail.more for mail in phase.mails.repeated if _caused(fault, mail.first, phase))


def _caused(fault: FaultResult, first: float, phase: PhaseResult) -> bool:
    """Return whether this fault is the last that could repeat a mail whose first copy arrived at
    ``first``.
    """
    possible = [each for each in phase.faults if each.fault.mails and each.began <= first + 1]
    return bool(possible) and possible[-1] is fault


def _median_and_max(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"


def summary(phase: PhaseResult) -> Iterator[str]:
    """Return the totals of a deployment and its violations."""
    ledger, mails = phase.ledger, phase.mails
    yield (
        f"{phase.kind}: {len(phase.faults)} faults, {sum(each.killed for each in phase.faults)} processes killed "
        f"by kill -9; {len(phase.requests):,} requests"
    )
    yield (
        f"  events: {phase.acknowledged:,} acknowledged, {len(ledger.events):,} in the ledger, "
        f"{sum(each.lost for each in phase.faults)} lost; replay: {ledger.folded:,} tenants folded, "
        f"{ledger.differing} differing"
    )
    yield (
        f"  mails: {mails.notifications:,} notifications, {mails.never} never sent, {len(mails.repeated)} sent more "
        f"than once, {mails.beyond} more often than the faults explain; {mails.pending} jobs pending"
    )
    yield f"  connections to PostgreSQL: {phase.connections} at most"
    counts = Counter((request.kind, request.status) for request in phase.requests)
    for kind in SUCCESSES:
        statuses = ", ".join(
            f"{status or 'none'}: {count:,}"
            for (of, status), count in sorted(counts.items())
            if of == kind
        )
        yield f"  {kind:15} {statuses}"
    yield from (f"  WRONG: {text}" for text in violations(phase))


def violations(phase: PhaseResult) -> list[str]:
    """Return every broken promise."""
    mails, found = phase.mails, list(phase.violations)
    if mails.never:
        found.append(f"{mails.never} notifications without a mail")
    if mails.beyond:
        found.append(f"{mails.beyond} mails arrived more often than the faults explain")
    for each in phase.faults:
        if each.fault.kills and not each.killed:
            found.append(f"{each.fault.name}: found no process to kill")
        again, allowed = _mailed_again(each, phase), each.fault.mails * phase.workers
        if again > allowed:
            found.append(f"{each.fault.name}: {again} mails were sent again, {allowed:g} may be")
    if mails.pending:
        found.append(f"{mails.pending} notifications or jobs are pending")
    return found
