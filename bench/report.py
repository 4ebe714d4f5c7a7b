"""What a comparison came to: gathered, printed as tables, written as JSON and as charts."""

import os
import platform
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from bench import charts, targets
from bench.entrant import Entrant
from bench.limits import Limit
from bench.ours import Tenantry
from bench.pgbench import PgbenchFigure
from bench.results import Kind, Line, Measured, Report
from bench.wrk import Figure

_ROOT: Final = Path(__file__).parents[1]
_LONGEST_FAILURE: Final = 1000
_HEADINGS: Final = (
    "contestant", "procs", "req/s", "ours is", "p50 ms", "p99 ms", "p99/p50", "errors", "server us", "database us",
    "client us", "others", "MiB", "start s",
)  # fmt: skip


def collect(
    entrants: Sequence[Entrant],
    pgbench: Sequence[PgbenchFigure],
    postgres: Mapping[str, str],
    *,
    rounds: int,
    seconds: int,
    took: float,
) -> Report:
    """Everything that was found; ``took`` is how long the whole took, in seconds."""
    lines = [_line(entrant) for entrant in entrants]
    return Report(
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        machine=_machine(),
        tools={"wrk": _wrk_version(), "python": platform.python_version()},
        postgres=dict(postgres),
        rounds=rounds,
        seconds=seconds,
        took=took,
        lines=lines,
        pgbench=list(pgbench),
        targets=targets.judge(lines),
    )


def show(report: Report) -> None:
    """Print it."""
    print()
    print(f"{report.machine}; {', '.join(f'{tool} {version}' for tool, version in report.tools.items())}")
    print(f"PostgreSQL: {', '.join(f'{name} {value}' for name, value in report.postgres.items())}")
    print(
        f"commit {report.commit}; medians of {report.rounds} rounds of {report.seconds} s, everybody in turn; "
        f"{report.took / 60:.0f} minutes in all"
    )
    print("'ours is': how many times the figure of tenantry with one process is that of the line, same block")
    print(
        "'others' is what anybody else took of the processors meanwhile; with more than a few percent they say little"
    )
    for job, connections in report.blocks():
        print(f"\n{job}, {connections} connection{'s' if connections > 1 else ''}")
        _print_table([_HEADINGS, *_rows(report, job, connections)])
    if report.pgbench:
        print("\npgbench: the row work alone")
        rows = [
            (
                f"{row.job}, {row.group} in a transaction",
                f"{row.clients}",
                f"{row.per_second:,.0f}",
                f"{row.average_ms:.2f}",
            )
            for row in report.pgbench
        ]
        _print_table([("work", "clients", "events or lists/s", "transaction ms"), *rows])
    print("\nchecked")
    for line in report.lines:
        for found in line.checked:
            print(f"  {line.job} {line.name} ({line.processes}): {found}")
    print("\ncontestants")
    for name, line in {line.name: line for line in report.lines}.items():
        print(f"  {name}: {line.title}{f' ({line.versions})' if line.versions else ''}")
    print("\ntargets, at 64 connections where nothing else is said")
    _print_table(
        [("target", "wanted", "measured", ""), *((t.text, t.wanted, t.measured, t.verdict) for t in report.targets)],
        texts=1,
    )
    for line in report.lines:
        if line.failure is not None:
            print(f"\nfailed: {line.job} {line.name} ({line.processes}): {line.failure[:_LONGEST_FAILURE]}")


def write(report: Report, folder: Path) -> None:
    """Write it as JSON and as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    written = ["results.json"]
    for name, chart in charts.draw(report):
        (folder / name).write_text(chart)
        written.append(name)
    print(f"\nwritten to {folder}: {', '.join(written)}")


def _line(entrant: Entrant) -> Line:
    contestant = entrant.contestant
    kind = Kind.OURS if isinstance(contestant, Tenantry) else Kind.LIMIT if isinstance(contestant, Limit) else Kind.PEER
    return Line(
        name=contestant.name,
        title=contestant.title,
        kind=kind,
        job=entrant.job,
        processes=entrant.processes,
        versions=entrant.versions,
        failure=entrant.failure,
        checked=entrant.checked,
        revoked_after=entrant.revocation.seconds if entrant.revocation else None,
        start_seconds=entrant.start_seconds,
        idle_share=entrant.idle_share,
        memory_mib=entrant.memory_mib,
        measured=[_measured(connections, figures) for connections, figures in entrant.figures.items()],
    )


def _measured(connections: int, figures: Sequence[Figure]) -> Measured:
    return Measured(
        connections=connections,
        per_second=statistics.median(one.per_second for one in figures),
        p50_ms=statistics.median(one.p50_ms for one in figures),
        p99_ms=statistics.median(one.p99_ms for one in figures),
        server_us=statistics.median(one.server_us for one in figures),
        database_us=statistics.median(one.database_us for one in figures),
        client_us=statistics.median(one.client_us for one in figures),
        others_share=statistics.median(one.others_share for one in figures),
        errors=sum(one.refused + one.broken for one in figures),
        rounds=list(figures),
    )


def _rows(report: Report, job: str, connections: int) -> Iterator[tuple[str, ...]]:
    own = report.ours(job, connections)
    for line in report.lines:
        found = line.at(connections)
        if line.job == job and found is not None:
            yield (
                line.name,
                f"{line.processes}",
                f"{found.per_second:,.0f}",
                f"{own / found.per_second:.2f} x" if own and found.per_second else "",
                f"{found.p50_ms:.2f}",
                f"{found.p99_ms:.2f}",
                f"{found.p99_ms / max(found.p50_ms, 0.001):.1f}",
                f"{found.errors}",
                f"{found.server_us:.0f}",
                f"{found.database_us:.0f}",
                f"{found.client_us:.0f}",
                f"{found.others_share:.0%}",
                f"{line.memory_mib:.0f}",
                f"{line.start_seconds:.1f}",
            )


def _print_table(rows: Sequence[Sequence[str]], texts: int = 1) -> None:
    """Print rows in columns; the first ``texts`` columns flush left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if number < texts else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  " + "  ".join(cells).rstrip())


def _machine() -> str:
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{found.group(1) if found else platform.machine()}, {os.cpu_count()} processors, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}"
    )


def _commit() -> str:
    git = shutil.which("git")
    if git is None or not (_ROOT / ".git").exists():
        return "unknown"
    done = subprocess.run(
        [git, "describe", "--always", "--dirty"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _wrk_version() -> str:
    done = subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).split(" [")[0].removeprefix("wrk ")
