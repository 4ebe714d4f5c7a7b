"""Two service processes on one PostgreSQL under everything at once, and afterwards the books: ``--minutes 10``.

Four of five events are about ten of a thousand tenants; among them are late ones, twins sent at the same time, several
of one second, new customers' links, and tenants that are made later. Beside them keys are made, rotated and revoked,
lists and checks answered, and an operator renames, suspends and adds tenants. At the end everything that was answered
with 200 must be in the ledger once, and nothing else; no deadlock, no 5xx, no revoked key let in; and folding every
tenant's ledger again must find what is stored. The service logs to stderr.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psycopg
import uvloop

from bench import support
from bench.books import Books, read_books
from bench.soak_load import HOT, NO_ANSWER, OK, Load, Notes

PROCESSES: Final = 2
OWNERS: Final = ("t0", "t1")
OPERATOR: Final = "operator-of-the-soak-0123456789abcdef"
SAMPLE: Final = 0.5
_ALLOWED: Final = {
    "event": {OK}, "twin": {OK}, "event again": {OK}, "list": {OK}, "check": {OK},
    "suspended list": {OK, 403}, "suspended check": {OK, 403},
    "make key": {201}, "rotate key": {201}, "new key": {OK}, "revoke key": {204}, "revoked key": {401},
    "operator": {OK, 201},
}  # fmt: skip
"""The statuses of each kind of request; 403 is for the keys of tenants that may be suspended, and for no others."""


def main() -> None:
    """Load, run, check; exits with 1 where anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak")
    parser.add_argument("--minutes", type=float, default=10.0)
    seconds = parser.parse_args().minutes * 60
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as folder, support.database(Path(folder)) as conninfo:
        keys, port = support.load(conninfo), support.free_port()
        load = Load([port], keys, support.make_owners(conninfo, OWNERS), OPERATOR)
        service = support.service(port, conninfo, WORKERS=str(PROCESSES), OPERATOR_TOKEN=OPERATOR)
        with _counted_connections(conninfo) as connections, service:
            began = time.perf_counter()
            uvloop.run(_run(load, seconds))
            took = time.perf_counter() - began
        books = uvloop.run(read_books(conninfo))
    _print(load.notes, books, connections, took)


async def _run(load: Load, seconds: float) -> None:
    asyncio.get_running_loop().call_later(seconds, load.end)
    await load.run()


@contextlib.contextmanager
def _counted_connections(conninfo: str) -> Iterator[list[int]]:
    """How many connections the server has had, again and again for the length of the block, but for this one."""
    counts: list[int] = []
    ended = threading.Event()

    def look() -> None:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            while not ended.wait(SAMPLE):
                [(count,)] = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity "
                    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                ).fetchall()
                counts.append(int(count))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield counts
    finally:
        ended.set()
        thread.join()


def _print(notes: Notes, books: Books, connections: Sequence[int], took: float) -> None:
    print(f"\n{PROCESSES} processes, {took / 60:.1f} minutes, {HOT} hot tenants of {support.TENANTS}")
    for kind, answers in sorted(notes.answers.items()):
        total = sum(answers.values())
        told = ", ".join(f"{status or 'none'}: {count:,}" for status, count in sorted(answers.items()))
        print(f"  {kind:15} {total:10,} {total / took:8,.0f}/s   {told}; {notes.longest[kind]:.1f} s at most")
    print(f"events: {', '.join(f'{outcome} {count:,}' for outcome, count in books.outcomes.most_common())}")
    print(f"connections to PostgreSQL: {max(connections)} at most; transactions committed: {books.commits:,}")
    wrong = list(faults(notes, books))
    print(
        f"acknowledged {len(notes.acknowledged):,}, in the ledger {len(books.entries):,}; deadlocks {books.deadlocks}; "
        f"replay: {books.folded:,} tenants folded, {books.differing} differing"
    )
    for text in wrong:
        print(f"  WRONG: {text}")
    sys.exit(1 if wrong else 0)


def failed(notes: Notes) -> int:
    """How many requests had no answer, or not the one that they must have."""
    return sum(
        count for kind, answers in notes.answers.items() for status, count in answers.items()
        if status not in _ALLOWED[kind]
    )  # fmt: skip


def faults(notes: Notes, books: Books) -> Iterator[str]:
    """What is wrong, in words."""
    if lost := notes.acknowledged.keys() - books.entries:
        yield f"{len(lost):,} events had a 200 and are not in the ledger, such as {min(lost)}"
    if strange := books.entries - notes.sent:
        yield f"{len(strange):,} entries of the ledger were never sent, such as {min(strange)}"
    if unacknowledged := books.entries - notes.acknowledged.keys():
        yield f"{len(unacknowledged):,} entries of the ledger had no 200, such as {min(unacknowledged)}"
    for kind, answers in notes.answers.items():
        if others := {status: count for status, count in answers.items() if status not in _ALLOWED[kind]}:
            yield f"{kind}: {others}" + (" (0: no answer)" if NO_ANSWER in others else "")
    if books.deadlocks:
        yield f"{books.deadlocks} deadlocks"
    if books.differing:
        yield f"{books.differing} tenants are not what their ledger says"


if __name__ == "__main__":
    main()
