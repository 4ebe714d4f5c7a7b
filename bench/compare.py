"""Compare the service's hot paths with what people use today, and with a server in C: ``python -m
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
from pathlib import Path
from typing import Final

from bench import events, nginx, ours, peers, report
from bench.case import BenchCase
from bench.contestant import Contestant, Job
from bench.support import Cluster, cluster

_GROUPS: Final = ((Job.WEBHOOK,), (Job.LIST, Job.VERIFY), (Job.CONSUME,))
"""Jobs whose servers run at the same time and are measured in turn."""
_QUICK: Final = (ours.NAME, ours.CORS, nginx.NAME)
_WARM_UP_SECONDS: Final = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Install, start, check, measure, report."""
    options = _parse(arguments)
    if shutil.which("wrk") is None:
        sys.exit("bench: wrk is missing; install it with: apt-get install wrk")
    cases = [case for each in _chosen(options) for case in _installed(each, options)]
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="tenantry-bench-") as name,
        cluster(Path(name) / "database") as postgres,
    ):
        for jobs in _GROUPS:
            if group := [case for case in cases if case.job in jobs]:
                _run_group(postgres, Path(name), group, options)
        settings = postgres.settings()
    conditions = report.Conditions(
        settings, options.rounds, options.seconds, time.monotonic() - began
    )
    report.show(cases, conditions)


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
        "--quick", action="store_true", help="the service and nginx, one process, 64 connections"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.only = options.only or list(_QUICK)
        options.connections = [report.CONNECTIONS]
    return options


def _chosen(options: argparse.Namespace) -> list[Contestant]:
    """Return the contestants to measure."""
    known = {each.name: each for each in (*ours.contestants(), nginx.Nginx(), *peers.contestants())}
    if unknown := set(options.only) - known.keys():
        sys.exit(f"bench: unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    return [each for name, each in known.items() if not options.only or name in options.only]


def _installed(contestant: Contestant, options: argparse.Namespace) -> list[BenchCase]:
    """Install a contestant; return its cases."""
    processes = [1] if options.quick else contestant.processes
    prices = events.CHANGES if options.changes else events.RENEWALS
    jobs = [job for job in contestant.jobs if job in options.jobs]
    cases = [BenchCase(contestant, job, number, prices) for job in jobs for number in processes]
    if cases:
        print(f"installing {contestant.name}", flush=True)
        with cases[0].attempt("installation"):
            cases[0].versions = contestant.install()
        for case in cases:
            case.failure = cases[0].failure
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
        for case in _working(cases):
            print(f"warming up {case.name}", flush=True)
            with case.attempt("warm-up"):
                case.measure(postgres, report.CONNECTIONS, _WARM_UP_SECONDS)
        for number in range(1, 1 + options.rounds):
            for connections in options.connections:
                for case in _working(cases):
                    with case.attempt(f"{connections} connections"):
                        _run(postgres, case, connections, options.seconds)
            print(f"round {number} of {options.rounds}", flush=True)
        for case in _working(cases):
            with case.attempt("check afterwards"):
                case.check_afterwards()


def _run(postgres: Cluster, case: BenchCase, connections: int, seconds: int) -> None:
    """Measure, and keep and print the figure."""
    figure = case.measure(postgres, connections, seconds)
    case.figures.setdefault(connections, []).append(figure)
    latency = f"p50 {figure.p50_ms:.2f} ms, p99 {figure.p99_ms:.2f} ms"
    print(f"{case.name}, {connections}: {figure.per_second:,.0f}/s, {latency}", flush=True)


def _working(cases: Sequence[BenchCase]) -> list[BenchCase]:
    return [case for case in cases if case.failure is None]


if __name__ == "__main__":
    main()
