"""Inject faults into a database that Patroni manages: ``python -m bench.patroni``, as root, on
Linux.

Each machine is a network namespace: three etcd, three PostgreSQL with Patroni, one with the
service, and the clients. The load and the final checks are those of `bench.faults`, with more
requests with revoked keys. Needs iproute2, and Debian's etcd-server, postgresql and haproxy.
"""

import argparse
import asyncio
import math
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from bench.faults.__main__ import prepare
from bench.faults.fault_types import InjectedFault
from bench.faults.report import summary, violations
from bench.faults.run import FaultRun
from bench.machines.network import Network, network
from bench.patroni.cluster import Programs
from bench.patroni.deployment import MACHINES, Way, running
from bench.patroni.patroni_faults import FAULTS
from bench.patroni.primary_monitor import PrimaryMonitor
from bench.patroni.results import MeasuredRun, measure, table
from bench.patroni.revocations import RevocationMonitor

_NAMES: Final = [fault.name for fault in FAULTS]
_REVOKED_KEY_CLIENTS: Final = 16
_JOBS_TIMEOUT: Final = 120.0
"""Seconds in which a worker requeues the jobs that it lost during a failover, and sends the last
mails.
"""


def main() -> None:
    """Inject, print, and exit with 1 if a promise was broken."""
    given = _arguments()
    try:
        programs = Programs.find()
    except LookupError as error:
        sys.exit(f"bench: {error}")
    chance = prepare(given.seed, given.logs)
    faults = [fault for fault in FAULTS if fault.name in (given.only or _NAMES)]
    ways = [Way(way) for way in given.way or list(Way)]
    runs = []
    with network(MACHINES) as machines:
        for way in ways:
            runs.append(uvloop.run(_run(way, faults, chance, machines, programs, given.logs)))
            print("\n".join(["", *table(runs[-1].faults), *runs[-1].violations]), flush=True)
    print("\n".join(["", *table([fault for run in runs for fault in run.faults])]))
    if given.results:
        given.results.write_bytes(msgspec.json.encode(runs))
    sys.exit(1 if any(run.violations for run in runs) else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.patroni")
    parser.add_argument("--only", action="append", choices=_NAMES, help="this fault only")
    parser.add_argument(
        "--way", action="append", choices=list(Way), help="this way to connect only"
    )
    parser.add_argument(
        "--seed", type=int, default=int.from_bytes(os.urandom(3)), help="repeats a run's choices"
    )
    parser.add_argument("--logs", type=Path, help="a folder to keep all logs in")
    parser.add_argument("--results", type=Path, help="a file for the results, as JSON")
    return parser.parse_args()


async def _run(
    way: Way,
    faults: Sequence[InjectedFault],
    chance: random.Random,
    machines: Network,
    programs: Programs,
    logs: Path | None,
) -> MeasuredRun:
    async with running(way, machines, programs, logs) as site:
        run = FaultRun(
            site, chance, revoked_key_clients=_REVOKED_KEY_CLIENTS, mail_timeout=_JOBS_TIMEOUT
        )
        run.steady = math.inf  # how long requests are rejected is measured
        primaries, revocations = PrimaryMonitor(site), RevocationMonitor(site, run.load, chance)
        async with asyncio.TaskGroup() as group:
            watching = [
                group.create_task(each)
                for each in (run.watch_mail(), primaries.run(), revocations.run())
            ]
            loading = group.create_task(run.load.run())
            await run.until_all_succeed(time.monotonic())
            for fault in faults:
                print(f"  {way}: {fault.name}", flush=True)
                await run.inject(fault)
            await run.end(loading)
            for task in watching:
                task.cancel()
        phase = await run.result()
        logged = site.worker_log.read_text(errors="replace")
    print("\n".join(["", *summary(phase)]))
    if site.watchdogs:
        resets = ", ".join(f"{name} {watchdog.resets}" for name, watchdog in site.watchdogs.items())
        print(f"  resets by watchdogs: {resets}")
    measured = [
        measure(fault, way, run.load.requests, primaries, revocations) for fault in run.faults
    ]
    found = [*violations(phase), *revocations.violations()]
    if tracebacks := logged.count("Traceback"):
        found.append(f"the worker logged {tracebacks} tracebacks")
    return MeasuredRun(measured, phase.acknowledged, found)


if __name__ == "__main__":
    main()
