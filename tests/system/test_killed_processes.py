"""A server process killed during its work: no partial change, and no acknowledged change is
lost.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import psycopg
import pytest

from tests.support import events
from tests.support.commands import SECRETS
from tests.support.database_link import DatabaseLink, database_link
from tests.support.deployment import Deployment, add_owner, deployed
from tests.support.postgres import as_url
from tests.support.signing import deliver

KEYS = "/api/v1/api-keys"
UNLIMITED = '[[plans]]\nid = "free"\n'
"""A plan without a rate limit: no requests are counted, which would be committed too."""


class World(NamedTuple):
    """A database with the tenant acme, an OWNER key of it, and a folder for processes."""

    conninfo: str
    owner: str
    folder: Path

    @asynccontextmanager
    async def served(self, conninfo: str | None = None) -> AsyncIterator[Deployment]:
        """One server process on the database, by way of this connection string."""
        address = as_url(conninfo or self.conninfo)
        (self.folder / "plans.toml").write_text(UNLIMITED)
        settings = {"WORKERS": "1", "TENANTRY_PLANS": "plans.toml"}
        async with deployed(address, self.folder, credential=self.owner, **settings) as deployment:
            yield deployment

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(
            self.conninfo, autocommit=True
        ) as connection:
            return await (await connection.execute(statement)).fetchall()

    async def until(self, condition: str) -> None:
        """Wait until a query finds something."""
        while not await self.rows(condition):
            pass


@pytest.fixture
async def world(conninfo: str, database_url: str, tmp_path: Path) -> World:
    return World(conninfo, await add_owner(database_url, tmp_path), tmp_path)


@pytest.fixture
async def link(conninfo: str) -> AsyncIterator[DatabaseLink]:
    async with database_link(conninfo) as link:
        yield link


async def send(deployment: Deployment, event: dict[str, Any]) -> httpx2.Response:
    async with deployment.client("missing") as client:
        return await deliver(
            client, event, secret=SECRETS["PROVIDER_WEBHOOK_SECRET"], at=int(time.time())
        )


@asynccontextmanager
async def broken_off() -> AsyncIterator[None]:
    """A request in the block gets no answer."""
    with pytest.raises(httpx2.TransportError):
        yield


@asynccontextmanager
async def killed(deployment: Deployment, world: World, condition: str) -> AsyncIterator[None]:
    """The process is killed as soon as a query finds something, which the block brings about."""

    async def kill() -> None:
        await world.until(condition)
        await deployment.command.end(signal.SIGKILL)

    async with asyncio.TaskGroup() as group:
        group.create_task(kill())
        yield


BOTH = "SELECT (SELECT count(*) FROM billing_events), count(*) FROM notifications"
WAITING = (
    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


async def test_killed_before_the_commit_nothing_is_kept_and_the_next_delivery_counts(
    world: World,
) -> None:
    event = events.failed(customer="cus_acme", event_id="evt_failed")
    async with (
        world.served() as deployment,
        await psycopg.AsyncConnection.connect(world.conninfo) as other,
    ):
        await send_linking_event(deployment)
        await other.execute("SELECT FROM tenants FOR UPDATE")
        async with killed(deployment, world, WAITING), broken_off():
            await send(deployment, event)
    assert await world.rows(BOTH) == [(1, 0)]
    async with world.served() as deployment:
        assert (await send(deployment, event)).status_code == 200
    assert await world.rows(BOTH) == [(2, 1)]


async def test_killed_after_the_commit_the_next_delivery_changes_nothing(
    world: World, link: DatabaseLink
) -> None:
    event = events.failed(customer="cus_acme", event_id="evt_failed")
    async with world.served(link.conninfo) as deployment:
        await send_linking_event(deployment)  # making its connections ready is committed, too
        link.hold_answers_from(b"COMMIT")
        async with killed(deployment, world, "SELECT 1 FROM notifications"), broken_off():
            await send(deployment, event)
    assert await world.rows(BOTH) == [(2, 1)]
    async with world.served() as deployment:
        assert (await send(deployment, event)).status_code == 200
    assert await world.rows(BOTH) == [(2, 1)]


async def test_killed_after_a_key_was_made_its_maker_learns_of_it(
    world: World, link: DatabaseLink
) -> None:
    wish = {"orgId": "acme", "name": "lost", "scopes": ["projects:read"]}
    once = {"Idempotency-Key": "the-same"}
    made = "SELECT id FROM api_keys WHERE name = 'lost'"
    async with world.served(link.conninfo) as deployment, deployment.client() as client:
        link.hold_answers_from(b"COMMIT")
        async with killed(deployment, world, made), broken_off():
            await client.post(KEYS, json=wish, headers=once)
    [(key_id,)] = await world.rows(made)
    async with world.served() as deployment, deployment.client() as client:
        again = await client.post(KEYS, json=wish, headers=once)
        assert (again.status_code, again.json()["id"]) == (409, key_id)
        assert (await client.delete(f"{KEYS}/{key_id}")).status_code == 204


async def send_linking_event(deployment: Deployment) -> None:
    """Link the customer, so that a failed payment finds its tenant."""
    assert (
        await send(deployment, events.updated(org="acme", customer="cus_acme"))
    ).status_code == 200
