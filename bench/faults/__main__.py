"""Inject faults while the service is under load: ``python -m bench.faults --kills 200``.

Afterwards every acknowledged event must be in the ledger once, and nothing else; states must equal the fold of the
ledger; every notification must have been mailed; and every key must be rejected after its revocation was answered. Name
one fault with ``--only``. With Debian's faketime it moves clocks; as root it fills disks.
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

from bench.faults.injuries import FAULTS, Fault
from bench.faults.report import summary, table, wrong
from bench.faults.run import Phase, run_phase
from bench.faults.site import Database

KILLS: Final = 22
TIMES: Final = 2
COMMITS: Final = ("on", "off", "local", "remote_write", "remote_apply")


def main() -> None:
    """Inflict, print, and exit with 1 where a promise was broken, or where nothing, or not all of --only, comes."""
    given = _arguments()
    # so that everything is ended whichever way this is
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    chance = random.Random(given.seed)  # noqa: S311  # no secret
    print(f"seed {given.seed}")
    if given.logs:
        given.logs.mkdir(parents=True, exist_ok=True)
    options = [f"synchronous_commit={given.commit}"]
    plan = _plan(given)
    inflicted = {fault.name for faults in plan.values() for fault in faults}
    if not inflicted:
        sys.exit("bench: there is nothing to inflict")
    if missing := set(given.only or ()) - inflicted:
        sys.exit(f"bench: not inflicted: {', '.join(sorted(missing))}")
    phases = uvloop.run(_run(plan, chance, options, given.logs))
    for phase in phases:
        print("\n".join(["", *summary(phase)]))
    print("\n".join(["", *table(phases)]))
    sys.exit(1 if any(wrong(phase) for phase in phases) else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.faults")
    parser.add_argument("--kills", type=int, default=KILLS, help="how many kill -9 there are, of all kinds together")
    parser.add_argument("--times", type=int, default=TIMES, help="how often each other fault comes")
    parser.add_argument("--only", action="append", choices=[fault.name for fault in FAULTS], help="this fault alone")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)), help="of everything that is random")
    parser.add_argument("--commit", choices=COMMITS, default="on", help="PostgreSQL's synchronous_commit")
    parser.add_argument("--logs", type=Path, help="a folder to keep all logs in")
    return parser.parse_args()


def _plan(given: argparse.Namespace) -> dict[Database, list[Fault]]:
    """Which faults come how often in which set-up."""
    chosen = [fault for fault in FAULTS if given.only is None or fault.name in given.only]
    for fault in chosen:
        if fault.hindrance:
            print(f"left out: {fault.name} {fault.hindrance}")
    possible = [fault for fault in chosen if not fault.hindrance]
    killing = [fault for fault in possible if fault.kills]
    faults = [killing[number % len(killing)] for number in range(given.kills if killing else 0)]
    faults += [fault for fault in possible if not fault.kills for _ in range(given.times)]
    return {kind: own for kind in Database if (own := [fault for fault in faults if fault.needs is kind])}


async def _run(
    plan: dict[Database, list[Fault]], chance: random.Random, options: Sequence[str], logs: Path | None
) -> list[Phase]:
    phases = []
    for kind, faults in plan.items():
        chance.shuffle(faults)
        phases.append(await run_phase(kind, faults, chance, options, logs))
    return phases


if __name__ == "__main__":
    main()
