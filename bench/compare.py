"""The comparison: both hot paths of the service beside what people use today, and beside what cannot be passed.

``python -m bench.compare`` needs Debian's ``wrk``; everything else it gets for itself. Every contestant has a database
of its own on one PostgreSQL with its usual durability, is checked to do the work, and is then measured in turn with
the others, everybody else idle. All share one machine, load generator included: absolute figures are this machine's,
the ratios are what holds.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from bench import baselines, limits, ours, pgbench, report, support
from bench.cluster import Cluster, cluster
from bench.contestant import Contestant, Job
from bench.entrant import Entrant
from bench.limits import Limit
from bench.pgbench import PgbenchError, PgbenchFigure

MOST_CONNECTIONS: Final = 256
"""Tried with ours and with its route without a database alone."""
USUAL_CONNECTIONS: Final = 64
_GROUPS: Final = ((Job.WEBHOOK,), (Job.LIST, Job.VERIFY))
"""Jobs whose servers run at the same time and are measured in turn."""
_WARM_UP_SECONDS: Final = 2
_IDLE_SECONDS: Final = 2.0


class Options(argparse.Namespace):
    """What is to be measured, and how."""

    only: list[str]
    jobs: list[Job]
    connections: list[int]
    seconds: int
    rounds: int
    quick: bool
    pgbench: bool
    out: Path


def main(arguments: Sequence[str] | None = None) -> None:
    """Install, start, check, measure, report."""
    options = _parse(arguments)
    support.require_wrk()
    entrants = _entrants(options)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as name, cluster(Path(name) / "database") as postgres:
        folder = Path(name)
        rows = _pgbench(postgres, folder, options) if options.pgbench else []
        for jobs in _GROUPS:
            if group := [entrant for entrant in entrants if entrant.job in jobs]:
                _run_group(postgres, folder, group, options)
        settings = postgres.settings()
    measured = report.collect(
        entrants, rows, settings, rounds=options.rounds, seconds=options.seconds, took=time.monotonic() - began
    )
    report.show(measured)
    report.write(measured, options.out)


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these contestants, by name")
    parser.add_argument("--jobs", nargs="+", type=Job, default=list(Job), choices=list(Job), metavar="JOB")
    parser.add_argument("--connections", nargs="+", type=int, default=[1, 16, USUAL_CONNECTIONS], metavar="N")
    parser.add_argument("--seconds", type=int, default=3, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="ours, one process, and the limits alone; 64 connections")
    parser.add_argument("--no-pgbench", dest="pgbench", action="store_false", help="leave PostgreSQL's own limits out")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", metavar="FOLDER")
    options = parser.parse_args(arguments, Options())
    if options.quick:
        options.only = options.only or [ours.NAME, limits.WITHOUT_DATABASE, limits.CONSTANT]
        options.connections, options.pgbench = [USUAL_CONNECTIONS], False
    return options


def _entrants(options: Options) -> list[Entrant]:
    """Whoever takes part, installed."""
    everybody: list[Contestant | Limit] = [*ours.contestants(), *limits.servers()]
    if not options.quick:
        everybody += baselines.contestants()
    names = {contestant.name for contestant in everybody}
    if unknown := set(options.only) - names:
        sys.exit(f"bench: there is no {', '.join(sorted(unknown))}; there are: {', '.join(sorted(names))}")
    entrants = []
    for contestant in everybody:
        jobs = [job for job in contestant.jobs if job in options.jobs]
        if not jobs or (options.only and contestant.name not in options.only):
            continue
        processes = [1] if options.quick else contestant.processes
        lines = [Entrant(contestant, job, number) for job in jobs for number in processes]
        print(f"installing {contestant.name}", flush=True)
        with lines[0].attempt("installation"):
            lines[0].versions = contestant.install()
        for line in lines:
            line.versions, line.failure = lines[0].versions, lines[0].failure
        entrants += lines
    return entrants


def _pgbench(postgres: Cluster, folder: Path, options: Options) -> list[PgbenchFigure]:
    print("pgbench", flush=True)
    try:
        rows = pgbench.measure(postgres, folder, rounds=options.rounds, seconds=options.seconds)
    except PgbenchError as error:
        print(f"  left out: {error}")
        return []
    return [row for row in rows if row.job in options.jobs]


def _run_group(postgres: Cluster, folder: Path, entrants: Sequence[Entrant], options: Options) -> None:
    """Start them all, check them, measure them in turn, check them again."""
    with contextlib.ExitStack() as stack:
        for number, entrant in enumerate(_taking_part(entrants)):
            print(f"starting {entrant.name}: {entrant.job}", flush=True)
            own = folder / f"{entrant.job}-{number}"
            own.mkdir()
            stack.callback(_stop, entrant)
            with entrant.attempt("start"):
                entrant.start(postgres, f"bench_{entrant.job}_{number}", own)
        for entrant in _taking_part(entrants):
            with entrant.attempt("check"):
                entrant.check()
        _check_revocations(_taking_part(entrants))
        for entrant in _taking_part(entrants):
            with entrant.attempt("idle"):
                entrant.watch_idle(_IDLE_SECONDS / len(entrants))
        for entrant in _taking_part(entrants):
            print(f"warming up {entrant.name}: {entrant.job}", flush=True)
            with entrant.attempt("warm-up"):
                entrant.warm_up(postgres, USUAL_CONNECTIONS, _WARM_UP_SECONDS)
        for number in range(options.rounds):
            _run_round(postgres, entrants, number, options)
        for entrant in _taking_part(entrants):
            with entrant.attempt("check afterwards"):
                entrant.check_afterwards()


def _run_round(postgres: Cluster, entrants: Sequence[Entrant], number: int, options: Options) -> None:
    for connections in sorted({*options.connections, MOST_CONNECTIONS}):
        for entrant in _taking_part(entrants):
            if connections not in options.connections and not _goes_on(entrant, options):
                continue
            with entrant.attempt(f"{connections} connections"):
                figure = entrant.measure(postgres, connections, options.seconds)
                print(
                    f"round {number + 1}, {connections:3} connections, {entrant.job} {entrant.name}: "
                    f"{figure.per_second:,.0f}/s, p50 {figure.p50_ms:.2f} ms, p99 {figure.p99_ms:.2f} ms",
                    flush=True,
                )


def _goes_on(entrant: Entrant, options: Options) -> bool:
    """Whether it is one of the two that are measured at the most connections."""
    return (
        not options.quick
        and entrant.processes == 1
        and entrant.contestant.name in (ours.NAME, limits.WITHOUT_DATABASE)
        and entrant.job in (Job.WEBHOOK, Job.LIST)
    )


def _check_revocations(entrants: Sequence[Entrant]) -> None:
    """All at once: one that revokes late is tried for a minute."""

    def check(entrant: Entrant) -> None:
        with entrant.attempt("revocation"):
            entrant.check_revocation()

    if entrants:
        with ThreadPoolExecutor(len(entrants)) as pool:
            list(pool.map(check, entrants))


def _taking_part(entrants: Sequence[Entrant]) -> list[Entrant]:
    return [entrant for entrant in entrants if entrant.failure is None]


def _stop(entrant: Entrant) -> None:
    """Its figures stand, whatever goes wrong now."""
    try:
        entrant.stop()
    except Exception as error:  # noqa: BLE001  # the others have to be stopped too
        print(f"  {entrant.name} does not stop: {error}", flush=True)


if __name__ == "__main__":
    main()
