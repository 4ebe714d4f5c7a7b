"""Two processes stop together, and requests that never end delay them up to a limit."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import psutil
import psycopg
import pytest

from tests.support.billing import until_blocked
from tests.support.commands import SECRETS, still_running
from tests.support.deployment import WORKERS, deployed
from tests.support.stopping import Connect, Upload, connecting
from tests.system.test_stopping import (
    FOR_EVER,
    check_kernel_queue,
    check_request_under_way,
    check_second_signal,
)

LONGEST_STOP: Final = 30
"""Seconds after the drain for which a process has to be left alone (docs/how-to/stopping.md)."""


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes connections, which are closed at the end."""
    async with connecting() as connect:
        yield connect


async def test_request_under_way_is_finished_while_newcomers_are_refused(
    database_url: str, conninfo: str, tmp_path: Path, connect: Connect
) -> None:
    await check_request_under_way(database_url, conninfo, tmp_path, connect, "2")


async def test_queued_connections_are_answered(
    database_url: str, tmp_path: Path, connect: Connect
) -> None:
    await check_kernel_queue(database_url, tmp_path, connect, "2")


@pytest.mark.parametrize(("command", "how"), [("serve", signal.SIGINT), ("worker", signal.SIGTERM)])
async def test_second_signal_waits_for_no_job(
    conninfo: str, tmp_path: Path, command: str, how: signal.Signals
) -> None:
    await check_second_signal(conninfo, tmp_path, command, how)


async def test_first_process_of_a_container_ends_by_sigterm_while_it_migrates(
    database_url: str, conninfo: str, tmp_path: Path
) -> None:
    container = ("unshare", "--fork", "--pid", "--kill-child", sys.executable, "-m", "tenantry")
    with psycopg.connect(conninfo) as other:
        other.execute("LOCK TABLE tenantry_version")
        migration = await asyncio.create_subprocess_exec(
            *container,
            "migrate",
            cwd=tmp_path,
            env={**os.environ, **SECRETS, "DATABASE_URL": database_url},
        )
        await until_blocked(conninfo)
        [first] = psutil.Process(migration.pid).children()
        first.terminate()
        assert await migration.wait() == 128 + signal.SIGTERM


async def test_signal_ends_every_process(database_url: str, tmp_path: Path) -> None:
    async with deployed(database_url, tmp_path) as deployment:
        family = deployment.command.family()
        assert len(family) > WORKERS
        assert await deployment.command.end(signal.SIGTERM) == 0
    assert await still_running(family) == []
    assert "Traceback" not in deployment.command.text["err"]


async def test_second_signal_ends_all_processes_at_once(database_url: str, tmp_path: Path) -> None:
    async with deployed(database_url, tmp_path, DRAIN_SECONDS=FOR_EVER) as deployment:
        family = deployment.command.family()
        os.kill(deployment.command.pid, signal.SIGTERM)
        await deployment.command.until("draining", "err")
        assert await deployment.command.end(signal.SIGTERM) == 0
    assert await still_running(family) == []


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_request_that_never_ends_is_not_waited_for(
    database_url: str, conninfo: str, tmp_path: Path, connect: Connect, workers: str
) -> None:
    async with deployed(database_url, tmp_path, WORKERS=workers) as deployment:
        line = await connect(deployment)
        await Upload(line, "evt_lost").begin()
        family = deployment.command.family()
        async with asyncio.timeout(LONGEST_STOP):
            assert await deployment.command.end(signal.SIGTERM) == 0
        assert await still_running(family) == []
    with psycopg.connect(conninfo) as connection:
        assert connection.execute("SELECT id FROM billing_events").fetchall() == []


async def test_signal_to_all_processes_drains_them_once(
    database_url: str, tmp_path: Path, connect: Connect
) -> None:
    async with deployed(database_url, tmp_path) as deployment:
        line = await connect(deployment)
        upload = Upload(line, "evt_kept")
        await upload.begin()
        for process in deployment.command.family():
            process.send_signal(signal.SIGTERM)
        await deployment.command.until("closing", "err")
        status, _, _ = await upload.end()
        assert status == 200
        assert await deployment.command.wait() == 0
