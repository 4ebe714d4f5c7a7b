"""Torture a running deployment, and check what the service promises: ``python -m bench.torture
revocation``.

- ``revocation``: every acknowledged event is in the ledger once, and nothing else; states equal the
  fold of the ledger; every notification is mailed; and every key is rejected once its revocation is
  answered.
- ``feed``: a follower of the feed of changes gets the committed events, each once, in order, and
  one for each acknowledged change.
- ``standbys``: no check at a standby is answered from a state before an acknowledged change.

With ``--mistakes`` the service is a copy of the code that has a deliberate fault, one of
`tests.faults`, which must break a promise. Standbys need root, for network namespaces.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from bench.torture import feed, revocation, standbys
from bench.torture.deployment import (
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
COMMITS: Final = ("on", "off", "local", "remote_write", "remote_apply")


def main() -> None:
    """Torture, print, and exit with 1 if a promise was broken: with a mistake, if none was."""
    given = _arguments()
    # stops everything, as Ctrl-C does
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    print(f"seed {given.seed}", flush=True)
    if given.logs:
        given.logs.mkdir(parents=True, exist_ok=True)
    chance = random.Random(given.seed)  # noqa: S311  # no secret
    if given.mistakes:
        sys.exit(not all(_is_found(name, given, chance) for name in given.subject.mistakes))
    reports = [
        _torture(kind, chosen, given, chance)
        for kind, disturbances in given.subject.plan.items()
        if (chosen := [each for each in disturbances if given.only in (None, each.name)])
    ]
    print("\n".join(printed(reports)))
    sys.exit(any(report.violations for report in reports))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.torture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--times", type=int, default=2, help="how often to cause each disturbance")
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
    given = parser.parse_args()
    name, given.subject = given.subject, SUBJECTS[given.subject]
    known = {each.name for own in given.subject.plan.values() for each in own}
    if given.only not in (None, *known):
        parser.error(f"no disturbance {given.only!r}; known: {', '.join(sorted(known))}")
    if name == "standbys" and os.geteuid():
        parser.error("standbys need root")
    return given


def _is_found(mistake: str, given: argparse.Namespace, chance: random.Random) -> bool:
    """Run the service with a mistake; return whether it broke a promise."""
    kind, disturbances = given.subject.mistakes[mistake]
    with interpreter_with(mistake) as python:
        report = _torture(kind, disturbances, given, chance, python=python)
    print("\n".join(["", f"with a mistake: {mistake}", *printed([report])]), flush=True)
    return bool(report.violations)


def _torture(
    kind: DatabaseKind,
    disturbances: Sequence[Disturbance],
    given: argparse.Namespace,
    chance: random.Random,
    *,
    python: str = sys.executable,
) -> Report:
    """Cause each of the disturbances so many times, in any order."""
    planned = [each for each in disturbances for _ in range(given.times)]
    chance.shuffle(planned)
    with contextlib.ExitStack() as stack:
        machines = None
        if kind is DatabaseKind.STANDBYS:  # moves this thread: the loop begins after that
            machines = stack.enter_context(network(MACHINES))
        site = running_deployment(
            kind,
            [f"synchronous_commit={given.commit}"],
            given.logs,
            network=machines,
            python=python,
            plans=given.subject.plans,
        )
        return uvloop.run(_disturb(site, planned, given.subject, chance))


async def _disturb(
    running: contextlib.AbstractAsyncContextManager[Deployment],
    planned: Sequence[Disturbance],
    subject: Subject,
    chance: random.Random,
) -> Report:
    async with running as site:
        run = subject.run(site, chance)
        async with run.loading():
            for number, disturbance in enumerate(planned, start=1):
                place = f"{site.kind.name.lower()} {number}/{len(planned)}"
                print(f"  {place}: {disturbance.name}", flush=True)
                await run.inject(disturbance)
        return await run.report()


if __name__ == "__main__":
    main()
