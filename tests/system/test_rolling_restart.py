"""Two services behind a load balancer, restarted in turn while they are used."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import httpx2
import psycopg
import pytest

from tests.support import events
from tests.support.app import OPERATOR_TOKEN
from tests.support.commands import SECRETS, Running, running
from tests.support.deployment import add_owner
from tests.support.ports import free_port
from tests.support.proxies import BALANCERS, running_balancer
from tests.support.service import KEYS, PROJECTS, TENANTS, VERIFY
from tests.support.serving import LOOPBACK
from tests.support.signing import deliver

CLIENTS: Final = 6


@asynccontextmanager
async def service(address: str, folder: Path, port: int) -> AsyncIterator[Running]:
    """A service that is ready, with as much time to drain as by default."""
    settings = {
        "DATABASE_URL": address,
        "PORT": str(port),
        "OPERATOR_TOKEN": OPERATOR_TOKEN,
        **SECRETS,
    }
    async with running("serve", folder=folder, **settings) as command:
        await command.until("tenantry is ready", "err")
        yield command


class Users:
    """People and programs that use the service without pause, and what they were answered."""

    def __init__(self, port: int, owner: str) -> None:
        self._url = f"http://{LOOPBACK}:{port}"
        self._owner = {"Authorization": f"Bearer {owner}"}
        self.answers: Counter[tuple[str, int]] = Counter()
        self.events: set[str] = set()
        self.is_over = False

    async def use(self) -> None:
        """Send what changes something as well as what does not, over a connection that stays
        open.
        """
        async with httpx2.AsyncClient(
            base_url=self._url, headers=self._owner, trust_env=False, timeout=30
        ) as client:
            while not self.is_over:
                event = events.updated(org="acme", created=int(time.time()))
                self.events.add(event["id"])
                secret = SECRETS["PROVIDER_WEBHOOK_SECRET"]
                self._note(
                    "event", await deliver(client, event, secret=secret, at=int(time.time()))
                )
                self._note("list", await client.get(PROJECTS))
                self._note("check", await client.get(f"{VERIFY}projects:read"))
                wish = {"orgId": "acme", "name": "k", "scopes": ["projects:read"]}
                made = await client.post(KEYS, json=wish)
                self._note("make", made)
                self._note("revoke", await client.delete(f"{KEYS}/{made.json()['id']}"))
                self._note("tenant", await client.get(f"{TENANTS}/acme"))

    def _note(self, kind: str, answer: httpx2.Response) -> None:
        self.answers[kind, answer.status_code] += 1


@pytest.mark.parametrize("balancer", BALANCERS)
async def test_restarting_in_turn_fails_no_request(
    balancer: str, database_url: str, conninfo: str, tmp_path: Path
) -> None:
    ports = [free_port(), free_port()]
    async with AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(service(database_url, tmp_path, port)) for port in ports
        ]
        users = Users(
            await stack.enter_async_context(running_balancer(balancer, tmp_path, ports)),
            await add_owner(database_url, tmp_path),
        )
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(users.use())
            for command, port in zip(services, ports, strict=True):
                assert await command.end(signal.SIGTERM) == 0
                await stack.enter_async_context(service(database_url, tmp_path, port))
            users.is_over = True
    assert users.answers.keys() == {
        ("event", 200),
        ("list", 200),
        ("check", 200),
        ("make", 201),
        ("revoke", 204),
        ("tenant", 200),
    }
    with psycopg.connect(conninfo) as connection:
        assert {
            row[0] for row in connection.execute("SELECT id FROM billing_events")
        } == users.events
