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
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final, NamedTuple

import psycopg
import uvloop

from bench import support
from bench.soak_load import HOT, NO_ANSWER, OK, Load, Notes
from tenantry.db.database import Database
from tenantry.domain import api_keys
from tenantry.domain.access import Mode
from tenantry.kit.clock import system_clock
from tenantry.services.replay import ReplayService, Selection
from tenantry.settings import load_for_admin

PROCESSES: Final = 2
OWNERS: Final = 2
OPERATOR: Final = "operator-of-the-soak-0123456789abcdef"
SAMPLE: Final = 0.5
_ALLOWED: Final = {
    "event": {OK}, "twin": {OK}, "event again": {OK}, "list": {OK, 403}, "check": {OK, 403},
    "make key": {201}, "rotate key": {201}, "new key": {OK}, "revoke key": {204}, "revoked key": {401},
    "operator": {OK, 201},
}  # fmt: skip
"""The statuses of each kind of request; 403 is for the keys of suspended tenants."""


class Books(NamedTuple):
    """What the database says at the end."""

    entries: set[str]
    """Ids in the ledger."""
    outcomes: Counter[str]
    deadlocks: int
    commits: int
    differing: int
    """Tenants whose folded ledger is not what is stored."""
    folded: int


def main() -> None:
    """Load, run, check; exits with 1 where anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak")
    parser.add_argument("--minutes", type=float, default=10.0)
    seconds = parser.parse_args().minutes * 60
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as folder, support.database(Path(folder)) as conninfo:
        keys, port = support.load(conninfo), support.free_port()
        load = Load(port, keys, make_owners(conninfo), OPERATOR)
        service = support.service(port, conninfo, WORKERS=str(PROCESSES), OPERATOR_TOKEN=OPERATOR)
        with _counted_connections(conninfo) as connections, service:
            began = time.perf_counter()
            uvloop.run(load.run(asyncio.sleep(seconds)))
            took = time.perf_counter() - began
        books = uvloop.run(audit(conninfo))
    _print(load.notes, books, connections, took)


def make_owners(conninfo: str) -> list[str]:
    """OWNER keys of the first tenants."""
    secrets = [api_keys.compose_secret(Mode.LIVE, b"%032d" % number) for number in range(OWNERS)]
    with psycopg.connect(conninfo) as connection:
        for number, secret in enumerate(secrets):
            connection.execute(
                "INSERT INTO api_keys (id, org_id, digest, name, scopes, access_level, mode, start, last4, created_at, "
                "created_by) VALUES (%s, %s, %s, 'owner', '{*:*}', 'OWNER', 'live', %s, %s, now(), 'bench')",
                (
                    f"key_owner{number}", f"t{number}", api_keys.digest(secret.encode(), support.PEPPER.encode()),
                    *api_keys.shown_parts(secret),
                ),
            )  # fmt: skip
    return secrets


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


async def audit(conninfo: str) -> Books:
    """What the database says, once nothing is under way."""
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        rows = await (await connection.execute("SELECT id, outcome FROM billing_events")).fetchall()
        cursor = await connection.execute(
            "SELECT deadlocks, xact_commit FROM pg_stat_database WHERE datname = current_database()"
        )
        [(deadlocks, commits)] = await cursor.fetchall()
    entries = {str(event_id) for event_id, _ in rows}
    assert len(entries) == len(rows)
    database = Database(conninfo, pool_size=2)
    await database.open()
    try:
        policy = load_for_admin({}, needs_pepper=False).billing
        folded = differing = 0
        async with aclosing(ReplayService(database, policy, system_clock).run(Selection(), dry_run=True)) as chunks:
            async for chunk in chunks:
                folded += chunk.tenants
                differing += sum(not checked.is_right for checked in chunk.checked)
    finally:
        await database.close()
    return Books(entries, Counter(str(outcome) for _, outcome in rows), deadlocks, commits, differing, folded)


def _print(notes: Notes, books: Books, connections: Sequence[int], took: float) -> None:
    print(f"\n{PROCESSES} processes, {took / 60:.1f} minutes, {HOT} hot tenants of {support.TENANTS}")
    for kind, answers in sorted(notes.answers.items()):
        total = sum(answers.values())
        told = ", ".join(f"{status or 'none'}: {count:,}" for status, count in sorted(answers.items()))
        print(f"  {kind:12} {total:10,} {total / took:8,.0f}/s   {told}")
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
    if lost := notes.acknowledged - books.entries:
        yield f"{len(lost):,} events had a 200 and are not in the ledger, such as {min(lost)}"
    if strange := books.entries - notes.sent:
        yield f"{len(strange):,} entries of the ledger were never sent, such as {min(strange)}"
    if unacknowledged := books.entries - notes.acknowledged:
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
