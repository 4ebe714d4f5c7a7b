"""Print the results of a comparison: tables, checks, targets and failures."""

import itertools
import os
import platform
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.case import BenchCase
from bench.contestant import Job
from bench.ours import JWT, NAME, Tenantry
from bench.upper_bounds import CONSTANT, NGINX, WITHOUT_DATABASE, UpperBound
from bench.wrk import Figure

CONNECTIONS: Final = 64
MANY_CONNECTIONS: Final = 256
_USUAL: Final = "fastapi-orm"
_USUAL_PROCESSES: Final = 2
_EQUAL: Final = 0.97
"""A ratio that counts as equal: medians of the same measurement differ by as much."""
_MAX_TAIL: Final = 4.0
_MAX_FAILURE: Final = 1000
_ROOT: Final = Path(__file__).parents[1]
_HEADINGS: Final = (
    "contestant",
    "procs",
    "req/s",
    "ours is",
    "p50 ms",
    "p99 ms",
    "p99/p50",
    "errors",
    "server us",
    "database us",
    "client us",
    "others",
)
_BOUND_HEADINGS: Final = ("", "tenantry, req/s", "nginx, req/s", "tenantry is")
_TIME_HEADINGS: Final = ("", "server us", "interpreter", "", "libraries", "", "kernel", "")


class Target(NamedTuple):
    """A ratio to reach, and the measured one; None if it was not measured."""

    text: str
    found: float | None
    wanted: float
    is_maximum: bool = False

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of the table of targets."""
        wanted = f"{'<' if self.is_maximum else '>='} {self.wanted:g}"
        if self.found is None:
            return self.text, wanted, "-", "not measured"
        met = self.found < self.wanted if self.is_maximum else self.found >= self.wanted
        return self.text, wanted, f"{self.found:.2f}", "met" if met else "NOT MET"


def show(
    cases: Sequence[BenchCase],
    postgres: Mapping[str, str],
    rounds: int,
    run_seconds: int,
    total_seconds: float,
) -> None:
    """Print everything."""
    print(f"\n{_machine()}; wrk {_output('wrk', '-v').split(' [')[0].removeprefix('wrk ')}")
    print(f"PostgreSQL: {', '.join(f'{name} {value}' for name, value in postgres.items())}")
    print(
        f"commit {_output('git', 'describe', '--always', '--dirty') or 'unknown'}; "
        f"medians of {rounds} rounds of {run_seconds} s in turn; {total_seconds / 60:.0f} minutes in total"
    )
    print("'ours is': the figure of tenantry with one process, divided by that of the line")
    print(
        "'others': processor share of other programs; above a few percent the figures are unreliable"
    )
    for job in Job:
        for connections in sorted(
            {number for case in cases if case.job is job for number in case.figures}
        ):
            print(f"\n{job}, {connections} connection{'s' if connections > 1 else ''}")
            _print_table([_HEADINGS, *_rows(cases, job, connections)])
    _show_bound(cases)
    _show_time(cases)
    print("\nchecked")
    for case in cases:
        for found in case.checked:
            print(f"  {case.name}: {found}")
    print("\ncontestants")
    for name, case in {case.contestant.name: case for case in cases}.items():
        print(f"  {name}: {case.contestant.title}{f' ({case.versions})' if case.versions else ''}")
    print(f"\ntargets, at {CONNECTIONS} connections unless stated")
    _print_table(
        [("target", "wanted", "measured", ""), *(target.row for target in _targets(cases))]
    )
    for case in cases:
        if case.failure is not None:
            print(f"\nfailed: {case.name}: {case.failure[:_MAX_FAILURE]}")


def _show_bound(cases: Sequence[BenchCase]) -> None:
    rows = [_bound_row(cases, job) for job in Job]
    print(f"\ntenantry with one process beside a program in C, {CONNECTIONS} connections")
    print("  nginx: the same answer, without any work")
    _print_table([_BOUND_HEADINGS, *filter(None, rows)])


def _bound_row(cases: Sequence[BenchCase], job: Job) -> tuple[str, ...] | None:
    """Return the figure of a bound, and the share of it that was reached."""
    found, bound = _find(cases, NAME, job), _find(cases, NGINX, job)
    if found is None or bound is None:
        return None
    share = found.per_second / bound.per_second
    return f"{job}", f"{found.per_second:,.0f}", f"{bound.per_second:,.0f}", f"{share:.2f}"


def _show_time(cases: Sequence[BenchCase]) -> None:
    sampled = [case for case in cases if case.time_shares and _median(case, CONNECTIONS)]
    if sampled:
        print("\nwhat the processor time of a request runs, in the process of tenantry")
        _print_table([_TIME_HEADINGS, *map(_time_row, sampled)])


def _time_row(case: BenchCase) -> tuple[str, ...]:
    figure, shares = _median(case, CONNECTIONS), case.time_shares
    if figure is None or shares is None:
        return (case.job,)
    cells = [(f"{figure.server_us * share:.0f} us", f"{share:.0%}") for share in shares]
    return f"{case.job}", f"{figure.server_us:.0f}", *itertools.chain.from_iterable(cells)


def _median(case: BenchCase, connections: int) -> Figure | None:
    """Return the medians of the rounds; None if the case failed or was not measured so."""
    figures = case.figures.get(connections)
    if case.failure is not None or not figures:
        return None
    return Figure(*(statistics.median(column) for column in zip(*figures, strict=True)))


def _find(
    cases: Sequence[BenchCase],
    name: str,
    job: Job,
    processes: int = 1,
    connections: int = CONNECTIONS,
) -> Figure | None:
    for case in cases:
        if (case.contestant.name, case.job, case.processes) == (name, job, processes):
            return _median(case, connections)
    return None


def _rows(cases: Sequence[BenchCase], job: Job, connections: int) -> Iterator[tuple[str, ...]]:
    ours = _find(cases, NAME, job, connections=connections)
    for case in cases:
        found = _median(case, connections)
        if case.job is job and found is not None:
            yield (
                case.contestant.name,
                f"{case.processes}",
                f"{found.per_second:,.0f}",
                f"{ours.per_second / found.per_second:.2f} x" if ours and found.per_second else "",
                f"{found.p50_ms:.2f}",
                f"{found.p99_ms:.2f}",
                f"{_tail(found):.1f}",
                f"{sum(figure.rejected + figure.failed for figure in case.figures[connections])}",
                f"{found.server_us:.0f}",
                f"{found.database_us:.0f}",
                f"{found.client_us:.0f}",
                f"{found.others_share:.0%}",
            )


def _targets(cases: Sequence[BenchCase]) -> Iterator[Target]:
    for job, of_usual, of_fastest in ((Job.WEBHOOK, 15, 7), (Job.LIST, 8, 8)):
        ours = _find(cases, NAME, job)
        usual = _find(cases, _USUAL, job, _USUAL_PROCESSES)
        yield Target(
            f"{job}, of {_USUAL} with {_USUAL_PROCESSES} processes", _ratio(ours, usual), of_usual
        )
        yield _fastest_target(cases, job, of_fastest)
        tail = _tail(ours) if ours else None
        yield Target(f"{job}, p99 of p50", tail, _MAX_TAIL, is_maximum=True)
    for connections, share in ((CONNECTIONS, 0.5), (MANY_CONNECTIONS, 0.6)):
        ours = _find(cases, NAME, Job.WEBHOOK, connections=connections)
        bound = _find(cases, WITHOUT_DATABASE, Job.WEBHOOK, connections=connections)
        text = f"webhook, of the route without a database, {connections} connections"
        yield Target(text, _ratio(ours, bound), share)
    ours = _find(cases, NAME, Job.LIST)
    yield Target("list, of a constant", _ratio(ours, _find(cases, CONSTANT, Job.LIST)), 0.3)
    yield Target("verify, of the list", _ratio(_find(cases, NAME, Job.VERIFY), ours), _EQUAL)
    for algorithm, name in JWT.items():
        found = _find(cases, name, Job.LIST)
        yield Target(f"list by {algorithm} token, of the list by key", _ratio(found, ours), _EQUAL)


def _fastest_target(cases: Sequence[BenchCase], job: Job, wanted: float) -> Target:
    """Compare tenantry with the fastest peer, each with the number of processes that suits it."""
    ours, fastest = _fastest(cases, job, of_peers=False), _fastest(cases, job, of_peers=True)
    names = f"{ours.name} of the fastest peer{fastest.name}"
    return Target(f"{job},{names}", _ratio(ours.figure, fastest.figure), wanted)


class _Fastest(NamedTuple):
    name: str
    """For the text, with the number of processes; empty if nothing was measured."""
    figure: Figure | None


def _fastest(cases: Sequence[BenchCase], job: Job, *, of_peers: bool) -> _Fastest:
    found = [
        (figure.per_second, f" {case.contestant.name} ({case.processes})", figure)
        for case in cases
        if case.job is job and _competes(case, of_peers=of_peers)
        if (figure := _median(case, CONNECTIONS))
    ]
    _, name, figure = max(found, default=(0, "", None))
    return _Fastest(name, figure)


def _competes(case: BenchCase, *, of_peers: bool) -> bool:
    """Return whether a case is of a peer, or else of tenantry as it is usually configured."""
    if of_peers:
        return not isinstance(case.contestant, Tenantry | UpperBound)
    return case.contestant.name == NAME


def _ratio(found: Figure | None, other: Figure | None) -> float | None:
    return found.per_second / other.per_second if found and other and other.per_second else None


def _tail(figure: Figure) -> float:
    return figure.p99_ms / max(figure.p50_ms, 0.001)


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns: the first column left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  " + "  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())


def _machine() -> str:
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{found.group(1) if found else platform.machine()}, {os.cpu_count()} processors, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    )


def _output(*command: str) -> str:
    """Return what a command prints; nothing if it is missing."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip()
