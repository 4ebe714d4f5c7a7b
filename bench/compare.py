"""Compare the service's hot paths with what people use today, and with upper bounds: ``python -m
bench.compare``.

Needs Debian's ``wrk``. Each contestant has its own database on one durable PostgreSQL, is checked,
and is then measured in turn while the others are idle. The load generator shares the machine, so
ratios carry over and absolute figures do not.
"""

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from bench import baselines, events, ours, report, upper_bounds
from bench.case import BenchCase
from bench.contestant import Contestant, Job
from bench.processor_time import ProfileError
from bench.support import Cluster, cluster
from bench.upper_bounds import UpperBound

_GROUPS: Final = ((Job.WEBHOOK,), (Job.LIST, Job.VERIFY))
"""Jobs whose servers run at the same time and are measured in turn."""
_WARM_UP_SECONDS: Final = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Install, start, check, measure, report."""
    options = _parse(arguments)
    if shutil.which("wrk") is None:
        sys.exit("bench: wrk is missing; install it with: apt-get install wrk")
    cases = _cases(options)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="tenantry-bench-") as name,
        cluster(Path(name) / "database") as postgres,
    ):
        for jobs in _GROUPS:
            if group := [case for case in cases if case.job in jobs]:
                _run_group(postgres, Path(name), group, options)
        settings = postgres.settings()
    report.show(cases, settings, options.rounds, options.seconds, time.monotonic() - began)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="measure these contestants only"
    )
    parser.add_argument(
        "--jobs", nargs="+", type=Job, default=list(Job), choices=list(Job), metavar="JOB"
    )
    parser.add_argument(
        "--connections", nargs="+", type=int, default=[1, 16, report.CONNECTIONS], metavar="N"
    )
    parser.add_argument("--seconds", type=int, default=3, help="length of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--changes", action="store_true", help="events that change the plan instead of renewals"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the service and upper bounds, one process, 64 connections",
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.only = options.only or [
            ours.NAME,
            ours.CORS,
            upper_bounds.WITHOUT_DATABASE,
            upper_bounds.CONSTANT,
            upper_bounds.NGINX,
        ]
        options.connections = [report.CONNECTIONS]
    return options


def _cases(options: argparse.Namespace) -> list[BenchCase]:
    """Install the chosen contestants; return the cases to measure."""
    contestants: list[Contestant | UpperBound] = [*ours.contestants(), *upper_bounds.servers()]
    if not options.quick:
        contestants += baselines.contestants()
    names = {contestant.name for contestant in contestants}
    if unknown := set(options.only) - names:
        sys.exit(f"bench: unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(names))}")
    cases = []
    for contestant in contestants:
        jobs = [job for job in contestant.jobs if job in options.jobs]
        if not jobs or (options.only and contestant.name not in options.only):
            continue
        processes = [1] if options.quick else contestant.processes
        prices = events.CHANGES if options.changes else events.RENEWALS
        own = [BenchCase(contestant, job, number, prices) for job in jobs for number in processes]
        print(f"installing {contestant.name}", flush=True)
        with own[0].attempt("installation"):
            own[0].versions = contestant.install()
        for case in own:
            case.versions, case.failure = own[0].versions, own[0].failure
        cases += own
    return cases


def _run_group(
    postgres: Cluster, folder: Path, cases: Sequence[BenchCase], options: argparse.Namespace
) -> None:
    """Start all servers, check them, measure them in turn, and check them again."""
    with contextlib.ExitStack() as stack:
        for number, case in enumerate(_working(cases)):
            print(f"starting {case.name}", flush=True)
            own = folder / f"{case.job}-{number}"
            own.mkdir()
            stack.callback(case.stop)
            with case.attempt("start"):
                case.start(postgres, f"bench_{case.job}_{number}", own)
        for case in _working(cases):
            with case.attempt("check"):
                case.check()
        with ThreadPoolExecutor(len(cases)) as pool:  # a contestant that caches takes a minute
            list(pool.map(_check_revocation, _working(cases)))
        for case in _working(cases):
            print(f"warming up {case.name}", flush=True)
            with case.attempt("warm-up"):
                case.warm_up(postgres, report.CONNECTIONS, _WARM_UP_SECONDS)
        for number in range(options.rounds):
            _run_round(postgres, cases, number, options)
        for case in _bounded(cases):
            _sample(postgres, case, options.seconds)
        for case in _working(cases):
            with case.attempt("check afterwards"):
                case.check_afterwards()


def _sample(postgres: Cluster, case: BenchCase, seconds: int) -> None:
    """Find out what runs in a server's process; say so if the machine does not tell."""
    print(f"sampling {case.name}", flush=True)
    try:
        case.sample(postgres, report.CONNECTIONS, seconds)
    except ProfileError as error:
        print(f"  not sampled: {error}", flush=True)


def _bounded(cases: Sequence[BenchCase]) -> list[BenchCase]:
    """Return the cases whose bounds are reported."""
    return [
        case for case in _working(cases) if (case.contestant.name, case.processes) == (ours.NAME, 1)
    ]


def _run_round(
    postgres: Cluster, cases: Sequence[BenchCase], number: int, options: argparse.Namespace
) -> None:
    for connections in sorted({*options.connections, report.MANY_CONNECTIONS}):
        for case in _working(cases):
            if connections not in options.connections and not _scales(case, options):
                continue
            with case.attempt(f"{connections} connections"):
                figure = case.measure(postgres, connections, options.seconds)
                print(
                    f"round {number + 1}, {connections:3} connections, {case.name}: "
                    f"{figure.per_second:,.0f}/s, p50 {figure.p50_ms:.2f} ms, p99 {figure.p99_ms:.2f} ms",
                    flush=True,
                )


def _scales(case: BenchCase, options: argparse.Namespace) -> bool:
    """Return whether to measure a case with the most connections too."""
    names, jobs = (ours.NAME, upper_bounds.WITHOUT_DATABASE), (Job.WEBHOOK, Job.LIST)
    return (
        not options.quick
        and case.processes == 1
        and case.contestant.name in names
        and case.job in jobs
    )


def _check_revocation(case: BenchCase) -> None:
    with case.attempt("revocation"):
        case.check_revocation()


def _working(cases: Sequence[BenchCase]) -> list[BenchCase]:
    return [case for case in cases if case.failure is None]


if __name__ == "__main__":
    main()
