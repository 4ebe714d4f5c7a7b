"""Several machines, and what fails between them: ``python -m bench.machines``, as root, on Linux.

Each machine is a network namespace: two hosts of the service with a worker each, a balancer, a primary, a standby, and
the outside with the callers, the mail server and the provider. Under the load of `bench.faults` one fault comes after
the other; which there are is in `injuries`, ``--only`` takes one. Each host is asked for its readiness once a second,
and again and again whether it lets in keys whose revocation was answered. Afterwards the books must be right, as in
`bench.faults`. Needs iproute2, and the balancer (``--balancer``).
"""

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from bench.faults.injuries import Fault
from bench.faults.report import summary, table, wrong
from bench.faults.run import Phase, Trial
from bench.faults.site import Database
from bench.machines.injuries import FAULTS
from bench.machines.network import Network, network
from bench.machines.site import MACHINES, running_machines
from bench.machines.witness import Witness
from tests.support.proxies import BALANCERS

_NAMES: Final = [fault.name for fault in FAULTS]


def main() -> None:
    """Inflict, print, and exit with 1 where a promise was broken."""
    given = _arguments()
    if os.geteuid() or not shutil.which("ip") or not Path("/dev/net/tun").exists():
        sys.exit("bench: needs root, iproute2 and /dev/net/tun")
    # so that everything is ended whichever way this is
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    chance = random.Random(given.seed)  # noqa: S311  # no secret
    print(f"seed {given.seed}", flush=True)
    if given.logs:
        given.logs.mkdir(parents=True, exist_ok=True)
    chosen = [fault for fault in FAULTS if fault.name in (given.only or _NAMES)] * given.times
    plan = {kind: own for kind in Database if (own := [fault for fault in chosen if fault.needs is kind])}
    if not plan:
        sys.exit("bench: there is nothing to inflict")
    with network(MACHINES) as machines:
        ended = [
            uvloop.run(_run(kind, own, chance, machines, given.balancer, given.logs)) for kind, own in plan.items()
        ]
    for phase, found in ended:
        print("\n".join(["", *summary(phase), *(f"  WRONG: {text}" for text in found)]))
    phases = [phase for phase, _ in ended]
    print("\n".join(["", *table(phases)]))
    sys.exit(1 if any(found or wrong(phase) for phase, found in ended) else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.machines")
    parser.add_argument("--times", type=int, default=1, help="how often each fault comes")
    parser.add_argument("--only", action="append", choices=_NAMES, help="this fault alone")
    parser.add_argument("--balancer", choices=BALANCERS, default="haproxy")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)), help="of everything that is random")
    parser.add_argument("--logs", type=Path, help="a folder to keep all logs in")
    return parser.parse_args()


async def _run(
    kind: Database, faults: Sequence[Fault], chance: random.Random, machines: Network, balancer: str, logs: Path | None
) -> tuple[Phase, Sequence[str]]:
    async with running_machines(kind, machines, balancer, [], logs) as site:
        trial = Trial(site, chance)
        witness = Witness(site, trial, chance)
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(trial.watch_mail()), group.create_task(witness.run())]
            loading = group.create_task(trial.load.run())
            await trial.until_all_succeed(time.monotonic())
            for fault in faults:
                await trial.inflict(fault)
                _print(trial, witness)
            trial.load.end()
            await loading
            await trial.settle()
            for task in watching:
                task.cancel()
        print(f"\nrevoked keys, at each host itself: {witness.told()}")
        return await trial.result(), list(witness.wrong())


def _print(trial: Trial, witness: Witness) -> None:
    instance = trial.instances[-1]
    print(f"\n{instance.fault.name}")
    for line in witness.timeline(instance, trial.timeline.moments):
        print(f"  {line}")
    print(f"  all was answered again {instance.recovered - instance.ended:.1f} s after its end", flush=True)


if __name__ == "__main__":
    main()
