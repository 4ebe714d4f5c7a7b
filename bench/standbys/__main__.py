"""Inject faults while standbys check keys: ``python -m bench.standbys --minutes 10``.

Keys are created, used at four processes, revoked, and tried at all of them right after the
acknowledgement; no answer may contradict an acknowledged change. With ``--mistake NAME``, one of
`tests.faults`, the service runs from a copy of the code with that mistake, and stale answers must
be found. Needs root, for network namespaces.
"""

import argparse
import contextlib
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import uvloop

from bench.faults.__main__ import prepare
from bench.standbys.deployment import PYTHON, StandbyDeployment
from bench.standbys.faults import FAULTS, StandbyFault
from bench.standbys.report import details, table
from bench.standbys.run import MACHINES, StandbyResult, StandbyRun, running_site
from tests.faults import load_faults
from tests.faults.repository_copy import RepositoryCopy
from tests.system.machines.network import network

MINUTES: Final = 0.5
PAUSE: Final = 0.5
"""Mean of seconds between two requests of a client of the load."""


def main() -> None:
    """Inject, print, and exit with 1 if an answer was stale, or with a mistake if none was."""
    given = _arguments()
    if os.geteuid():
        sys.exit("bench: needs root, for network namespaces")
    chance = prepare(given.seed, given.logs)
    faults = [fault for fault in FAULTS if given.fault is None or fault.name in given.fault]
    with _service(given.mistake) as python, network(MACHINES) as machines:
        site = running_site(machines, given.logs, python)
        run = _run(site, faults, given.minutes * 60, chance, given.pause)
        results = uvloop.run(run)
    print("\n".join(["", *table(results)]))
    is_stale = any(result.stale for result in results)
    sys.exit(0 if is_stale is bool(given.mistake) else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.standbys")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="the time of each fault")
    parser.add_argument(
        "--fault",
        action="append",
        choices=[fault.name for fault in FAULTS],
        help="this fault only; may be repeated",
    )
    parser.add_argument(
        "--mistake", metavar="NAME", help="a fault of tests/faults/faults.toml, which must be found"
    )
    parser.add_argument(
        "--pause", type=float, default=PAUSE, help="seconds between the load's requests of a client"
    )
    parser.add_argument(
        "--seed", type=int, default=int.from_bytes(os.urandom(3)), help="repeats a run's choices"
    )
    parser.add_argument("--logs", type=Path, help="a folder to keep all logs in")
    return parser.parse_args()


@contextlib.contextmanager
def _service(mistake: str | None) -> Iterator[str]:
    """Yield the interpreter that runs the service, without a mistake or with one."""
    if mistake is None:
        yield PYTHON
        return
    chosen = [fault for fault in load_faults() if fault.name == mistake]
    if not chosen:
        sys.exit(f"bench: tests/faults/faults.toml has no fault {mistake!r}")
    with tempfile.TemporaryDirectory(prefix="tenantry-mistake-") as folder:
        copy = RepositoryCopy(Path(folder))
        with copy.applied(chosen[0]):
            yield copy.python


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


if __name__ == "__main__":
    main()
