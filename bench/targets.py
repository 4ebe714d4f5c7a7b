"""What the comparison is to show, and whether it does."""

from collections.abc import Iterator
from typing import Final

from bench.contestant import Job
from bench.limits import CONSTANT, WITHOUT_DATABASE
from bench.ours import JWT
from bench.results import OURS, Kind, Line, Target, rate

USUAL: Final = "fastapi-orm"
USUAL_PROCESSES: Final = 2
CONNECTIONS: Final = 64
MANY: Final = 256
_NO_SLOWER: Final = 0.97
"""Of another figure: what counts as no slower, by how far medians of the same thing are apart."""
_TAIL: Final = 4


def judge(lines: list[Line]) -> list[Target]:
    """Every target, beside what was measured."""
    return [*_events(lines), *_lists(lines), *_tails(lines)]


def _events(lines: list[Line]) -> Iterator[Target]:
    own = rate(lines, OURS, Job.WEBHOOK, 1, CONNECTIONS)
    usual = rate(lines, USUAL, Job.WEBHOOK, USUAL_PROCESSES, CONNECTIONS)
    yield _at_least(f"webhook, of {USUAL} with {USUAL_PROCESSES} processes", own, usual, 15)
    name, fastest = _fastest(lines, Job.WEBHOOK)
    yield _at_least(f"webhook, of the fastest peer{name}", own, fastest, 5)
    for connections, share in ((CONNECTIONS, 0.5), (MANY, 0.6)):
        bare = rate(lines, WITHOUT_DATABASE, Job.WEBHOOK, 1, connections)
        found = rate(lines, OURS, Job.WEBHOOK, 1, connections)
        yield _at_least(f"webhook, of our route without a database, {connections} connections", found, bare, share)


def _lists(lines: list[Line]) -> Iterator[Target]:
    own = rate(lines, OURS, Job.LIST, 1, CONNECTIONS)
    usual = rate(lines, USUAL, Job.LIST, USUAL_PROCESSES, CONNECTIONS)
    yield _at_least(f"list, of {USUAL} with {USUAL_PROCESSES} processes", own, usual, 8)
    name, fastest = _fastest(lines, Job.LIST)
    yield _at_least(f"list, of the fastest peer{name}", own, fastest, 2.5)
    yield _at_least("list, of a constant", own, rate(lines, CONSTANT, Job.LIST, 1, CONNECTIONS), 0.3)
    yield _at_least("verify, of the list", rate(lines, OURS, Job.VERIFY, 1, CONNECTIONS), own, _NO_SLOWER)
    for algorithm, contestant in JWT.items():
        found = rate(lines, contestant, Job.LIST, 1, CONNECTIONS)
        yield _at_least(f"list by {algorithm} token, of the list by key", found, own, _NO_SLOWER)


def _tails(lines: list[Line]) -> Iterator[Target]:
    for job in (Job.WEBHOOK, Job.LIST):
        line = next((line for line in lines if (line.name, line.job, line.processes) == (OURS, job, 1)), None)
        found = line.at(CONNECTIONS) if line else None
        tail = found.p99_ms / max(found.p50_ms, 0.001) if found else None
        yield Target(
            text=f"{job}, p99 of p50",
            wanted=f"< {_TAIL}",
            measured="-" if tail is None else f"{tail:.2f}",
            met=None if tail is None else tail < _TAIL,
        )


def _fastest(lines: list[Line], job: Job) -> tuple[str, float | None]:
    """The fastest peer, whatever its number of processes: its name for the text, and its requests a second."""
    found = [
        (measured.per_second, line)
        for line in lines
        if line.job is job and line.kind is Kind.PEER and (measured := line.at(CONNECTIONS))
    ]
    if not found:
        return "", None
    per_second, line = max(found, key=lambda pair: pair[0])
    return f" ({line.name}, {line.processes})", per_second


def _at_least(text: str, found: float | None, other: float | None, factor: float) -> Target:
    if found is None or not other:
        return Target(text=text, wanted=f">= {factor:g}", measured="-", met=None)
    return Target(text=text, wanted=f">= {factor:g}", measured=f"{found / other:.2f}", met=found / other >= factor)
