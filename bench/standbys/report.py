"""Print the results of a run."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from bench.faults.client import OK
from bench.standbys.run import StandbyResult

_HEAD: Final = (
    "fault",
    "times",
    "revocations",
    "checks afterwards",
    "stale",
    "new keys rejected",
    "not served",
    "other requests",
    "by standbys",
    "p50",
    "p99",
    "longest",
)


def table(results: Sequence[StandbyResult]) -> Iterator[str]:
    """Return the results in Markdown. Times are those of a revocation."""
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---" + "|---:" * (len(_HEAD) - 1) + "|"
    for result in results:
        yield f"| {' | '.join(_row(result))} |"


def _row(result: StandbyResult) -> Iterator[str]:
    tally = result.tally
    revoked = tally.checks
    yield result.fault
    yield f"{result.injected}"
    yield f"{len(tally.revocations):,}"
    yield f"{revoked.total():,}"
    yield f"{result.stale - len(tally.missing)}"
    yield f"{len(tally.missing)}"
    yield f"{sum(revoked.values()) - revoked[401] - revoked[OK]:,}"
    yield f"{len(result.requests):,}"
    yield f"{result.counts.standby_share:.1%}" if result.counts.total else "-"
    yield from map(_duration, _percentiles(tally.revocations))


def _percentiles(times: Sequence[float]) -> tuple[float, float, float]:
    if not times:
        return 0.0, 0.0, 0.0
    ordered = sorted(times)
    return statistics.median(ordered), ordered[int(0.99 * len(ordered))], ordered[-1]


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def details(result: StandbyResult) -> Iterator[str]:
    """Return what explains the row of a result: the sources of checks, and stale answers."""
    sources = ", ".join(f"{name} {count:,}" for name, count in result.counts.by_source.items())
    yield f"{result.fault}: checks by source: {sources or 'not counted'}"
    tally = result.tally
    yield f"{result.fault}: statuses of revoked keys {dict(tally.checks)}, of new keys {dict(tally.new_checks)}"
    for what, answers in (
        ("revoked key accepted", tally.stale),
        ("new key rejected", tally.missing),
    ):
        for answer in answers[:5]:
            yield f"{result.fault}: {what} by process {answer.process} after {answer.seconds:.3f} s"
    yield from (f"{result.fault}: {text}" for text in result.contradictions[:5])
