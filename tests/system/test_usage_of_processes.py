"""Usage over several processes: exact sums after a graceful stop, at most a minute's counts lost by
a kill, and no deadlocks.
"""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pytest

from tenantry.auth.usage_counting import UsageCounter
from tenantry.common.clock import system_clock
from tenantry.domain.usage import RequestOutcome
from tests.support import figures
from tests.support.deployment import Deployment, add_owner, deployed
from tests.support.patience import patient_database
from tests.support.postgres import as_url

PROCESSES: Final = 4
CONNECTIONS: Final = 4
"""To each process."""
REQUESTS: Final = 40_000
KEYS: Final = 10
PLANS: Final = '[[plans]]\nid = "free"\n'
SUMS: Final = """
SELECT key_id, outcome, sum(number)::bigint FROM {} WHERE key_id <> %s GROUP BY 1, 2
"""
ROUNDS: Final = 100
"""Writes of each process."""
ROWS: Final = 600


class Sent(NamedTuple):
    """A key, and the secret that requests have."""

    key_id: str
    secret: str


class World(NamedTuple):
    """A database with the tenant acme, its OWNER key, and a folder for processes."""

    conninfo: str
    owner: str
    folder: Path

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Deployment]:
        """One server process on the database, without limits."""
        (self.folder / "plans.toml").write_text(PLANS)
        settings = {"WORKERS": "1", "TENANTRY_PLANS": "plans.toml"}
        async with deployed(
            as_url(self.conninfo), self.folder, credential=self.owner, **settings
        ) as deployment:
            yield deployment

    async def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(
            self.conninfo, autocommit=True
        ) as connection:
            return await (await connection.execute(statement.encode(), values)).fetchall()

    async def sums(self, table: str) -> Counter[tuple[str, str]]:
        """What a table counts of the keys that sent requests, by key and outcome."""
        [(owner_id,)] = await self.rows("SELECT id FROM api_keys WHERE access_level = 'OWNER'")
        rows = await self.rows(SUMS.format(table), owner_id)
        return Counter({(key_id, outcome): number for key_id, outcome, number in rows})


@pytest.fixture
async def world(conninfo: str, database_url: str, tmp_path: Path) -> World:
    return World(conninfo, await add_owner(database_url, tmp_path), tmp_path)


async def make_keys(deployment: Deployment) -> list[Sent]:
    body = {"orgId": "acme", "name": "caller", "scopes": ["projects:read"]}
    async with deployment.client() as owner:
        made = [(await owner.post("/api/v1/api-keys", json=body)).json() for _ in range(KEYS)]
    return [Sent(key["id"], key["secret"]) for key in made]


async def send(deployment: Deployment, keys: list[Sent], number: int) -> Counter[tuple[str, str]]:
    """Send requests over one connection, a third of them without the scope; return what their
    answers say, by key and outcome.
    """
    host, _, port = deployment.base_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answered: Counter[tuple[str, str]] = Counter()
    for turn in range(number):
        key = keys[turn % len(keys)]
        scope = "other:read" if turn % 3 == 0 else "projects:read"
        writer.write(
            f"GET /api/v1/auth/verify/{scope} HTTP/1.1\r\nHost: {host}\r\n"
            f"Authorization: Bearer {key.secret}\r\n\r\n".encode()
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        [length] = [
            int(line.partition(":")[2])
            for line in head.splitlines()
            if line.startswith("content-length:")
        ]
        await reader.readexactly(length)
        outcome = {"200": "accepted", "403": "forbidden"}[head.split()[1]]
        answered[key.key_id, outcome] += 1
    writer.close()
    return answered


async def send_all(
    deployments: list[Deployment], keys: list[Sent], number: int
) -> Counter[tuple[str, str]]:
    """Send so many requests to all processes at once."""
    each = number // (len(deployments) * CONNECTIONS)
    results = await asyncio.gather(
        *(send(deployment, keys, each) for deployment in deployments for _ in range(CONNECTIONS))
    )
    return sum(results, Counter())


async def test_sums_are_exact_after_a_graceful_stop_of_four_processes(
    world: World, record_property: figures.RecordProperty
) -> None:
    async with AsyncExitStack() as stack:
        deployments = [await stack.enter_async_context(world.served()) for _ in range(PROCESSES)]
        keys = await make_keys(deployments[0])
        answered = await send_all(deployments, keys, REQUESTS)
        codes = [await each.command.end(signal.SIGTERM) for each in deployments]
    assert codes == [0] * PROCESSES
    assert answered.total() == REQUESTS
    for table in ("usage_hours", "usage_days"):
        counted = await world.sums(table)
        figures.record(
            record_property,
            f"usage of four processes, in {table}",
            {"requests": answered.total()},
            {"not counted": (answered - counted).total()},
        )
        assert counted == answered
    assert await world.rows("SELECT * FROM usage_writers") == []


async def test_a_killed_process_loses_only_what_it_counted_since_its_last_write(
    world: World,
) -> None:
    async with world.served() as deployment:
        keys = await make_keys(deployment)
        before = await send_all([deployment], keys, 400)
        async with asyncio.timeout(120):  # it writes after a minute
            while await world.sums("usage_hours") != before:
                pass
        await send_all([deployment], keys, 400)
        [(complete_until,)] = await world.rows("SELECT complete_until FROM usage_writers")
        await deployment.command.end(signal.SIGKILL)
    assert await world.sums("usage_hours") == before
    assert await world.rows("SELECT complete_until FROM usage_writers") == [(complete_until,)]


async def write_in_any_order(conninfo: str, seed: int) -> None:
    """Write the same rows as other processes do, each time in another order."""
    order = random.Random(seed)  # noqa: S311  # the same orders for the same seed
    keys = [f"key_{number:04}" for number in range(ROWS)]
    database = patient_database(conninfo, pool_size=1)
    await database.open()
    counter = UsageCounter(database, system_clock)
    for _ in range(ROUNDS):
        order.shuffle(keys)
        for key_id in keys:
            counter.count(("acme", key_id), RequestOutcome.ACCEPTED)
        await counter.write()
    await counter.close()
    await database.close()


async def test_four_writers_of_the_same_rows_never_deadlock(
    world: World, record_property: figures.RecordProperty
) -> None:
    async with asyncio.TaskGroup() as group:
        for seed in range(PROCESSES):
            group.create_task(write_in_any_order(world.conninfo, seed))
    [(number,)] = await world.rows("SELECT sum(number)::bigint FROM usage_hours")
    [(deadlocks,)] = await world.rows(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    figures.record(
        record_property,
        "usage of four writers",
        {"writes": PROCESSES * ROUNDS},
        {"deadlocks": deadlocks},
    )
    assert number == PROCESSES * ROUNDS * ROWS
    assert deadlocks == 0
