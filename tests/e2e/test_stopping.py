"""How processes end: what load balancers, callers and the next process are told, and what becomes of work under way."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

import psutil
import psycopg
import pytest

from tenantry.db.database import Database
from tenantry.db.scope import ACROSS_TENANTS
from tenantry.jobs.queue import JobQueue
from tests.support import events
from tests.support.commands import SECRETS, Running, running, still_running
from tests.support.deployment import Deployment, deployed
from tests.support.http_line import Line
from tests.support.outbox import add_notification, delivery_of
from tests.support.postgres import as_url
from tests.support.serving import LOOPBACK
from tests.support.signing import PATH, signature
from tests.support.smtp import MailServer
from tests.support.smtp import running as running_mail

FOR_EVER: Final = "3600"
QUEUED: Final = 20
LONGEST_STOP: Final = 30
"""Seconds after the drain for which a process has to be left alone (docs/stopping.md)."""
ASKING: Final = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n"
LIST: Final = b"/api/v1/projects"


async def ask(line: Line, path: bytes) -> tuple[int, dict[str, str], bytes]:
    """The answer to a GET."""
    await line.send(ASKING % path)
    return await line.answer()


Connect = Callable[[Deployment], Awaitable[Line]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes connections, which are closed at the end."""
    lines: list[Line] = []

    async def to(deployment: Deployment) -> Line:
        lines.append(await Line.to(deployment.base_url))
        return lines[-1]

    yield to
    for line in lines:
        line.close()


@asynccontextmanager
async def draining(address: str, folder: Path) -> AsyncIterator[Deployment]:
    """A service of one process that drains until it gets another signal."""
    async with deployed(address, folder, WORKERS="1", DRAIN_SECONDS=FOR_EVER) as deployment:
        os.kill(deployment.command.pid, signal.SIGTERM)
        await deployment.command.until("draining", "err")
        yield deployment


class Upload:
    """An event of which the last byte is not sent yet: a request under way, for as long as wanted."""

    def __init__(self, line: Line, event_id: str) -> None:
        now = int(time.time())
        self._line = line
        self._body = events.body(events.updated(event_id=event_id, created=now))
        self._signature = signature(self._body, secret=SECRETS["PROVIDER_WEBHOOK_SECRET"], at=now)

    async def begin(self) -> None:
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: a\r\nProvider-Signature: {self._signature}\r\n"
            f"Content-Length: {len(self._body)}\r\n\r\n"
        )
        await self._line.send(head.encode() + self._body[:-1])

    async def end(self) -> tuple[int, dict[str, str], bytes]:
        await self._line.send(self._body[-1:])
        return await self._line.answer()


async def test_draining_process_says_so_and_answers_everybody_for_the_last_time(
    database_url: str, tmp_path: Path, connect: Connect
) -> None:
    async with deployed(database_url, tmp_path, WORKERS="1", DRAIN_SECONDS=FOR_EVER) as deployment:
        known = [await connect(deployment) for _ in range(3)]
        assert {(await ask(line, LIST))[1].get("connection") for line in known} == {None}
        os.kill(deployment.command.pid, signal.SIGTERM)
        status, headers, body = await ask(known[0], b"/readyz")
        assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
        assert body == b'{"status":"draining","waitingFor":[]}'
        await deployment.command.until("draining", "err")
        for path, right in ((LIST, 401), (b"/healthz", 200)):
            for line in (known.pop(), await connect(deployment)):
                status, headers, _ = await ask(line, path)
                assert (status, headers["connection"]) == (right, "close")
                assert await line.is_closed()
        assert await deployment.command.end(signal.SIGTERM) == 0
    assert "Traceback" not in deployment.command.text["err"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_second_signal_ends_it_at_once_whatever_is_under_way(
    database_url: str, tmp_path: Path, connect: Connect, how: signal.Signals
) -> None:
    async with draining(database_url, tmp_path) as deployment:
        line = await connect(deployment)
        await Upload(line, "evt_lost").begin()
        assert await deployment.command.end(how) == 0
        assert await line.is_closed()


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_request_under_way_is_finished_while_newcomers_are_refused(
    database_url: str, conninfo: str, tmp_path: Path, connect: Connect, workers: str
) -> None:
    async with deployed(database_url, tmp_path, WORKERS=workers) as deployment:
        line = await connect(deployment)
        upload = Upload(line, "evt_kept")
        await upload.begin()
        os.kill(deployment.command.pid, signal.SIGTERM)
        await deployment.command.until("closing", "err")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, int(deployment.base_url.rpartition(":")[2])))
        status, headers, body = await upload.end()
        assert (status, headers["connection"], body) == (200, "close", b"OK")
        assert await line.is_closed()
        assert await deployment.command.wait() == 0
    with psycopg.connect(conninfo) as connection:
        assert connection.execute("SELECT id FROM billing_events").fetchall() == [("evt_kept",)]


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


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_whoever_waits_in_the_kernels_queue_is_answered(
    database_url: str, tmp_path: Path, connect: Connect, workers: str
) -> None:
    async with deployed(database_url, tmp_path, WORKERS=workers) as deployment:
        processes = [process for process in deployment.command.family() if process.name() != "resource_tracker"]
        for process in processes:
            process.suspend()
        lines = [await connect(deployment) for _ in range(QUEUED)]
        for line in lines:
            await line.send(ASKING % LIST)
        for process in processes:
            process.send_signal(signal.SIGTERM)  # to all, or some would serve before the first one passes it on
        for process in processes:
            process.resume()
        answers = [await line.answer() for line in lines]
        assert {(status, headers["connection"]) for status, headers, _ in answers} == {(401, "close")}
        assert await deployment.command.wait() == 0


async def test_connection_that_has_just_been_made_may_still_ask(
    database_url: str, tmp_path: Path, connect: Connect
) -> None:
    async with deployed(database_url, tmp_path, WORKERS="1") as deployment:
        command = psutil.Process(deployment.command.pid)
        command.suspend()
        line = await connect(deployment)
        command.send_signal(signal.SIGTERM)
        command.resume()
        await deployment.command.until("closing", "err")
        status, headers, _ = await ask(line, LIST)
        assert (status, headers["connection"]) == (401, "close")


async def test_process_that_is_killed_is_replaced(database_url: str, tmp_path: Path, connect: Connect) -> None:
    async with deployed(database_url, tmp_path) as deployment:
        supervisor = psutil.Process(deployment.command.pid)
        servers = [child for child in supervisor.children() if listens(child)]
        assert len(servers) == 2
        servers[0].kill()
        await deployment.command.until("another is started", "err")
        servers[1].suspend()
        assert (await ask(await connect(deployment), LIST))[0] == 401  # by whom, if not by the new one
        servers[1].resume()
        family = deployment.command.family()
        assert await deployment.command.end(signal.SIGTERM) == 0
    assert await still_running(family) == []


async def test_killed_supervisor_leaves_nobody_behind(database_url: str, tmp_path: Path) -> None:
    async with deployed(database_url, tmp_path) as deployment:
        family = deployment.command.family()
        psutil.Process(deployment.command.pid).kill()
        assert await still_running(family) == []
        with socket.create_server((LOOPBACK, int(deployment.base_url.rpartition(":")[2]))):
            pass


async def test_signal_to_all_processes_lets_them_drain_once(
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


async def test_second_signal_ends_all_processes_at_once(database_url: str, tmp_path: Path) -> None:
    async with deployed(database_url, tmp_path, DRAIN_SECONDS=FOR_EVER) as deployment:
        family = deployment.command.family()
        os.kill(deployment.command.pid, signal.SIGTERM)
        await deployment.command.until("draining", "err")
        assert await deployment.command.end(signal.SIGTERM) == 0
    assert await still_running(family) == []


async def test_service_whose_processes_cannot_start_says_so(database_url: str, tmp_path: Path) -> None:
    plans = tmp_path / "plans.toml"
    values = {"DATABASE_URL": database_url, "WORKERS": "2", "PORT": "0", "TENANTRY_PLANS": str(plans)}
    plans.write_text('[[plans]]\nid = "free"\n')
    async with running("serve", folder=tmp_path, **SECRETS, **values) as command:
        await command.until("tenantry is ready", "err")
        plans.write_text("")
        servers = [child for child in psutil.Process(command.pid).children() if listens(child)]
        servers[0].kill()
        assert await command.wait() == 1
    assert "A server process could not start" in command.text["err"]


async def test_first_signal_after_a_process_could_not_start_lets_requests_under_way_end(
    database_url: str, tmp_path: Path, connect: Connect
) -> None:
    plans = tmp_path / "plans.toml"
    plans.write_text('[[plans]]\nid = "free"\n')
    async with deployed(database_url, tmp_path, TENANTRY_PLANS=str(plans)) as deployment:
        one, other = (child for child in psutil.Process(deployment.command.pid).children() if listens(child))
        one.suspend()
        line = await connect(deployment)
        assert (await ask(line, LIST))[0] == 401  # by the other one
        upload = Upload(line, "evt_kept")
        await upload.begin()
        plans.write_text("")
        one.kill()
        await deployment.command.until("the others end", "err")
        os.kill(deployment.command.pid, signal.SIGTERM)
        await deployment.command.until("told to end", "err")
        assert other.is_running()
        assert (await upload.end())[0] == 200
        assert await deployment.command.wait() == 1


@asynccontextmanager
async def delivering(command: str, conninfo: str, folder: Path) -> AsyncIterator[tuple[Running, MailServer, UUID]]:
    """A command that runs the jobs, while it delivers a mail that is not taken yet; and the notification's id."""
    database, queue, server = Database(conninfo, pool_size=1), JobQueue(conninfo), MailServer()
    server.hold = asyncio.Event()
    await database.open()
    async with database.transaction(ACROSS_TENANTS) as connection:
        notification = await add_notification(connection)
        await queue.defer_mail(connection, [notification])
    await database.close()
    async with running_mail(server):
        values = {
            "DATABASE_URL": as_url(conninfo), "SMTP_URL": f"smtp://{LOOPBACK}:{server.port}", "PORT": "0",
            "MAIL_FROM": "billing@example.com", "DRAIN_SECONDS": "0",
        }  # fmt: skip
        async with running(command, folder=folder, **SECRETS, **values) as running_command:
            await server.wait_for(lambda server: len(server.received) == 1)
            yield running_command, server, notification
            server.hold.set()


@pytest.mark.parametrize("command", ["serve", "worker"])
async def test_job_under_way_is_finished(conninfo: str, tmp_path: Path, command: str) -> None:
    async with delivering(command, conninfo, tmp_path) as (process, server, notification):
        os.kill(process.pid, signal.SIGTERM)
        assert server.hold is not None
        server.hold.set()
        assert await process.wait() == 0
    assert await delivery_of(conninfo, notification) == ("sent", 1, None)
    assert "Traceback" not in process.text["err"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["serve", "worker"])
async def test_second_signal_waits_for_no_job(conninfo: str, tmp_path: Path, command: str, how: signal.Signals) -> None:
    async with delivering(command, conninfo, tmp_path) as (process, _, _):
        os.kill(process.pid, signal.SIGTERM)
        await process.until("ending" if command == "worker" else "closing", "err")
        assert await process.end(how) == 0
    with psycopg.connect(conninfo) as connection:
        found = connection.execute("SELECT status::text FROM procrastinate_jobs WHERE queue_name = 'mail'").fetchall()
    assert found in ([("todo",)], [("doing",)])  # put back, or to be put back as after any end of this kind


def listens(process: psutil.Process) -> bool:
    """Whether a process is one that serves."""
    return any(connection.status == psutil.CONN_LISTEN for connection in process.net_connections("tcp"))
