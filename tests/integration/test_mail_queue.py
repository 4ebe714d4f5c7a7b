"""A mail's path from its transaction to the mail server, with failures on the way."""

import asyncio
import logging
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest

from tenantry.common.clock import Timeouts
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.db.migrate import migrate
from tenantry.db.outbox import Outbox
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.domain.owner_mails import MailStatus
from tenantry.integrations.smtp import Mailer, parse_smtp_url
from tenantry.jobs.queue import JobQueue
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tenantry.notifications import mails_store
from tenantry.notifications.mail_delivery import MailService, RetrySchedule
from tests.support.billing import until_blocked
from tests.support.logs import watched
from tests.support.outbox import NOW, OWNER, add_notification, delivery_of
from tests.support.patience import patient_database, patient_queue
from tests.support.postgres import PostgresServer, cut_off
from tests.support.smtp import MailServer, running

NEVER: Final = 3600.0
PATIENCE: Final = 20.0
ROOT: Final = Path(__file__).parents[2]


@pytest.fixture
async def database(conninfo: str) -> AsyncIterator[Database]:
    database = patient_database(conninfo, pool_size=1)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def queue(conninfo: str) -> AsyncIterator[JobQueue]:
    queue = JobQueue(conninfo, timeouts=Timeouts(connect=0.3))
    await queue.open()
    yield queue
    await queue.close()


@pytest.fixture
async def server() -> AsyncIterator[MailServer]:
    async with running(MailServer(account=("user", "hunter2"))) as server:
        yield server


def at_once(_attempt: int) -> float:
    return 0.0


def url_of(server: MailServer) -> str:
    return f"smtp://user:hunter2@127.0.0.1:{server.port}"


def work_with(database: Database, server: MailServer, schedule: RetrySchedule = at_once) -> Work:
    mailer = Mailer(parse_smtp_url(url_of(server), "billing@example.com"))
    return Work(
        MailService(database, mailer, lambda: NOW, schedule),
        RetentionService(database, timedelta(days=90), lambda: NOW),
    )


@asynccontextmanager
async def worker(
    queue: JobQueue,
    work: Work,
    *,
    polling_interval: float = 0.02,
    grace: float = PATIENCE,
    **options: Any,
) -> AsyncIterator[None]:
    """A worker for the time of the block; at its end the jobs under way have ended."""
    task = asyncio.create_task(
        queue.run_worker(work, polling_interval=polling_interval, grace=grace, **options)
    )
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def queued(database: Database) -> UUID:
    async with database.transaction(ACROSS_TENANTS) as connection:
        mail_id = await add_notification(connection)
        await Outbox().defer_mail(connection, [mail_id])
    return mail_id


async def rows(conninfo: str, query: str) -> list[tuple[Any, ...]]:
    async with await Connection.connect(conninfo, autocommit=True) as connection:
        return await (await connection.execute(query.encode())).fetchall()


async def jobs(conninfo: str) -> list[str]:
    """The states of the jobs in the mail queue."""
    found = await rows(
        conninfo,
        "SELECT status::text FROM procrastinate_jobs WHERE queue_name = 'mail' ORDER BY id",
    )
    return [row[0] for row in found]


async def mails(server: MailServer, number: int) -> None:
    await server.wait_for(lambda server: len(server.received) == number)


async def test_a_queued_mail_is_delivered(
    database: Database, queue: JobQueue, server: MailServer, conninfo: str
) -> None:
    mail_id = await queued(database)
    async with worker(queue, work_with(database, server)):
        await mails(server, 1)
    assert server.received[0].recipients == [OWNER]
    assert await delivery_of(conninfo, mail_id) == ("sent", None)


async def test_a_delivered_mail_leaves_no_job(
    database: Database, queue: JobQueue, server: MailServer, conninfo: str
) -> None:
    await queued(database)
    async with worker(queue, work_with(database, server)):
        await mails(server, 1)
    assert await jobs(conninfo) == []


async def test_many_mails_are_queued_together(
    database: Database, queue: JobQueue, server: MailServer, conninfo: str
) -> None:
    async with database.transaction(ACROSS_TENANTS) as connection:
        await Outbox().defer_mail(
            connection, [await add_notification(connection) for _ in range(20)]
        )
    async with worker(queue, work_with(database, server)):
        await mails(server, 20)
    assert len({mail.message["Message-ID"] for mail in server.received}) == 20
    assert await jobs(conninfo) == []


async def test_rolled_back_mails_are_not_queued(
    database: Database, queue: JobQueue, conninfo: str
) -> None:
    async with database.transaction(ACROSS_TENANTS) as connection:
        await Outbox().defer_mail(connection, [await add_notification(connection)])
        await connection.rollback()
    assert await jobs(conninfo) == []


async def test_an_empty_batch_is_accepted(
    database: Database, queue: JobQueue, conninfo: str
) -> None:
    async with database.transaction(ACROSS_TENANTS) as connection:
        await Outbox().defer_mail(connection, [])
    assert await jobs(conninfo) == []


async def test_a_queue_that_was_never_opened_can_defer(database: Database, conninfo: str) -> None:
    await queued(database)
    assert await jobs(conninfo) == ["todo"]


async def test_database_errors_reach_the_caller(conninfo: str) -> None:
    async with await Connection.connect(conninfo) as connection:
        mail_id = await add_notification(connection)
        with suppress(psycopg.errors.DivisionByZero):
            await connection.execute("SELECT 1 / 0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            await Outbox().defer_mail(connection, [mail_id])


async def test_a_worker_is_notified_of_a_new_mail(
    database: Database, queue: JobQueue, server: MailServer, conninfo: str
) -> None:
    async with worker(queue, work_with(database, server), polling_interval=NEVER):
        async with asyncio.timeout(PATIENCE):
            while not await rows(
                conninfo, "SELECT FROM pg_stat_activity WHERE query LIKE 'LISTEN%maintenance%'"
            ):
                pass
        for _ in range(3):  # one that comes while the worker just looks is not announced to it
            await queued(database)
        await server.wait_for(lambda server: len(server.received) > 0)


async def test_temporary_rejections_are_retried(
    database: Database, queue: JobQueue, server: MailServer, conninfo: str
) -> None:
    server.replies_to_data.extend(["451 4.3.0 try later"] * 3)
    mail_id = await queued(database)
    attempts = []

    def schedule(attempt: int) -> float:
        attempts.append(attempt)
        return 0.0

    async with worker(queue, work_with(database, server, schedule)):
        await mails(server, 1)
    assert await delivery_of(conninfo, mail_id) == ("sent", None)
    assert attempts == [1, 2, 3]


async def test_a_mail_server_that_was_down_gets_the_mail_once_it_is_up(
    database: Database, queue: JobQueue, server: MailServer, conninfo: str
) -> None:
    tried = asyncio.Event()

    def schedule(_attempt: int) -> float:
        tried.set()
        return 0.0

    await server.stop()
    mail_id = await queued(database)
    async with worker(queue, work_with(database, server, schedule)):
        await tried.wait()
        await server.start()
        await mails(server, 1)
    assert (await delivery_of(conninfo, mail_id))[0] == "sent"
    assert len(server.received) == 1


async def test_a_permanent_rejection_is_visible_and_leaves_no_job(
    database: Database, queue: JobQueue, server: MailServer, conninfo: str
) -> None:
    server.replies_to_rcpt.append("550 5.1.1 no such user")
    mail_id = await queued(database)
    with watched("tenantry") as log:
        async with worker(queue, work_with(database, server)):
            await server.wait_for(lambda server: server.refusals == 1)
    assert log.count("ERROR") == 1
    assert (await delivery_of(conninfo, mail_id))[0] == "failed"
    assert await jobs(conninfo) == []


async def test_without_a_mail_server_mails_stay_queued(
    database: Database, queue: JobQueue, conninfo: str
) -> None:
    await queued(database)
    with watched("procrastinate") as log:
        async with worker(
            queue, Work(None, RetentionService(database, timedelta(days=90), lambda: NOW))
        ):
            await log.until("Job requeue_stalled_jobs")
    assert log.count("ended with status: Success") >= 1
    assert await jobs(conninfo) == ["todo"]


async def test_a_stopping_worker_finishes_its_jobs(
    database: Database, queue: JobQueue, server: MailServer, conninfo: str
) -> None:
    server.hold = asyncio.Event()
    mail_id = await queued(database)
    async with worker(queue, work_with(database, server)):
        await mails(server, 1)
        asyncio.get_running_loop().call_soon(server.hold.set)
    assert (await delivery_of(conninfo, mail_id))[0] == "sent"
    assert await jobs(conninfo) == []


async def test_a_job_that_times_out_is_requeued(
    database: Database, queue: JobQueue, server: MailServer, conninfo: str
) -> None:
    server.hold = asyncio.Event()
    mail_id = await queued(database)
    async with worker(queue, work_with(database, server), grace=0):
        await mails(server, 1)
    assert await jobs(conninfo) == ["todo"]
    server.hold = None
    async with worker(queue, work_with(database, server)):
        await mails(server, 2)
    assert (await delivery_of(conninfo, mail_id))[0] == "sent"


async def test_a_killed_worker_loses_no_mail(
    database: Database, queue: JobQueue, server: MailServer, conninfo: str
) -> None:
    server.hold = asyncio.Event()
    mail_id = await queued(database)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.mail_worker", conninfo, url_of(server), cwd=ROOT
    )
    try:
        await mails(server, 1)
    finally:
        process.kill()
        await process.wait()
    assert await jobs(conninfo) == ["doing"]
    server.hold = None
    await queue.requeue_stalled(stalled_after=0)
    async with worker(queue, work_with(database, server)):
        await mails(server, 2)
    first, second = (mail.message["Message-ID"] for mail in server.received)
    assert first == second == f"<{mail_id}@example.com>"
    assert (await delivery_of(conninfo, mail_id))[0] == "sent"
    assert await jobs(conninfo) == []


async def begin_job(conninfo: str) -> None:
    """Take the next job as a worker that lives, and do nothing."""
    await rows(
        conninfo,
        "SELECT procrastinate_fetch_job_v2(ARRAY['mail'], procrastinate_register_worker_v1())",
    )


async def test_the_job_of_a_running_worker_is_not_requeued(
    database: Database, queue: JobQueue, conninfo: str
) -> None:
    await queued(database)
    await begin_job(conninfo)
    await queue.requeue_stalled()
    assert await jobs(conninfo) == ["doing"]


async def test_a_job_that_a_live_worker_has_lost_is_requeued(
    database: Database, queue: JobQueue, server: MailServer, conninfo: str
) -> None:
    server.hold = held = asyncio.Event()
    with watched("tenantry.jobs") as log:
        async with worker(queue, work_with(database, server), concurrency=1, lost_after=0.5):
            first = await queued(database)
            await mails(server, 1)
            second = await queued(database)
            # as if the database had become unavailable before it answered the worker
            await rows(
                conninfo,
                "SELECT procrastinate_fetch_job_v2('{mail}', max(id)) FROM procrastinate_workers",
            )
            await log.until("is requeued")
            held.set()
            await mails(server, 2)
        assert log.count("is requeued") == 1  # not the one that was running
    assert [await delivery_of(conninfo, each) for each in (first, second)] == [("sent", None)] * 2


async def test_two_workers_requeue_a_job_once(
    database: Database, queue: JobQueue, conninfo: str
) -> None:
    await queued(database)
    await begin_job(conninfo)
    await asyncio.gather(*(queue.requeue_stalled(stalled_after=0) for _ in range(2)))
    assert await jobs(conninfo) == ["todo"]


async def test_a_mail_without_a_job_gets_a_new_one(
    database: Database, queue: JobQueue, server: MailServer, conninfo: str
) -> None:
    mail_id = await queued(database)
    await rows(conninfo, "DELETE FROM procrastinate_jobs RETURNING 1")
    for _ in range(2):
        await queue.requeue_stalled()
        assert await jobs(conninfo) == ["todo"]
    async with worker(queue, work_with(database, server)):
        await mails(server, 1)
    assert (await delivery_of(conninfo, mail_id))[0] == "sent"
    await queue.requeue_stalled()
    assert await jobs(conninfo) == []


async def test_a_worker_waits_for_an_unavailable_database(
    database: Database, queue: JobQueue, server: MailServer, postgres: PostgresServer, conninfo: str
) -> None:
    with watched("tenantry.jobs") as log, watched("procrastinate") as jobs_log:
        async with worker(queue, work_with(database, server)):
            mail_id = await queued(database)
            await jobs_log.until(f"(mail_id='{mail_id}') ended with status: Success")
            await cut_off(postgres, conninfo, away=True)
            await log.until("the job worker was interrupted")
            await cut_off(postgres, conninfo, away=False)
            await log.until("the job worker continues")
            # the pool may still hold a connection from before
            with suppress(DatabaseUnavailableError):
                async with database.transaction(ACROSS_TENANTS) as connection:
                    await connection.execute("SELECT 1")
            await queued(database)
            await mails(server, 2)
    assert log.count("interrupted") == 1


# What a worker does first.
BLOCKED_LOOK: Final = """
CREATE FUNCTION procrastinate_prune_stalled_workers_v1(double precision) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1);
    RAISE EXCEPTION 'still no schema';
END $$
"""


async def test_a_worker_without_a_schema_continues_only_once_there_is_one(
    postgres: PostgresServer, server: MailServer
) -> None:
    with postgres.database(migrated=False) as conninfo, watched("tenantry.jobs") as log:
        queue, database = patient_queue(conninfo), patient_database(conninfo, pool_size=1)
        await queue.open()
        await database.open()
        async with worker(queue, work_with(database, server)):
            await log.until("the job worker was interrupted")
            async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as other:
                await other.execute("SELECT pg_advisory_lock(1)")
                await other.execute(BLOCKED_LOOK)
                await until_blocked(conninfo)  # the worker looks again
                before = log.count("the job worker continues")
                await other.execute("DROP FUNCTION procrastinate_prune_stalled_workers_v1")
            await asyncio.to_thread(migrate, conninfo)
            await queued(database)
            await mails(server, 1)
        await database.close()
        await queue.close()
    assert (before, log.count("the job worker continues")) == (0, 1)


@pytest.mark.thorough
async def test_a_worker_logs_the_loss_of_its_database_in_one_line(
    database: Database, queue: JobQueue, server: MailServer, postgres: PostgresServer, conninfo: str
) -> None:
    server.hold = held = asyncio.Event()
    with watched() as log:
        async with worker(queue, work_with(database, server)):
            await queued(database)
            await mails(server, 1)  # and its answer waits
            await cut_off(postgres, conninfo, away=True)
            held.set()  # the end of this job can't be recorded
            await log.until("the job worker was interrupted")
            await cut_off(postgres, conninfo, away=False)
            await log.until("the job worker continues")
    ours = [line for line in log.lines if " mail.log " not in line]  # the test server's own log
    [line] = [line for line in ours if line.startswith(("WARNING", "ERROR", "CRITICAL"))]
    assert re.search(
        "will retry: .*(terminating connection|not currently accepting connections)",
        line,
        re.DOTALL,
    )
    assert not any("Traceback" in line for line in ours)


async def test_a_job_without_a_database_logs_one_line(
    database: Database, queue: JobQueue, server: MailServer
) -> None:
    away = Database("host=/nowhere", pool_size=1)
    await queued(database)
    with watched("procrastinate.worker") as log:
        async with worker(queue, work_with(away, server)):
            await log.until("ended with status")
    line = next(line for line in log.lines if "ended with status" in line)
    assert "Error, to retry" in line
    assert line.endswith(" s: The database is unreachable. Try again shortly.")
    assert "\n" not in line


@pytest.mark.thorough
@pytest.mark.parametrize("noticed", [True, False], ids=["after it noticed", "before it noticed"])
async def test_a_worker_can_be_stopped_while_the_database_is_unavailable(
    database: Database,
    queue: JobQueue,
    server: MailServer,
    postgres: PostgresServer,
    conninfo: str,
    noticed: bool,
) -> None:
    with watched("tenantry.jobs") as log:
        task = asyncio.create_task(queue.run_worker(work_with(database, server)))
        await queued(database)
        await mails(server, 1)
        await cut_off(postgres, conninfo, away=True)
        if noticed:
            await log.until("the job worker was interrupted")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_the_logs_hold_neither_password_nor_address(
    database: Database, queue: JobQueue, server: MailServer
) -> None:
    server.replies_to_rcpt.extend([f"450 <{OWNER}> greylisted", f"550 <{OWNER}> no such user"])
    await queued(database)
    with watched(level=logging.DEBUG) as log:
        async with worker(queue, work_with(database, server)):
            await server.wait_for(lambda server: server.refusals == 2)
    # the test server's own log
    ours = "\n".join(line for line in log.lines if " mail.log " not in line)
    assert "refused the recipient (550)" in ours
    assert "hunter2" not in ours
    assert OWNER not in ours


async def test_a_sent_mail_stays_sent_when_a_slower_attempt_fails(database: Database) -> None:
    async with database.transaction(ACROSS_TENANTS) as connection:
        mail_id = await add_notification(connection)
        await mails_store.record(connection, mail_id, MailStatus.SENT, NOW)
        await mails_store.record(connection, mail_id, MailStatus.QUEUED, NOW, "timeout")
        await mails_store.record(connection, mail_id, MailStatus.FAILED, NOW, "timeout")
        found = await connection.fetch("SELECT status, last_error FROM mails")
    assert found == [("sent", None)]
