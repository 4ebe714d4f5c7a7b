"""Torture a running deployment, and check what the service promises: ``python -m bench.torture
revocation``.

- ``revocation``: every acknowledged event is in the ledger once, and nothing else; states equal the
  fold of the ledger; every notification is mailed; and every key is rejected once its revocation is
  answered.
- ``feed``: a follower of the feed of changes gets the committed events, each once, in order, and
  one for each acknowledged change.
- ``standbys``: no check at a standby is answered from a state before an acknowledged change.

With ``--mistakes`` the service is a copy of the code that has a deliberate fault, one of
`tests.faults`, which must break a promise. Standbys need root, for network namespaces. With
Debian's faketime clocks are moved; as root disks are filled.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from bench.torture import feed, revocation, standbys
from bench.torture.deployment import (
    CLOCK_LIBRARIES,
    MACHINES,
    DatabaseKind,
    Deployment,
    running_deployment,
)
from bench.torture.disturbances import Disturbance
from bench.torture.mistakes import interpreter_with
from bench.torture.report import Report, printed
from bench.torture.run import Subject
from tests.system.machines.network import network

SUBJECTS: Final = {
    "revocation": revocation.SUBJECT,
    "feed": feed.SUBJECT,
    "standbys": standbys.SUBJECT,
}
TIMES: Final = 2
COMMITS: Final = ("on", "off", "local", "remote_write", "remote_apply")


class _Settings(NamedTuple):
    subject: Subject
    times: int
    chance: random.Random
    commit: str
    logs: Path | None


def main() -> None:
    """Torture, print, and exit with 1 if a promise was broken: with a mistake, if none was."""
    given = _arguments()
    # stops everything, as Ctrl-C does
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    print(f"seed {given.seed}", flush=True)
    if given.logs:
        given.logs.mkdir(parents=True, exist_ok=True)
    subject = SUBJECTS[given.subject]
    chance = random.Random(given.seed)  # noqa: S311  # no secret
    settings = _Settings(subject, given.times, chance, given.commit, given.logs)
    if given.mistakes:
        sys.exit(not all(_is_found(name, settings) for name in subject.mistakes))
    reports = [
        _torture(kind, chosen, settings)
        for kind, disturbances in subject.plan.items()
        if (chosen := [each for each in disturbances if given.only in (None, each.name)])
        and _can_run(kind)
    ]
    if not reports:
        sys.exit("bench: nothing to do here")
    print("\n".join(printed(reports)))
    sys.exit(any(report.violations for report in reports))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.torture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument(
        "--times", type=int, default=TIMES, help="how often to cause each disturbance"
    )
    parser.add_argument("--only", metavar="NAME", help="this disturbance only")
    parser.add_argument(
        "--mistakes", action="store_true", help="with each deliberate fault in the code instead"
    )
    parser.add_argument(
        "--seed", type=int, default=int.from_bytes(os.urandom(3)), help="repeats a run's choices"
    )
    parser.add_argument(
        "--commit", choices=COMMITS, default="on", help="PostgreSQL's synchronous_commit"
    )
    parser.add_argument("--logs", type=Path, help="a folder to keep all logs in")
    return parser.parse_args()


def _can_run(kind: DatabaseKind) -> bool:
    """Return whether a deployment can run here; say so if it can't."""
    obstacle = ""
    if kind in (DatabaseKind.FULL, DatabaseKind.STANDBYS) and os.geteuid():
        obstacle = "needs root"
    if kind is DatabaseKind.CLOCK and not CLOCK_LIBRARIES:
        obstacle = "needs Debian's faketime"
    if obstacle:
        print(f"left out: {kind}: {obstacle}")
    return not obstacle


def _is_found(mistake: str, settings: _Settings) -> bool:
    """Run the service with a mistake; return whether it broke a promise."""
    kind, disturbances = settings.subject.mistakes[mistake]
    with interpreter_with(mistake) as python:
        report = _torture(kind, disturbances, settings, python)
    print("\n".join(["", f"with a mistake: {mistake}", *printed([report])]), flush=True)
    return bool(report.violations)


def _torture(
    kind: DatabaseKind,
    disturbances: Sequence[Disturbance],
    settings: _Settings,
    python: str = sys.executable,
) -> Report:
    """Cause each of the disturbances so many times, in any order."""
    planned = [each for each in disturbances for _ in range(settings.times)]
    settings.chance.shuffle(planned)
    with contextlib.ExitStack() as stack:
        machines = None
        if kind is DatabaseKind.STANDBYS:  # moves this thread: the loop begins after that
            machines = stack.enter_context(network(MACHINES))
        site = running_deployment(
            kind,
            [f"synchronous_commit={settings.commit}"],
            settings.logs,
            network=machines,
            python=python,
            plans=settings.subject.plans,
        )
        return uvloop.run(_disturb(site, planned, settings))


async def _disturb(
    running: contextlib.AbstractAsyncContextManager[Deployment],
    planned: Sequence[Disturbance],
    settings: _Settings,
) -> Report:
    async with running as site:
        run = settings.subject.run(site, settings.chance)
        async with run.loading():
            for number, disturbance in enumerate(planned, start=1):
                print(
                    f"  {site.kind.name.lower()} {number}/{len(planned)}: {disturbance.name}",
                    flush=True,
                )
                await run.inject(disturbance)
        return await run.report()


if __name__ == "__main__":
    main()
