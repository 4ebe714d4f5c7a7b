"""How processes stop: the answers to load balancers and callers, and the fate of running work.

In one process, mostly; `tests/system/test_stopping_together.py` has two, and requests that never
end.
"""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

import psutil
import psycopg
import pytest

from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.outbox import Outbox
from tests.support.commands import SECRETS, Running, running
from tests.support.deployment import Deployment, deployed
from tests.support.outbox import add_notification, delivery_of
from tests.support.patience import patient_database
from tests.support.postgres import as_url
from tests.support.serving import LOOPBACK
from tests.support.smtp import MailServer
from tests.support.smtp import running as running_mail
from tests.support.stopping import LIST, Connect, Upload, ask, asking, connecting

FOR_EVER: Final = "3600"
QUEUED: Final = 20


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes connections, which are closed at the end."""
    async with connecting() as connect:
        yield connect


@asynccontextmanager
async def draining(address: str, folder: Path) -> AsyncIterator[Deployment]:
    """A service of one process that drains until it gets another signal."""
    async with deployed(address, folder, WORKERS="1", DRAIN_SECONDS=FOR_EVER) as deployment:
        os.kill(deployment.command.pid, signal.SIGTERM)
        await deployment.command.until("draining", "err")
        yield deployment


async def test_draining_process_answers_every_request_and_closes_connections(
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
async def test_second_signal_stops_the_process_immediately(
    database_url: str, tmp_path: Path, connect: Connect, how: signal.Signals
) -> None:
    async with draining(database_url, tmp_path) as deployment:
        line = await connect(deployment)
        await Upload(line, "evt_lost").begin()
        assert await deployment.command.end(how) == 0
        assert await line.is_closed()


async def check_request_under_way(
    database_url: str, conninfo: str, tmp_path: Path, connect: Connect, workers: str
) -> None:
    """Assert that a request under way is answered after SIGTERM, and that no new connections are
    accepted.
    """
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


async def test_request_under_way_is_finished_while_newcomers_are_refused(
    database_url: str, conninfo: str, tmp_path: Path, connect: Connect
) -> None:
    await check_request_under_way(database_url, conninfo, tmp_path, connect, "1")


async def check_kernel_queue(
    database_url: str, tmp_path: Path, connect: Connect, workers: str
) -> None:
    """Assert that connections in the kernel's queue are answered after SIGTERM."""
    async with deployed(database_url, tmp_path, WORKERS=workers) as deployment:
        processes = deployment.command.family()
        for process in processes:
            process.suspend()
        lines = [await connect(deployment) for _ in range(QUEUED)]
        for line in lines:
            await line.send(asking(LIST))
        for process in processes:
            # to all, or some would serve before the first one passes it on
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.resume()
        answers = [await line.answer() for line in lines]
        assert {(status, headers["connection"]) for status, headers, _ in answers} == {
            (401, "close")
        }
        assert await deployment.command.wait() == 0


async def test_queued_connections_are_answered(
    database_url: str, tmp_path: Path, connect: Connect
) -> None:
    await check_kernel_queue(database_url, tmp_path, connect, "1")


async def test_new_connection_may_still_send_a_request(
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


@asynccontextmanager
async def delivering(
    command: str, conninfo: str, folder: Path
) -> AsyncIterator[tuple[Running, MailServer, UUID]]:
    """A command that runs the jobs, while it delivers a mail that is not taken yet; and the
    notification's id.
    """
    database, server = patient_database(conninfo, pool_size=1), MailServer()
    server.hold = asyncio.Event()
    await database.open()
    async with database.transaction(ACROSS_TENANTS) as connection:
        notification = await add_notification(connection)
        await Outbox().defer_mail(connection, [notification])
    await database.close()
    async with running_mail(server):
        values = {
            "DATABASE_URL": as_url(conninfo),
            "SMTP_URL": f"smtp://{LOOPBACK}:{server.port}",
            "PORT": "0",
            "MAIL_FROM": "billing@example.com",
            "DRAIN_SECONDS": "0",
        }
        async with running(command, folder=folder, **SECRETS, **values) as running_command:
            await server.wait_for(lambda server: len(server.received) == 1)
            yield running_command, server, notification
            server.hold.set()


@pytest.mark.parametrize(("command", "how"), [("serve", signal.SIGTERM), ("worker", signal.SIGHUP)])
async def test_job_under_way_is_finished(
    conninfo: str, tmp_path: Path, command: str, how: signal.Signals
) -> None:
    async with delivering(command, conninfo, tmp_path) as (process, server, notification):
        os.kill(process.pid, how)
        assert server.hold is not None
        server.hold.set()
        assert await process.wait() == 0
    assert await delivery_of(conninfo, notification) == ("sent", None)
    assert "Traceback" not in process.text["err"]


async def check_second_signal(
    conninfo: str, tmp_path: Path, command: str, how: signal.Signals
) -> None:
    """Assert that a command that gets a second signal leaves the job under way to the next
    process.
    """
    async with delivering(command, conninfo, tmp_path) as (process, _, _):
        os.kill(process.pid, signal.SIGTERM)
        await process.until("ending" if command == "worker" else "closing", "err")
        assert await process.end(how) == 0
    with psycopg.connect(conninfo) as connection:
        found = connection.execute(
            "SELECT status::text FROM procrastinate_jobs WHERE queue_name = 'mail'"
        ).fetchall()
    # put back, or to be put back as after any end of this kind
    assert found in ([("todo",)], [("doing",)])


@pytest.mark.parametrize(("command", "how"), [("serve", signal.SIGTERM), ("worker", signal.SIGINT)])
async def test_second_signal_waits_for_no_job(
    conninfo: str, tmp_path: Path, command: str, how: signal.Signals
) -> None:
    await check_second_signal(conninfo, tmp_path, command, how)
