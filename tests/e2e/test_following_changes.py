"""Following changes while the processes of the service, and of the follower, are killed."""

import asyncio
import itertools
import signal
import sqlite3
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Final

import httpx2
import psycopg

from tenantry_sdk import AsyncTenantry, Backoff, ChangeEvent
from tests.support.app import OPERATOR_TOKEN
from tests.support.commands import Running, running
from tests.support.deployment import Deployment, deployed
from tests.support.documentation import block_of
from tests.support.ports import free_port

GUIDE: Final = "how-to/follow-changes.md"
QUICK: Final = Backoff(first=0.05, longest=0.2)

NEWER_EVENT: Final = """
INSERT INTO outbound_events (epoch, type, org_id, at, recorded_at, data)
SELECT epoch, 'tenant.updated', org_id, at, recorded_at, jsonb_set(data::jsonb, '{plan}', '"newer"')::json
  FROM outbound_events
 WHERE type = 'tenant.created' AND org_id = 'acme'
"""


class Site:
    """A service at an address that stays, whose process is started anew."""

    def __init__(self, database_url: str, folder: Path) -> None:
        self._database_url = database_url
        self._folder = folder
        self._port = str(free_port())
        self.url = f"http://127.0.0.1:{self._port}"

    def serving(self) -> AbstractAsyncContextManager[Deployment]:
        return deployed(
            self._database_url,
            self._folder,
            PORT=self._port,
            WORKERS="1",
            OPERATOR_TOKEN=OPERATOR_TOKEN,
        )

    def copying(self) -> AbstractAsyncContextManager[Running]:
        """The guide's program."""
        values = {"TENANTRY_BASE_URL": self.url, "OPERATOR_TOKEN": OPERATOR_TOKEN}
        return running(folder=self._folder, module="copy_tenants", **values)

    async def put(self, *tenants: str) -> None:
        """Create tenants."""
        async with self._client() as client:
            for tenant in tenants:
                body = {"name": tenant, "ownerEmail": "owner@x.example"}
                response = await client.put(f"/api/v1/tenants/{tenant}", json=body)
                assert response.status_code == 201, response.text

    async def end(self, tenant: str) -> None:
        """End a tenant."""
        async with self._client() as client:
            assert (await client.delete(f"/api/v1/tenants/{tenant}")).status_code == 204

    def _client(self) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, trust_env=False, timeout=30)


def copied(folder: Path) -> set[str]:
    """The tenants in the program's database."""
    with closing(sqlite3.connect(folder / "copy.db")) as database:
        return {row[0] for row in database.execute("SELECT id FROM tenants WHERE NOT is_ended")}


async def test_a_follower_outlasts_restarts_of_the_service(
    database_url: str, tmp_path: Path
) -> None:
    site = Site(database_url, tmp_path)
    client = AsyncTenantry(OPERATOR_TOKEN, base_url=site.url, backoff=QUICK)
    seen: list[ChangeEvent] = []

    async def follow(cursor: str) -> None:
        async for event in client.operator.events.follow(after=cursor, types=["tenant.created"]):
            seen.append(event)
            if event.org_id == "last":
                break

    async with client:
        async with site.serving() as service:
            start = (await client.operator.events.list(after="now")).next_cursor
            following = asyncio.create_task(follow(start))
            await site.put("a1", "a2")
            assert await service.command.end(signal.SIGTERM) == 0
        async with site.serving() as service:
            await site.put("b1", "b2")
            assert await service.command.end(signal.SIGKILL) == -signal.SIGKILL
        async with site.serving():
            await site.put("c1", "last")
            async with asyncio.timeout(60):
                await following
            listed = await client.operator.events.list(after=start, types=["tenant.created"])
    assert seen == listed.data
    assert [event.org_id for event in seen] == ["a1", "a2", "b1", "b2", "c1", "last"]


async def test_the_copy_of_the_guide_is_complete_whatever_is_killed(
    database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "copy_tenants.py").write_text(block_of(GUIDE, "import os\nimport sqlite3"))
    site = Site(database_url, tmp_path)
    numbers = itertools.count()
    async with site.serving() as service:
        await site.put("before", "gone")
        async with site.copying() as program:
            while "tenant.created" not in program.text["out"]:  # it may not have begun
                await site.put(f"first-{next(numbers)}")
            await program.end(signal.SIGKILL)
        await site.put("between")
        await site.end("gone")
        async with site.copying() as program:
            await program.until("tenant.ended gone", "out")
            await service.command.end(signal.SIGKILL)
            async with site.serving():
                await site.put("after")
                await program.until("tenant.created after", "out")
                async with AsyncTenantry(OPERATOR_TOKEN, base_url=site.url) as client:
                    tenants = {tenant.id async for tenant in client.operator.tenants.list()}
            assert "Traceback" not in program.text["err"]
    assert copied(tmp_path) == tenants
    assert {"before", "between", "after"} <= tenants


async def test_the_copy_of_the_guide_keeps_the_newest_state_whatever_the_order_of_the_feed(
    database_url: str, conninfo: str, tmp_path: Path
) -> None:
    """A transaction may get its id before another one, and change the tenant after it."""
    (tmp_path / "copy_tenants.py").write_text(block_of(GUIDE, "import os\nimport sqlite3"))
    site = Site(database_url, tmp_path)
    numbers = itertools.count()
    async with site.serving():
        async with site.copying() as program:
            while "tenant.created" not in program.text["out"]:  # it may not have begun
                await site.put(f"first-{next(numbers)}")
        with psycopg.connect(conninfo) as slow:
            slow.execute("SELECT pg_current_xact_id()")
            await site.put("acme")
            slow.execute(NEWER_EVENT)
        async with site.copying() as program:
            await program.until("tenant.created acme", "out")
            await site.put("last")
            await program.until("tenant.created last", "out")
    assert "tenant.updated acme\ntenant.created acme" in program.text["out"]
    with closing(sqlite3.connect(tmp_path / "copy.db")) as database:
        assert database.execute("SELECT plan FROM tenants WHERE id = 'acme'").fetchall() == [
            ("newer",)
        ]
