"""What came of a run: the table of faults, and what is wrong."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from bench.faults.injuries import EVENTS
from bench.faults.load import CHANGES, READS, SUCCESSES
from bench.faults.run import MAIL, Instance, Phase
from bench.soak_load import OK

_HEAD: Final = (
    "fault", "times", "requests", "not served", "acknowledged", "lost", "doubled", "mailed again", "events",
    "reads", "changes", "checkouts", "first mail", "all servers",
)  # fmt: skip


def table(phases: Sequence[Phase]) -> Iterator[str]:
    """The table of faults, in Markdown. Recoveries are the median and the longest, in seconds after the fault's end."""
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---" + "|---:" * (len(_HEAD) - 1) + "|"
    for phase in phases:
        for name in dict.fromkeys(each.fault.name for each in phase.instances):
            yield f"| {' | '.join(_row(phase, name))} |"


def _row(phase: Phase, name: str) -> Iterator[str]:
    instances = [each for each in phase.instances if each.fault.name == name]
    met = [moment for each in instances for moment in phase.moments if each.began <= moment.at <= each.recovered]
    yield name
    yield f"{len(instances)}"
    yield f"{len(met):,}"
    yield f"{sum(not moment.is_success for moment in met):,}"
    yield f"{sum(moment.kind in EVENTS and moment.status == OK for moment in met):,}"
    yield f"{sum(each.lost for each in instances)}"
    yield f"{sum(each.doubled for each in instances)}"
    yield f"{sum(_mailed_again(each, phase) for each in instances)}"
    for kinds in (("event",), READS, CHANGES, ("checkout",)):
        yield _recovery(instances, kinds)
    mailed = [each.recoveries[MAIL] for each in instances if MAIL in each.recoveries]
    yield _spans(mailed) if mailed else "none came"
    yield _spans([each.recovered - each.ended for each in instances])


def _mailed_again(instance: Instance, phase: Phase) -> int:
    """How many mails went out again because of a fault."""
    return sum(mail.more for mail in phase.mails.repeated if _caused(instance, mail.first, phase))


def _caused(instance: Instance, first: float, phase: Phase) -> bool:
    """Whether the last fault that could repeat a mail, before its first copy was recorded as sent, is this one."""
    possible = [each for each in phase.instances if each.fault.mails and each.began <= first + 1]
    return bool(possible) and possible[-1] is instance


def _recovery(instances: Sequence[Instance], kinds: Sequence[str]) -> str:
    longest = [max((each.recoveries.get(kind, 0.0) for kind in kinds), default=0.0) for each in instances]
    return _spans(longest) if any(longest) else "at once"


def _spans(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"


def summary(phase: Phase) -> Iterator[str]:
    """What a set-up's books say, and what is wrong."""
    books, mails = phase.books, phase.mails
    yield (
        f"{phase.kind}: {len(phase.instances)} faults, {sum(each.killed for each in phase.instances)} processes killed "
        f"by kill -9; {len(phase.moments):,} requests"
    )
    yield (
        f"  events: {phase.acknowledged:,} acknowledged, {len(books.entries):,} in the ledger, "
        f"{sum(each.lost for each in phase.instances)} lost; replay: {books.folded:,} tenants folded, "
        f"{books.differing} differing"
    )
    yield (
        f"  mails: {mails.notifications:,} notifications, {mails.never} never sent, {len(mails.repeated)} sent more "
        f"than once, {mails.beyond} more often than the faults explain; {mails.unsettled} jobs left"
    )
    yield f"  connections to PostgreSQL: {phase.longest_connections} at most"
    counts = Counter((moment.kind, moment.status) for moment in phase.moments)
    for kind in SUCCESSES:
        told = ", ".join(
            f"{status or 'none'}: {count:,}" for (of, status), count in sorted(counts.items()) if of == kind
        )
        yield f"  {kind:15} {told}"
    yield from (f"  WRONG: {text}" for text in wrong(phase))


def wrong(phase: Phase) -> list[str]:
    """Every broken promise."""
    mails, found = phase.mails, list(phase.wrong)
    if mails.never:
        found.append(f"{mails.never} notifications whose mail never arrived")
    if mails.beyond:
        found.append(f"{mails.beyond} mails came more often than the faults explain")
    for each in phase.instances:
        if each.fault.kills and not each.killed:
            found.append(f"{each.fault.name}: there was nobody to kill")
        again, most = _mailed_again(each, phase), each.fault.mails * phase.workers
        if again > most:
            found.append(f"{each.fault.name}: {again} mails went out again, {most:g} may")
    if mails.unsettled:
        found.append(f"{mails.unsettled} notifications or jobs were left")
    return found
