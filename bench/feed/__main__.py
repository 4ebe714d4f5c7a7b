"""Follow the feed while processes are killed: ``python -m bench.feed --minutes 5``.

Eight writers change keys, members, tenants and plans at three service processes. A follower stores
each event with its cursor. Meanwhile processes of the service, the follower and PostgreSQL are
killed, the synchronous standby is promoted, and transactions stay open. At the end the followed
events must be the committed ones, each once, in order, and one for each acknowledged change.

- ``synchronous``: as above.
- ``asynchronous``: failovers to a standby that lacks changes which the follower has seen.
- ``mistakes``: the same with the service of a copy of the code that has a deliberate mistake, one
  of `tests.faults`. That must break a promise.
"""

import argparse
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from bench.faults.__main__ import prepare
from bench.faults.deployment import DatabaseKind
from bench.feed.faults import ASYNCHRONOUS, OPEN, SYNCHRONOUS, FeedFault
from bench.feed.run import FOLLOWER_KILLED, SERVER_KILLED, FeedRun, run_feed
from bench.standbys.mistakes import interpreter_with

MINUTES: Final = 0.5
PAUSE: Final = 0.1
"""Mean of seconds between two changes of a writer."""
_HEAD: Final = (
    "run",
    "servers killed",
    "follower killed",
    "other faults",
    "acknowledged",
    "committed",
    "followed",
    "missing",
    "lost",
    "twice",
    "out of order",
    "not published",
    "versions reversed",
    "stale at the end",
)


class _Part(NamedTuple):
    kind: DatabaseKind
    faults: Sequence[FeedFault]


_PARTS: Final = {
    "synchronous": _Part(DatabaseKind.SYNCHRONOUS, SYNCHRONOUS),
    "asynchronous": _Part(DatabaseKind.ASYNCHRONOUS, ASYNCHRONOUS),
}
_MISTAKES: Final = {
    "the feed reads past running transactions": _Part(DatabaseKind.SYNCHRONOUS, (OPEN,)),
    "events after a failover are of the former epoch": _PARTS["asynchronous"],
}


def main() -> None:
    """Run the chosen parts, and exit with 1 if one of them did not show what it must."""
    given = _arguments()
    chance = prepare(given.seed, given.logs)
    chosen = given.part or [*_PARTS, "mistakes"]
    runs = {name: _run(_PARTS[name], given, chance) for name in _PARTS if name in chosen}
    mistaken = {}
    for mistake, part in _MISTAKES.items() if "mistakes" in chosen else ():
        with interpreter_with(mistake) as python:
            mistaken[mistake] = _run(part, given, chance, python)
    print("\n".join(["", *_table({**runs, **mistaken})]))
    is_right = not any(map(_is_broken, runs.values()))
    are_found = all(map(_is_broken, mistaken.values()))
    sys.exit(0 if is_right and are_found else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.feed")
    parser.add_argument(
        "--part",
        action="append",
        choices=[*_PARTS, "mistakes"],
        help="this part only; may be repeated",
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="the time of each run")
    parser.add_argument(
        "--pause", type=float, default=PAUSE, help="seconds between two changes of a writer"
    )
    parser.add_argument(
        "--seed", type=int, default=int.from_bytes(os.urandom(3)), help="repeats a run's choices"
    )
    parser.add_argument("--logs", type=Path, help="a folder to keep all logs in")
    return parser.parse_args()


def _run(
    part: _Part, given: argparse.Namespace, chance: random.Random, python: str = sys.executable
) -> FeedRun:
    run = run_feed(
        part.kind, part.faults, given.minutes * 60, chance, given.pause, given.logs, python
    )
    return uvloop.run(run)


def _is_broken(run: FeedRun) -> bool:
    """Whether a promise was broken: an asynchronous failover may lose what was acknowledged."""
    result = run.result
    always = result.missing, result.twice, result.unordered, run.has_expired
    unless_lost = result.lost, result.unpublished, result.reversed, result.stale
    is_synchronous = run.kind is DatabaseKind.SYNCHRONOUS
    return any(always) or (is_synchronous and any(unless_lost))


def _table(runs: Mapping[str, FeedRun]) -> Iterator[str]:
    """Return the runs in Markdown."""
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---" + "|---:" * (len(_HEAD) - 1) + "|"
    for name, run in runs.items():
        yield f"| {name} | {' | '.join(_cells(run))} |"


def _cells(run: FeedRun) -> Iterator[str]:
    killed = (SERVER_KILLED, FOLLOWER_KILLED)
    yield from (f"{run.injected[name]}" for name in killed)
    yield ", ".join(f"{name}: {n}" for name, n in run.injected.items() if name not in killed)
    yield f"{run.acknowledged:,}"
    yield from (f"{number:,}" for number in run.result)


if __name__ == "__main__":
    main()
