"""Inject faults while the service is under load: ``python -m bench.faults --kills 200``.

Afterwards every acknowledged event must be in the ledger once, and nothing else; states must equal
the fold of the ledger; every notification must have been mailed; and every key must be rejected
after its revocation was answered. Name one fault with ``--only``. With Debian's faketime it moves
clocks; as root it fills disks.
"""

import argparse
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from bench.faults.deployment import DatabaseKind
from bench.faults.fault_types import FAULTS, InjectedFault
from bench.faults.report import summary, table, violations
from bench.faults.run import PhaseResult, run_phase

KILLS: Final = 22
TIMES: Final = 2
COMMITS: Final = ("on", "off", "local", "remote_write", "remote_apply")


def main() -> None:
    """Inject, print, and exit with 1 if a promise was broken or a chosen fault was not injected."""
    given = _arguments()
    chance = prepare(given.seed, given.logs)
    plan = _plan(given)
    injected = {fault.name for faults in plan.values() for fault in faults}
    if not injected:
        sys.exit("bench: there is no fault to inject")
    if missing := set(given.only or ()) - injected:
        sys.exit(f"bench: not injected: {', '.join(sorted(missing))}")
    phases = uvloop.run(_run(plan, chance, [f"synchronous_commit={given.commit}"], given.logs))
    for phase in phases:
        print("\n".join(["", *summary(phase)]))
    print("\n".join(["", *table(phases)]))
    sys.exit(1 if any(violations(phase) for phase in phases) else 0)


def prepare(seed: int, logs: Path | None) -> random.Random:
    """Print the seed, create the folder for logs, and treat SIGTERM like Ctrl-C so that everything
    is stopped.
    """
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    print(f"seed {seed}", flush=True)
    if logs:
        logs.mkdir(parents=True, exist_ok=True)
    return random.Random(seed)  # noqa: S311  # no secret


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.faults")
    parser.add_argument(
        "--kills", type=int, default=KILLS, help="the number of kill -9, of all kinds together"
    )
    parser.add_argument(
        "--times", type=int, default=TIMES, help="how often to inject each other fault"
    )
    parser.add_argument(
        "--only", action="append", choices=[fault.name for fault in FAULTS], help="this fault only"
    )
    parser.add_argument(
        "--seed", type=int, default=int.from_bytes(os.urandom(3)), help="repeats a run's choices"
    )
    parser.add_argument(
        "--commit", choices=COMMITS, default="on", help="PostgreSQL's synchronous_commit"
    )
    parser.add_argument("--logs", type=Path, help="a folder to keep all logs in")
    return parser.parse_args()


def _plan(given: argparse.Namespace) -> dict[DatabaseKind, list[InjectedFault]]:
    """Choose the faults of each deployment."""
    chosen = [fault for fault in FAULTS if given.only is None or fault.name in given.only]
    for fault in chosen:
        if fault.obstacle:
            print(f"left out: {fault.name} {fault.obstacle}")
    possible = [fault for fault in chosen if not fault.obstacle]
    killing = [fault for fault in possible if fault.kills]
    faults = [killing[number % len(killing)] for number in range(given.kills if killing else 0)]
    faults += [fault for fault in possible if not fault.kills for _ in range(given.times)]
    return {
        kind: own
        for kind in DatabaseKind
        if (own := [fault for fault in faults if fault.needs is kind])
    }


async def _run(
    plan: dict[DatabaseKind, list[InjectedFault]],
    chance: random.Random,
    options: Sequence[str],
    logs: Path | None,
) -> list[PhaseResult]:
    phases = []
    for kind, faults in plan.items():
        chance.shuffle(faults)
        phases.append(await run_phase(kind, faults, chance, options, logs))
    return phases


if __name__ == "__main__":
    main()
