"""Following changes while the processes of the service, and of the follower, are killed."""

import asyncio
import itertools
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Final

import psycopg
import pytest

from tenantry_sdk import AsyncTenantry, Backoff, ChangeEvent
from tests.sdk.sdk_support import Served, serving
from tests.support.app import OPERATOR_TOKEN
from tests.support.commands import Running, running
from tests.support.deployment import Deployment, deployed
from tests.support.documentation import block_of
from tests.support.ports import free_port
from tests.support.service import TENANTS, Caller

GUIDE: Final = "how-to/follow-changes.md"
QUICK: Final = Backoff(first=0.05, longest=0.2)

NEWER_EVENT: Final = """
INSERT INTO outbound_events (epoch, type, org_id, at, recorded_at, data)
SELECT epoch, 'tenant.updated', org_id, at, recorded_at, jsonb_set(data::jsonb, '{access,plan}', '"newer"')::json
  FROM outbound_events
 WHERE type = 'tenant.created' AND org_id = 'acme'
"""


async def put(operator: Caller, *tenants: str) -> None:
    """Create tenants."""
    for tenant in tenants:
        body = {"name": tenant, "ownerEmail": "owner@x.example"}
        answer = await operator.put(f"{TENANTS}/{tenant}", body)
        assert answer.status_code == 201, answer.text


async def test_a_follower_outlasts_restarts_of_the_service(
    database_url: str, tmp_path: Path
) -> None:
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    client = AsyncTenantry(OPERATOR_TOKEN, base_url=url, backoff=QUICK)
    seen: list[ChangeEvent] = []

    def started() -> AbstractAsyncContextManager[Deployment]:
        values = {"PORT": port, "WORKERS": "1", "OPERATOR_TOKEN": OPERATOR_TOKEN}
        return deployed(database_url, tmp_path, credential=OPERATOR_TOKEN, **values)

    async def put_at(service: Deployment, *tenants: str) -> None:
        async with service.client() as operator:
            await put(Caller(operator, service.credential), *tenants)

    async def follow(cursor: str) -> None:
        async for event in client.operator.events.follow(after=cursor, types=["tenant.created"]):
            seen.append(event)
            if event.org_id == "last":
                break

    async with client:
        async with started() as service:
            start = (await client.operator.events.list(after="now").first_page()).next_cursor
            following = asyncio.create_task(follow(start))
            await put_at(service, "a1", "a2")
            assert await service.command.end(signal.SIGTERM) == 0
        async with started() as service:
            await put_at(service, "b1", "b2")
            assert await service.command.end(signal.SIGKILL) == -signal.SIGKILL
        async with started() as service:
            await put_at(service, "c1", "last")
            async with asyncio.timeout(60):
                await following
            created = client.operator.events.list(after=start, types=["tenant.created"])
            listed = [event async for event in created]
    assert seen == listed
    assert [event.org_id for event in seen] == ["a1", "a2", "b1", "b2", "c1", "last"]


@pytest.fixture
async def served(conninfo: str) -> AsyncIterator[Served]:
    """The service in this process: only the follower is a process."""
    async with serving(conninfo) as served:
        yield served


def copying(served: Served, folder: Path) -> AbstractAsyncContextManager[Running]:
    """The guide's program."""
    (folder / "copy_tenants.py").write_text(block_of(GUIDE, "import sqlite3"))
    values = {"TENANTRY_BASE_URL": served.url, "TENANTRY_OPERATOR_TOKEN": OPERATOR_TOKEN}
    return running(folder=folder, module="copy_tenants", **values)


async def until_it_follows(program: Running, operator: Caller) -> None:
    """Create tenants until the program tells of one."""
    numbers = itertools.count()
    while "tenant.created" not in program.text["out"]:
        await put(operator, f"first-{next(numbers)}")


def copied(folder: Path) -> set[str]:
    """The tenants in the program's database."""
    with closing(sqlite3.connect(folder / "copy.db")) as database:
        return {row[0] for row in database.execute("SELECT id FROM tenants WHERE NOT is_ended")}


async def test_the_copy_of_the_guide_is_complete_though_it_is_killed(
    served: Served, tmp_path: Path
) -> None:
    operator = served.service.operator
    await put(operator, "before", "gone")
    async with copying(served, tmp_path) as program:
        await until_it_follows(program, operator)
        await program.end(signal.SIGKILL)
    await put(operator, "between")
    assert (await operator.delete(f"{TENANTS}/gone")).status_code == 204
    async with copying(served, tmp_path) as program:
        await program.until("tenant.ended gone", "out")
        await put(operator, "after")
        await program.until("tenant.created after", "out")
        async with AsyncTenantry(OPERATOR_TOKEN, base_url=served.url) as client:
            tenants = {tenant.id async for tenant in client.operator.tenants.list()}
    assert copied(tmp_path) == tenants
    assert {"before", "between", "after"} <= tenants


async def test_the_copy_of_the_guide_keeps_the_newest_state_whatever_the_order_of_the_feed(
    served: Served, conninfo: str, tmp_path: Path
) -> None:
    """A transaction may get its id before another one, and change the tenant after it."""
    operator = served.service.operator
    async with copying(served, tmp_path) as program:
        await until_it_follows(program, operator)
    with psycopg.connect(conninfo) as slow:
        slow.execute("SELECT pg_current_xact_id()")
        await put(operator, "acme")
        slow.execute(NEWER_EVENT)
    async with copying(served, tmp_path) as program:
        await program.until("tenant.created acme", "out")
        await put(operator, "last")
        await program.until("tenant.created last", "out")
    assert "tenant.updated acme\ntenant.created acme" in program.text["out"]
    with closing(sqlite3.connect(tmp_path / "copy.db")) as database:
        assert database.execute("SELECT plan FROM tenants WHERE id = 'acme'").fetchall() == [
            ("newer",)
        ]
