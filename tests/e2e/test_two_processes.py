"""The service in two processes on one database."""

import asyncio
import re
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.support.command_runner import invoke_async
from tests.support.commands import SECRETS, running, still_running
from tests.support.deployment import WORKERS, Deployment, add_owner, deployed, revoke_keys
from tests.support.metrics import Shown, documented
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, as_url
from tests.support.stopping import LIST, ask, connecting, listens

TIMES: Final = 20
CONNECTIONS: Final = 64
POOL_SIZE: Final = 5
MOST: Final = "tenantry_database_connections_max"
PATIENCE: Final = 60


@pytest.fixture(scope="module")
def address(postgres: PostgresServer) -> Iterator[str]:
    with postgres.database() as conninfo:
        yield as_url(conninfo)


@pytest.fixture(scope="module")
async def deployment(
    address: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployment]:
    """The service in two processes, with a tenant and its OWNER key."""
    folder = tmp_path_factory.mktemp("deployment")
    async with deployed(address, folder, credential=await add_owner(address, folder)) as deployment:
        yield deployment


async def test_revoked_key_is_refused_at_the_very_next_request_every_time(
    deployment: Deployment,
) -> None:
    seen = await revoke_keys(deployment, deployment.client, "/api/v1/projects", TIMES)
    assert seen == {(200, 204, (401, "api_key_revoked")): TIMES}


async def test_persistent_connections_are_shared(deployment: Deployment) -> None:
    """At once, or a few seconds after a process was too busy to take its share.

    The revoked key makes each request wait for the database and takes nothing from a limit.
    """
    revoked = await revoked_key(deployment)
    async with connecting() as connect, asyncio.timeout(PATIENCE):
        lines = [await connect(deployment) for _ in range(CONNECTIONS)]
        while not are_shared(deployment):
            answers = await asyncio.gather(*[ask(line, LIST, revoked) for line in lines])
            assert {status for status, _, _ in answers} == {401}
            lines = [
                await connect(deployment) if headers.get("connection") == "close" else line
                for line, (_, headers, _) in zip(lines, answers, strict=True)
            ]


async def revoked_key(deployment: Deployment) -> str:
    body = {"orgId": "acme", "name": "revoked", "scopes": ["projects:read"]}
    async with deployment.client() as owner:
        made = (await owner.post("/api/v1/api-keys", json=body)).json()
        await owner.delete(f"/api/v1/api-keys/{made['id']}")
    return str(made["secret"])


def are_shared(deployment: Deployment) -> bool:
    numbers = [
        sum(
            connection.status == psutil.CONN_ESTABLISHED
            for connection in process.net_connections("tcp4")
        )
        for process in deployment.command.family()[1:]
        if listens(process)
    ]
    mean = CONNECTIONS / WORKERS
    assert len(numbers) == WORKERS
    return all(abs(number - mean) <= 0.2 * mean for number in numbers)


@pytest.mark.thorough
async def test_metrics_are_those_of_both_processes_together(deployment: Deployment) -> None:
    async with deployment.client() as client:
        for _ in range(TIMES):
            assert (await client.get("/api/v1/auth/whoami")).status_code == 200
        texts = [(await client.get("/metrics")).text for _ in range(10)]
    counts = {
        float(found[1])
        for text in texts
        for found in re.finditer(
            r'^tenantry_http_requests_total\{.*whoami.*status="200"\} (\S+)$', text, re.MULTILINE
        )
    }
    assert counts == {TIMES}


async def test_metrics_cover_both_processes_and_are_all_documented(deployment: Deployment) -> None:
    async with deployment.client() as client, asyncio.timeout(PATIENCE):
        shown = None
        while shown is None or shown.value(MOST, pool="ordinary") < WORKERS * POOL_SIZE:
            assert (await client.get("/api/v1/projects")).status_code == 200
            shown = Shown((await client.get("/metrics")).text)
    assert shown.value(MOST, pool="ordinary") == WORKERS * POOL_SIZE
    assert shown.value("tenantry_batch_items_count", lane="keys") > 0
    assert shown.described().keys() <= documented().keys()


async def test_uncounted_metrics_are_0(deployment: Deployment) -> None:
    async with deployment.client() as client:
        shown = Shown((await client.get("/metrics")).text)
    ended = shown.series({"tenantry_api_keys_revoked_total"})
    assert ended["tenantry_api_keys_revoked_total", frozenset({("reason", "leaked")})] == 0


@pytest.mark.thorough
async def test_signal_ends_every_process(address: str, tmp_path: Path) -> None:
    async with deployed(address, tmp_path) as deployment:
        family = deployment.command.family()
        assert len(family) > WORKERS
        assert await deployment.command.end(signal.SIGINT) == 0
    assert await still_running(family) == []
    assert "Traceback" not in deployment.command.text["err"]
    host, port = deployment.base_url.removeprefix("http://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


@pytest.mark.thorough
async def test_secrets_in_files_reach_every_process(
    address: str, tmp_path: Path, deployment: Deployment
) -> None:
    lines = []
    for name, secret in {**SECRETS, "DATABASE_URL": address}.items():
        (tmp_path / name).write_text(f"{secret}\n")
        lines.append(f"{name}_FILE={tmp_path / name}\n")
    (tmp_path / ".env").write_text("".join(lines))
    port = str(free_port())
    async with running(
        "serve", "--no-jobs", folder=tmp_path, PORT=port, WORKERS=str(WORKERS)
    ) as command:
        await command.until("tenantry is ready", "err")
        async with Deployment(
            command, f"http://127.0.0.1:{port}", deployment.credential
        ).client() as client:
            answers = [await client.get("/api/v1/auth/whoami") for _ in range(10)]
    assert [answer.status_code for answer in answers] == [200] * len(answers)


async def test_a_missing_database_url_file_is_an_error(tmp_path: Path) -> None:
    done = await invoke_async("migrate", folder=tmp_path, DATABASE_URL_FILE=str(tmp_path / "none"))
    assert done.code == 1
    assert "DATABASE_URL_FILE: " in done.err
    assert not (tmp_path / ".tenantry").exists()
