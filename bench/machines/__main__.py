"""Inject faults between several machines: ``python -m bench.machines``, as root, on Linux.

Each machine is a network namespace: two hosts of the service with a worker each, a balancer, a
primary, a standby, and the clients with the mail server and the provider. The load and the final
checks are those of `bench.faults`. Each host's readiness is polled once a second, and each host
gets revoked keys directly. Needs iproute2 and the balancer.
"""

import argparse
import asyncio
import os
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from bench.faults.__main__ import prepare
from bench.faults.deployment import DatabaseKind
from bench.faults.fault_types import InjectedFault
from bench.faults.report import summary, table, violations
from bench.faults.run import FaultRun, PhaseResult
from bench.machines.host_monitor import HostMonitor
from bench.machines.multi_host import MACHINES, running_machines
from bench.machines.network import Network, network
from bench.machines.network_faults import FAULTS
from tests.support.proxies import BALANCERS

_NAMES: Final = [fault.name for fault in FAULTS]


def main() -> None:
    """Inject, print, and exit with 1 if a promise was broken."""
    given = _arguments()
    if os.geteuid() or not shutil.which("ip") or not Path("/dev/net/tun").exists():
        sys.exit("bench: needs root, iproute2 and /dev/net/tun")
    chance = prepare(given.seed, given.logs)
    chosen = [fault for fault in FAULTS if fault.name in (given.only or _NAMES)] * given.times
    plan = {
        kind: own
        for kind in DatabaseKind
        if (own := [fault for fault in chosen if fault.needs is kind])
    }
    if not plan:
        sys.exit("bench: there is no fault to inject")
    with network(MACHINES) as machines:
        results = [
            uvloop.run(_run(kind, own, chance, machines, given.balancer, given.logs))
            for kind, own in plan.items()
        ]
    for phase, found in results:
        print("\n".join(["", *summary(phase), *(f"  WRONG: {text}" for text in found)]))
    print("\n".join(["", *table([phase for phase, _ in results])]))
    sys.exit(1 if any(found or violations(phase) for phase, found in results) else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.machines")
    parser.add_argument("--times", type=int, default=1, help="how often to inject each fault")
    parser.add_argument("--only", action="append", choices=_NAMES, help="this fault only")
    parser.add_argument("--balancer", choices=BALANCERS, default="haproxy")
    parser.add_argument(
        "--seed", type=int, default=int.from_bytes(os.urandom(3)), help="repeats a run's choices"
    )
    parser.add_argument("--logs", type=Path, help="a folder to keep all logs in")
    return parser.parse_args()


async def _run(
    kind: DatabaseKind,
    faults: Sequence[InjectedFault],
    chance: random.Random,
    machines: Network,
    balancer: str,
    logs: Path | None,
) -> tuple[PhaseResult, Sequence[str]]:
    async with running_machines(kind, machines, balancer, logs) as site:
        run = FaultRun(site, chance)
        monitor = HostMonitor(site, run, chance)
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(run.watch_mail()), group.create_task(monitor.run())]
            loading = group.create_task(run.load.run())
            await run.until_all_succeed(time.monotonic())
            for fault in faults:
                await run.inject(fault)
                result = run.faults[-1]
                print("\n  ".join(["", fault.name, *monitor.timeline(result, run.load.requests)]))
                print(
                    f"  every request succeeded again {result.recovered - result.ended:.1f} s later",
                    flush=True,
                )
            await run.end(loading)
            for task in watching:
                task.cancel()
        print(f"\nrevoked keys, directly at each host: {monitor.summary()}")
        return await run.result(), list(monitor.violations())


if __name__ == "__main__":
    main()
