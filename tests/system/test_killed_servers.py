"""Server processes and supervisors that are killed: the effect on others, and the state
afterwards.
"""

import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tests.support.commands import SECRETS, running, still_running
from tests.support.deployment import deployed
from tests.support.serving import LOOPBACK
from tests.support.stopping import LIST, Connect, Upload, ask, connecting, listens


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes connections, which are closed at the end."""
    async with connecting() as connect:
        yield connect


async def test_process_that_is_killed_is_replaced(
    database_url: str, tmp_path: Path, connect: Connect
) -> None:
    async with deployed(database_url, tmp_path) as deployment:
        supervisor = psutil.Process(deployment.command.pid)
        servers = [child for child in supervisor.children() if listens(child)]
        assert len(servers) == 2
        servers[0].kill()
        await deployment.command.until("starting another", "err")
        servers[1].suspend()
        # by whom, if not by the new one
        assert (await ask(await connect(deployment), LIST))[0] == 401
        servers[1].resume()
        family = deployment.command.family()
        assert await deployment.command.end(signal.SIGTERM) == 0
    assert await still_running(family) == []


async def test_killed_supervisor_leaves_no_process(database_url: str, tmp_path: Path) -> None:
    async with deployed(database_url, tmp_path) as deployment:
        family = deployment.command.family()
        psutil.Process(deployment.command.pid).kill()
        assert await still_running(family) == []
        with socket.create_server((LOOPBACK, int(deployment.base_url.rpartition(":")[2]))):
            pass


async def test_service_reports_processes_that_cannot_start(
    database_url: str, tmp_path: Path
) -> None:
    plans = tmp_path / "plans.toml"
    values = {
        "DATABASE_URL": database_url,
        "WORKERS": "2",
        "PORT": "0",
        "TENANTRY_PLANS": str(plans),
    }
    plans.write_text('[[plans]]\nid = "free"\n')
    async with running("serve", folder=tmp_path, **SECRETS, **values) as command:
        await command.until("tenantry is ready", "err")
        plans.write_text("")
        servers = [child for child in psutil.Process(command.pid).children() if listens(child)]
        servers[0].kill()
        assert await command.wait() == 1
    assert "A server process could not start" in command.text["err"]


async def test_first_signal_after_a_failed_start_drains_current_requests(
    database_url: str, tmp_path: Path, connect: Connect
) -> None:
    plans = tmp_path / "plans.toml"
    plans.write_text('[[plans]]\nid = "free"\n')
    async with deployed(database_url, tmp_path, TENANTRY_PLANS=str(plans)) as deployment:
        one, other = (
            child for child in psutil.Process(deployment.command.pid).children() if listens(child)
        )
        one.suspend()
        line = await connect(deployment)
        assert (await ask(line, LIST))[0] == 401  # by the other one
        upload = Upload(line, "evt_kept")
        await upload.begin()
        plans.write_text("")
        one.kill()
        await deployment.command.until("the others end", "err")
        os.kill(deployment.command.pid, signal.SIGTERM)
        await deployment.command.until("received a signal to end", "err")
        assert other.is_running()
        assert (await upload.end())[0] == 200
        assert await deployment.command.wait() == 1


async def test_processes_end_with_a_supervisor_that_is_killed_so_that_another_can_take_its_place(
    database_url: str, tmp_path: Path
) -> None:
    async with deployed(database_url, tmp_path) as deployment:
        family = deployment.command.family()
        await deployment.command.end(signal.SIGKILL)
        assert await still_running(family) == []
        port = deployment.base_url.rpartition(":")[2]
        async with (
            deployed(database_url, tmp_path, PORT=port) as another,
            another.client("missing") as client,
        ):
            assert (await client.get("/readyz")).status_code == 200
