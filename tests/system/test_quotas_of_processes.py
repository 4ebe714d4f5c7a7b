"""Quotas over several processes, some of which are killed: never more than the quota, and each
idempotency key once.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import psycopg
import pytest

from tests.support import figures
from tests.support.app import OPERATOR_TOKEN
from tests.support.database_link import database_link
from tests.support.deployment import Deployment, add_owner, deployed
from tests.support.postgres import as_url

LIMIT: Final = 1000
PROCESSES: Final = 4
WRITERS: Final = 8
CATALOG: Final = f"""
[[features]]
id = "exports"
type = "metered"
[[plans]]
id = "free"
[plans.features]
exports = {LIMIT}
"""
COUNTING: Final = f"""
[[features]]
id = "calls"
type = "metered"
counts = "requests"
[[plans]]
id = "free"
[plans.features]
calls = {LIMIT}
"""
CONSUME: Final = "/api/v1/entitlements/exports/consume"
GIVE_BACK: Final = "/api/v1/entitlements/exports/consumptions"
USED: Final = "SELECT coalesce((SELECT sum(used) FROM usage_counters), 0)"


class World(NamedTuple):
    """A database with the tenant acme, an OWNER key of it, and a folder for processes."""

    conninfo: str
    owner: str
    folder: Path

    @asynccontextmanager
    async def served(
        self, conninfo: str | None = None, catalog: str = CATALOG
    ) -> AsyncIterator[Deployment]:
        """One server process on the database, by way of this connection string."""
        (self.folder / "plans.toml").write_text(catalog)
        address = as_url(conninfo or self.conninfo)
        settings = {
            "WORKERS": "1",
            "TENANTRY_PLANS": "plans.toml",
            "OPERATOR_TOKEN": OPERATOR_TOKEN,
        }
        async with deployed(address, self.folder, credential=self.owner, **settings) as deployment:
            yield deployment

    async def value(self, statement: str) -> Any:
        async with await psycopg.AsyncConnection.connect(
            self.conninfo, autocommit=True
        ) as connection:
            row = await (await connection.execute(statement)).fetchone()
            return None if row is None else row[0]

    async def until(self, condition: str) -> None:
        """Wait until a query finds something."""
        while not await self.value(condition):
            pass


@pytest.fixture
async def world(conninfo: str, database_url: str, tmp_path: Path) -> World:
    return World(conninfo, await add_owner(database_url, tmp_path), tmp_path)


@asynccontextmanager
async def processes(world: World, catalog: str = CATALOG) -> AsyncIterator[list[Deployment]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(world.served(catalog=catalog)) for _ in range(PROCESSES)
        ]


async def consume(client: httpx2.AsyncClient, key: str, amount: int = 1) -> httpx2.Response:
    return await client.post(CONSUME, json={"amount": amount}, headers={"Idempotency-Key": key})


async def write(clients: list[httpx2.AsyncClient], name: str) -> list[int]:
    """Consume until the quota is exceeded, and go to the next process when one has gone; return
    what was used after each.
    """
    used: list[int] = []
    for number in count():
        key = f"{name}-{number}"
        try:
            answer = await consume(clients[0], key)
        except httpx2.TransportError:
            clients = clients[1:]
            answer = await consume(clients[0], key)  # whether the first one was counted or not
        if answer.status_code == 403:
            return used
        assert answer.status_code == 200, answer.text
        used.append(answer.json()["used"])
    raise AssertionError


async def write_all(deployments: list[Deployment]) -> list[int]:
    """Eight writers, two at each process."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(each.client()) for each in deployments]
        results = await asyncio.gather(
            *(
                write(clients[number % PROCESSES :] + clients[: number % PROCESSES], f"w{number}")
                for number in range(WRITERS)
            )
        )
    return [used for result in results for used in result]


async def test_writers_on_four_processes_get_exactly_the_quota(
    world: World, record_property: figures.RecordProperty
) -> None:
    async with processes(world) as deployments:
        accepted = await write_all(deployments)
    figures.record(
        record_property,
        f"quota of {LIMIT}, eight writers on four processes",
        {"accepted": len(accepted)},
        {"over the quota": max(0, len(accepted) - LIMIT)},
    )
    assert sorted(accepted) == list(range(1, LIMIT + 1))
    assert await world.value(USED) == LIMIT


async def test_killed_process_neither_allows_more_nor_loses_a_request(
    world: World, record_property: figures.RecordProperty
) -> None:
    async with processes(world) as deployments, asyncio.TaskGroup() as group:
        writing = group.create_task(write_all(deployments))
        await world.until(f"{USED} > 300")
        await deployments[0].command.end(signal.SIGKILL)
        await world.until(f"{USED} > 600")
        await deployments[1].command.end(signal.SIGKILL)
    accepted = writing.result()
    figures.record(
        record_property,
        f"quota of {LIMIT}, two of four processes killed",
        {"accepted": len(accepted)},
        {"over the quota": max(0, len(accepted) - LIMIT)},
    )
    assert sorted(accepted) == list(range(1, LIMIT + 1))
    assert await world.value(USED) == LIMIT


async def test_idempotency_key_counts_once_at_two_processes(world: World) -> None:
    async with (
        world.served() as one,
        world.served() as other,
        one.client() as first,
        other.client() as second,
    ):
        for number in range(30):
            answers = await asyncio.gather(
                *(consume(client, f"job-{number}", 3) for client in (first, second) * 3)
            )
            assert {answer.text for answer in answers} == {answers[0].text}
    assert await world.value(USED) == 90


@asynccontextmanager
async def killed(deployment: Deployment, world: World, condition: str) -> AsyncIterator[None]:
    """The process is killed as soon as a query finds something, which the block brings about; its
    request gets no answer.
    """

    async def kill() -> None:
        await world.until(condition)
        await deployment.command.end(signal.SIGKILL)

    async with asyncio.TaskGroup() as group:
        group.create_task(kill())
        with pytest.raises(httpx2.TransportError):
            yield


async def test_killed_after_the_commit_the_repeated_request_is_not_counted_again(
    world: World,
) -> None:
    async with (
        database_link(world.conninfo) as link,
        world.served(link.conninfo) as deployment,
        deployment.client() as client,
    ):
        link.hold_answers_after(b"INSERT INTO usage_counters")  # is sent with the commit
        async with killed(deployment, world, f"{USED} > 0"):
            await consume(client, "job", 5)
    async with world.served() as deployment, deployment.client() as client:
        assert (await consume(client, "job", 5)).json()["used"] == 5
    assert await world.value(USED) == 5


async def test_killed_before_the_commit_the_repeated_request_is_counted(world: World) -> None:
    lock = "SELECT pg_advisory_lock(hashtextextended('usage of acme live exports', 0))"
    waiting = "SELECT true FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    async with (
        world.served() as deployment,
        deployment.client() as client,
        await psycopg.AsyncConnection.connect(world.conninfo) as other,
    ):
        await other.execute(lock)
        async with killed(deployment, world, waiting):
            await consume(client, "job", 5)
    async with world.served() as deployment, deployment.client() as client:
        assert await world.value(USED) == 0
        assert (await consume(client, "job", 5)).json()["used"] == 5


def giving(deployment: Deployment) -> httpx2.AsyncClient:
    """A client of the operator, who acts for the tenant."""
    client = deployment.client(OPERATOR_TOKEN)
    client.headers["X-Act-As-Organization"] = "acme"
    return client


async def give_back(client: httpx2.AsyncClient, key: str) -> httpx2.Response:
    return await client.delete(f"{GIVE_BACK}/{key}")


async def test_two_processes_give_each_consumption_back_once(world: World) -> None:
    async with (
        world.served() as one,
        world.served() as other,
        giving(one) as first,
        giving(other) as second,
    ):
        await consume(first, "kept", 7)
        for number in range(20):
            key = f"job-{number}"
            await consume(first, key, 3)
            later = consume(second, f"later-{number}")
            answers = await asyncio.gather(
                later, *(give_back(client, key) for client in (first, second) * 3)
            )
            assert {answer.text for answer in answers[1:]} == {answers[1].text}
            assert (await consume(second, key, 3)).status_code == 409
    assert await world.value(USED) == 27


@pytest.mark.parametrize(
    ("last", "condition", "left"),
    [
        (b"UPDATE consumption_keys", "SELECT true FROM pg_stat_activity WHERE {}", 10),
        (b"COMMIT", "SELECT true FROM consumption_keys WHERE given_back IS NOT NULL", 5),
    ],
    ids=["before the commit", "after the commit"],
)
async def test_killed_process_gives_back_once(
    world: World, last: bytes, condition: str, left: int
) -> None:
    updated = "state = 'idle in transaction' AND query LIKE '%UPDATE consumption_keys%'"
    async with (
        database_link(world.conninfo) as link,
        world.served(link.conninfo) as deployment,
        giving(deployment) as client,
    ):
        for key in ("kept", "job"):
            await consume(client, key, 5)
        link.hold_answers_after(last)
        async with killed(deployment, world, condition.format(updated)):
            await give_back(client, "job")
    assert await world.value(USED) == left
    async with world.served() as deployment, giving(deployment) as client:
        for _ in range(2):
            assert (await give_back(client, "job")).json()["used"] == 5
    assert await world.value(USED) == 5


async def test_database_away_before_the_commit_gives_nothing_back(world: World) -> None:
    lock = "SELECT pg_advisory_lock(hashtextextended('usage of acme live exports', 0))"
    waiting = "SELECT true FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    async with (
        database_link(world.conninfo) as link,
        world.served(link.conninfo) as deployment,
        giving(deployment) as client,
    ):
        await consume(client, "job", 5)
        async with await psycopg.AsyncConnection.connect(world.conninfo) as other:
            await other.execute(lock)
            request = asyncio.create_task(give_back(client, "job"))
            await world.until(waiting)
            await link.cut()
            assert (await request).status_code == 503
        await link.restore()
        assert await world.value(USED) == 5
        async with asyncio.timeout(30):
            while (answer := await give_back(client, "job")).status_code == 503:
                pass
        assert (answer.status_code, answer.json()["used"]) == (200, 0)


async def accepted_requests(client: httpx2.AsyncClient) -> int:
    """How many requests a process accepts until the quota is exceeded, or the process has gone."""
    for number in count():
        try:
            answer = await client.get("/api/v1/auth/verify/-")
        except httpx2.TransportError:
            return number
        if answer.status_code == 403:
            return number
        assert answer.status_code == 200, answer.text
    raise AssertionError


async def test_killed_process_costs_at_most_a_hundredth_of_a_quota_of_requests(
    world: World, record_property: figures.RecordProperty
) -> None:
    async with processes(world, COUNTING) as deployments, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(each.client()) for each in deployments]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(accepted_requests(each)) for each in clients * 2]
            await world.until(f"{USED} > 500")
            await deployments[0].command.end(signal.SIGKILL)
        accepted = sum(task.result() for task in tasks)
    figures.record(
        record_property,
        f"quota of {LIMIT} requests, one of four processes killed",
        {"accepted": accepted},
        {"over the quota": max(0, accepted - LIMIT)},
    )
    # two requests may have been under way
    assert LIMIT - LIMIT // 100 - 2 <= accepted <= LIMIT
    assert await world.value(USED) == LIMIT
