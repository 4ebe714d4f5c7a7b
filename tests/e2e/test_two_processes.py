"""The service in two processes on one database."""

import re
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

import httpx2
import psutil
import pytest

from tests.support.commands import SECRETS, Running, run, running
from tests.support.findings import free_port
from tests.support.postgres import PostgresServer, as_url

WORKERS: Final = 2
TIMES: Final = 200


class Deployment(NamedTuple):
    command: Running
    base_url: str
    owner_key: str

    def client(self, key: str | None = None) -> httpx2.AsyncClient:
        """A client that makes a connection for each request, so that any process may get it."""
        return httpx2.AsyncClient(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {key or self.owner_key}", "Connection": "close"},
            limits=httpx2.Limits(max_keepalive_connections=0),
            trust_env=False,
            timeout=30,
        )


@pytest.fixture
async def deployment(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Deployment]:
    with postgres.database() as conninfo:
        database = {"DATABASE_URL": as_url(conninfo)}
        tenant = ("admin", "create-tenant", "--id", "acme", "--name", "Acme", "--owner-email", "owner@acme.example")
        assert (await run(*tenant, folder=tmp_path, **database)).code == 0
        key = ("admin", "create-key", "--org", "acme", "--name", "owner", "--owner")
        made = await run(*key, folder=tmp_path, **database, **SECRETS)
        port = str(free_port())
        values = {**database, **SECRETS, "PORT": port, "WORKERS": str(WORKERS), "RUN_JOBS": "false"}
        async with running("serve", folder=tmp_path, **values) as command:
            await command.until("tenantry is ready", "err")
            yield Deployment(command, f"http://127.0.0.1:{port}", made.out.strip())


async def test_revoked_key_is_refused_at_the_very_next_request_every_time(deployment: Deployment) -> None:
    body = {"orgId": "acme", "name": "short-lived", "scopes": ["projects:read"]}
    misses = []
    async with deployment.client() as owner:
        for _ in range(TIMES):
            made = (await owner.post("/api/v1/api-keys", json=body)).json()
            async with deployment.client(made["secret"]) as client:
                before = await client.get("/api/v1/projects")
                deleted = await owner.delete(f"/api/v1/api-keys/{made['id']}")
                after = await client.get("/api/v1/projects")
            misses += [
                (before.status_code, deleted.status_code, after.status_code, after.text)
                for _ in [None]
                if (before.status_code, deleted.status_code, after.status_code) != (200, 204, 401)
                or after.json()["code"] != "api_key_revoked"
            ]
    assert misses == []


async def test_metrics_are_those_of_both_processes_together(deployment: Deployment) -> None:
    async with deployment.client() as client:
        for _ in range(TIMES):
            assert (await client.get("/api/v1/auth/whoami")).status_code == 200
        texts = [(await client.get("/metrics")).text for _ in range(10)]
    counts = {
        float(found[1])
        for text in texts
        for found in re.finditer(r'^tenantry_http_requests_total\{.*whoami.*status="200"\} (\S+)$', text, re.MULTILINE)
    }
    assert counts == {TIMES}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_every_process(deployment: Deployment, how: signal.Signals) -> None:
    family = deployment.command.family()
    assert len(family) > WORKERS
    assert await deployment.command.end(how) == 0
    assert [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
    assert "Traceback" not in deployment.command.text["err"]
    host, port = deployment.base_url.removeprefix("http://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
