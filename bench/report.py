"""Print the results of a comparison: tables, checks, goals and failures."""

import os
import platform
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench import ours
from bench.case import BenchCase
from bench.contestant import Job
from bench.wrk import Figure

CONNECTIONS: Final = 64
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
_GOAL_HEADINGS: Final = ("goal", "wanted", "measured", "")


class Conditions(NamedTuple):
    """How the comparison was run."""

    postgres: Mapping[str, str]
    """Settings of PostgreSQL."""
    rounds: int
    run_seconds: int
    total_seconds: float


class Goal(NamedTuple):
    """A ratio of requests a second to reach: of a contestant, to another one."""

    ours: tuple[str, Job]
    other: tuple[str, Job]
    wanted: float

    @property
    def text(self) -> str:
        """The names of both."""
        return f"{' '.join(self.ours)}, of {' '.join(self.other)}"


_EQUAL: Final = 0.97
"""A ratio that counts as equal: medians of the same measurement differ by as much."""
_GOALS: Final = (
    Goal((ours.NAME, Job.WEBHOOK), ("fastapi-orm", Job.WEBHOOK), 15),
    Goal((ours.NAME, Job.WEBHOOK), ("stripe-sync", Job.WEBHOOK), 7),
    Goal((ours.NAME, Job.LIST), ("fastapi-orm", Job.LIST), 8),
    Goal((ours.NAME, Job.LIST), ("better-auth-keys-cached", Job.LIST), 8),
    Goal((ours.NAME, Job.VERIFY), (ours.NAME, Job.LIST), _EQUAL),
    Goal((ours.RS256, Job.LIST), (ours.NAME, Job.LIST), _EQUAL),
)
"""Each contestant counts with the number of processes that answers most."""


def show(cases: Sequence[BenchCase], conditions: Conditions) -> None:
    """Print everything."""
    _show_conditions(conditions)
    for job in Job:
        _show_figures(job, [case for case in cases if case.job is job])
    print("\nchecked")
    for name, found in [(case.name, found) for case in cases for found in case.checked]:
        print(f"  {name}: {found}")
    print("\ncontestants")
    for case in filter(lambda case: case.versions, cases):
        print(f"  {case.contestant.name}: {case.contestant.title} ({case.versions})")
    print(f"\ngoals, at {CONNECTIONS} connections")
    _print_table([_GOAL_HEADINGS, *(_goal_row(cases, goal) for goal in _GOALS)])
    for case in filter(lambda case: case.failure, cases):
        print(f"\nfailed: {case.name}: {str(case.failure)[:_MAX_FAILURE]}")


def _show_figures(job: Job, cases: Sequence[BenchCase]) -> None:
    """Print a table for each number of connections."""
    for connections in sorted({number for case in cases for number in case.figures}):
        print(f"\n{job}, {connections} connection{'s' if connections > 1 else ''}")
        _print_table([_HEADINGS, *_rows(cases, connections)])


def _show_conditions(conditions: Conditions) -> None:
    postgres, rounds, run_seconds, total_seconds = conditions
    print(f"\n{_machine()}; wrk {_output('wrk', '-v').split(' [')[0].removeprefix('wrk ')}")
    print(f"PostgreSQL: {', '.join(f'{name} {value}' for name, value in postgres.items())}")
    commit = _output("git", "describe", "--always", "--dirty") or "unknown"
    how = f"medians of {rounds} rounds of {run_seconds} s in turn"
    print(f"commit {commit}; {how}; {total_seconds / 60:.0f} minutes in total")
    print("'ours is': the figure of tenantry with one process, divided by that of the line")
    print("nginx: the same answer, without any work")
    print(
        "'others': processor share of other programs; above a few percent the figures are unreliable"
    )


def _median(case: BenchCase, connections: int) -> Figure | None:
    """Return the medians of the rounds; None if the case failed or was not measured so."""
    figures = case.figures.get(connections)
    if case.failure is not None or not figures:
        return None
    return Figure(*(statistics.median(column) for column in zip(*figures, strict=True)))


def _rows(cases: Sequence[BenchCase], connections: int) -> Iterator[tuple[str, ...]]:
    usual = [case for case in cases if (case.contestant.name, case.processes) == (ours.NAME, 1)]
    reference = _median(usual[0], connections) if usual else None
    for case in cases:
        found = _median(case, connections)
        if found is None:
            continue
        ratio = f"{reference.per_second / found.per_second:.2f} x" if reference else ""
        errors = sum(figure.rejected + figure.failed for figure in case.figures[connections])
        yield (
            case.contestant.name,
            f"{case.processes}",
            f"{found.per_second:,.0f}",
            ratio,
            f"{found.p50_ms:.2f}",
            f"{found.p99_ms:.2f}",
            f"{found.p99_ms / max(found.p50_ms, 0.001):.1f}",
            f"{errors}",
            f"{found.server_us:.0f}",
            f"{found.database_us:.0f}",
            f"{found.client_us:.0f}",
            f"{found.others_share:.0%}",
        )


def _goal_row(cases: Sequence[BenchCase], goal: Goal) -> tuple[str, ...]:
    found, other = _best(cases, *goal.ours), _best(cases, *goal.other)
    if not (found and other):
        return goal.text, f"{goal.wanted:g}", "-", "not measured"
    ratio = found / other
    verdict = "met" if ratio >= goal.wanted else "NOT MET"
    return goal.text, f"{goal.wanted:g}", f"{ratio:.2f}", verdict


def _best(cases: Sequence[BenchCase], name: str, job: Job) -> float:
    """Return the most requests a second of a contestant; 0 if it was not measured."""
    own = [case for case in cases if (case.contestant.name, case.job) == (name, job)]
    found = filter(None, (_median(case, CONNECTIONS) for case in own))
    return max((figure.per_second for figure in found), default=0.0)


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
