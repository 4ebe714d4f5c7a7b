"""Measure strict checks on standbys: ``python -m bench.standbys --minutes 10``.

- ``faults``: keys are created, used at four processes, revoked, and tried at all of them right
  after the acknowledgement, while each fault is injected for so many minutes. No answer may
  contradict an acknowledged change.
- ``mistakes``: the same with the service of a copy of the code that has a deliberate mistake, one
  of `tests.faults`. Stale answers must be found.
- ``regions``: how long checks and revocations take with 80 ms between two regions.
- ``capacity``: the processor time of the primary and of standbys for a list.

Needs root, for network namespaces, and wrk.
"""

import argparse
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import uvloop

from bench.faults.__main__ import prepare
from bench.standbys import capacity, regions
from bench.standbys.deployment import PYTHON, StandbyDeployment
from bench.standbys.faults import FAULTS, REVEALING, StandbyFault
from bench.standbys.mistakes import MISTAKES, interpreter_with
from bench.standbys.report import details, table
from bench.standbys.run import MACHINES, StandbyResult, StandbyRun, running_site
from tests.system.machines.network import network

MINUTES: Final = 0.5
PAUSE: Final = 0.5
"""Mean of seconds between two requests of a client of the load."""
_CAPACITY_SECONDS: Final = 10.0


def main() -> None:
    """Run the chosen parts, and exit with 1 if one of them did not show what it must."""
    given = _arguments()
    if os.geteuid():
        sys.exit("bench: needs root, for network namespaces")
    chance = prepare(given.seed, given.logs)
    parts: dict[str, Callable[[argparse.Namespace, random.Random], bool]] = {
        "faults": _inject_faults,
        "mistakes": _make_mistakes,
        "regions": _measure_regions,
        "capacity": _measure_capacity,
    }
    shown = [parts[name](given, chance) for name in given.part or parts]
    sys.exit(0 if all(shown) else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.standbys")
    parser.add_argument(
        "--part",
        action="append",
        choices=["faults", "mistakes", "regions", "capacity"],
        help="this part only; may be repeated",
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="the time of each fault")
    parser.add_argument(
        "--fault",
        action="append",
        choices=[fault.name for fault in FAULTS],
        help="this fault only; may be repeated",
    )
    parser.add_argument(
        "--pause", type=float, default=PAUSE, help="seconds between the load's requests of a client"
    )
    parser.add_argument(
        "--seed", type=int, default=int.from_bytes(os.urandom(3)), help="repeats a run's choices"
    )
    parser.add_argument("--logs", type=Path, help="a folder to keep all logs in")
    return parser.parse_args()


def _inject_faults(given: argparse.Namespace, chance: random.Random) -> bool:
    """Inject each fault; return whether no answer was stale."""
    faults = _chosen(given, [fault.name for fault in FAULTS])
    results = _results(given, chance, faults, PYTHON)
    _print(table(results))
    return not any(result.stale for result in results)


def _make_mistakes(given: argparse.Namespace, chance: random.Random) -> bool:
    """Run the service with each mistake; return whether each led to stale answers."""
    found = []
    for mistake in MISTAKES:
        with interpreter_with(mistake) as python:
            results = _results(given, chance, _chosen(given, REVEALING), python)
        print(f"\nwith a mistake: {mistake}")
        _print(table(results))
        found.append(any(result.stale for result in results))
    return all(found)


def _chosen(given: argparse.Namespace, names: Sequence[str]) -> list[StandbyFault]:
    wanted = given.fault or names
    return [fault for fault in FAULTS if fault.name in wanted]


def _results(
    given: argparse.Namespace,
    chance: random.Random,
    faults: Sequence[StandbyFault],
    python: str,
) -> list[StandbyResult]:
    with network(MACHINES) as machines:  # moves this thread: the loop begins after that
        site = running_site(machines, given.logs, python)
        return uvloop.run(_run(site, faults, given.minutes * 60, chance, given.pause))


async def _run(
    running: AbstractAsyncContextManager[StandbyDeployment],
    faults: Sequence[StandbyFault],
    seconds: float,
    chance: random.Random,
    pause: float,
) -> list[StandbyResult]:
    results = []
    async with running as site:
        run = StandbyRun(site, chance, pause)
        async with run.loading():
            for fault in faults:
                result = await run.inject(fault, seconds)
                print("\n".join(details(result)), flush=True)
                results.append(result)
    return results


def _measure_regions(given: argparse.Namespace, chance: random.Random) -> bool:
    """Measure without and with a standby in the farther region."""
    measured = []
    for has_standby in (False, True):
        with network(regions.MACHINES) as machines:
            run = regions.measure(machines, chance, given.logs, has_standby=has_standby)
            measured.append(uvloop.run(run))
    _print(regions.table(measured))
    return True


def _measure_capacity(_: argparse.Namespace, __: random.Random) -> bool:
    """Measure with each number of standbys."""
    _print(capacity.table(capacity.measure(_CAPACITY_SECONDS)))
    return True


def _print(lines: Iterator[str]) -> None:
    print("\n".join(["", *lines]), flush=True)


if __name__ == "__main__":
    main()
