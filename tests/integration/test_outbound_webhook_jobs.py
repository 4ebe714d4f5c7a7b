"""Webhooks as jobs of the queue: workers that share it, stop, or are killed."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from tenantry.app import Parts
from tenantry.common.clock import Timeouts, system_clock
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.jobs.queue import JobQueue
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tenantry_sdk import TenantEvent, webhooks
from tests.support.app import make_settings
from tests.support.catalogs import catalog_file
from tests.support.logs import watched
from tests.support.outbound_webhooks import Sending, ids
from tests.support.patience import PATIENT, patient_database, patient_queue
from tests.support.postgres import PostgresServer, cut_off
from tests.support.service import running_service
from tests.support.webhook_endpoint import (
    SECRET,
    WebhookServer,
    answer,
    endpoint_at,
    running_webhook_server,
)

PATIENCE: Final = 20.0
IMPATIENT: Final = Timeouts(connect=0.3)
ROOT: Final = Path(__file__).parents[2]
CATALOG: Final = """
[[plans]]
id = "free"

[[webhooks]]
name = "app"
url = "{url}"
types = ["tenant.*"]
secrets = ["{secret}"]
allow_private = true
"""


@pytest.fixture
async def database(conninfo: str) -> AsyncIterator[Database]:
    async with patient_database(conninfo, pool_size=4) as database:
        yield database


@pytest.fixture
async def server() -> AsyncIterator[WebhookServer]:
    async with running_webhook_server() as server:
        yield server


@pytest.fixture
async def sending(database: Database, server: WebhookServer) -> Sending:
    """Webhooks to one endpoint, which is known."""
    sending = Sending(database, [endpoint_at(server.url)])
    await sending.begin()
    return sending


@asynccontextmanager
async def worker(
    conninfo: str, sending: Sending, *, concurrency: int = 4, timeouts: Timeouts = PATIENT
) -> AsyncIterator[JobQueue]:
    """A worker for the time of the block; at its end the jobs under way have ended."""
    queue = JobQueue(conninfo, timeouts=timeouts)
    await queue.open()
    retention = RetentionService(sending.database, timedelta(days=90), sending.clock, ["app"])
    work = Work(None, retention, webhooks=sending.webhooks)
    task = asyncio.create_task(
        queue.run_worker(work, polling_interval=0.02, concurrency=concurrency, grace=PATIENCE)
    )
    try:
        yield queue
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await queue.close()


async def jobs(database: Database) -> list[str]:
    """The states of the jobs that send webhooks."""
    async with database.transaction(ACROSS_TENANTS) as connection:
        return await connection.fetch_column(
            "SELECT status::text FROM procrastinate_jobs WHERE task_name = 'deliver_webhooks' ORDER BY id"
        )


async def test_a_worker_sends_what_is_published(
    conninfo: str, sending: Sending, server: WebhookServer
) -> None:
    async with worker(conninfo, sending):
        published = await sending.publish(5)
        await server.until(5)
    assert sorted(ids(server.received)) == sorted(published)


async def test_two_workers_send_each_event_once(
    conninfo: str, sending: Sending, server: WebhookServer
) -> None:
    async with AsyncExitStack() as stack:
        other_database = await stack.enter_async_context(patient_database(conninfo, pool_size=4))
        other = Sending(other_database, sending.endpoints, sending.clock)
        await stack.enter_async_context(worker(conninfo, sending))
        await stack.enter_async_context(worker(conninfo, other))
        published = await sending.publish(60)
        await server.until(60)
    assert sorted(ids(server.received)) == sorted(published)


async def test_a_killed_worker_loses_no_event(
    conninfo: str, sending: Sending, server: WebhookServer
) -> None:
    server.hold.clear()
    [event] = await sending.publish()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.webhook_worker", conninfo, server.url, cwd=ROOT
    )
    try:
        await server.until(1)
    finally:
        process.kill()
        await process.wait()
    assert "doing" in await jobs(sending.database)
    server.hold.set()
    sending.clock.now = system_clock()
    async with worker(conninfo, sending) as queue:
        await queue.requeue_stalled(stalled_after=0)
        await server.until(2)
    assert ids(server.received) == [event, event]
    assert [status for _, status, _ in await sending.deliveries()] == ["delivered"]


async def test_a_stopping_worker_records_what_it_has_sent(
    conninfo: str, sending: Sending, server: WebhookServer
) -> None:
    server.hold.clear()
    [event] = await sending.publish()
    async with worker(conninfo, sending):
        await server.until(1)
        asyncio.get_running_loop().call_soon(server.hold.set)
    assert await sending.deliveries() == [(event, "delivered", 1)]


@pytest.mark.thorough
async def test_an_unavailable_database_loses_no_event(
    conninfo: str, postgres: PostgresServer, sending: Sending, server: WebhookServer
) -> None:
    server.hold.clear()
    published = await sending.publish(3)
    async with Database(conninfo, pool_size=4, timeouts=IMPATIENT) as database:
        interrupted = Sending(database, sending.endpoints, sending.clock)
        with watched("tenantry") as log:
            async with worker(conninfo, interrupted, timeouts=IMPATIENT) as queue:
                await server.until(3)
                await cut_off(postgres, conninfo, away=True)
                server.hold.set()
                await log.until("webhooks are interrupted")
                await log.until("the job worker was interrupted")
                await cut_off(postgres, conninfo, away=False)
                await log.until("the job worker continues")
                await queue.requeue_stalled(stalled_after=0)
                await server.until(6)
        assert log.count("webhooks are interrupted") == 1
        assert sorted(ids(server.received)) == sorted(published * 2)
        assert {status for _, status, _ in await interrupted.deliveries()} == {"delivered"}


async def test_a_lost_job_is_replaced(
    conninfo: str, sending: Sending, server: WebhookServer
) -> None:
    [event] = await sending.publish()
    await sending.webhooks.queue_due()
    async with sending.database.transaction(ACROSS_TENANTS) as connection:
        await connection.execute("DELETE FROM procrastinate_jobs")
    async with worker(conninfo, sending):
        await server.until(1)
    assert ids(server.received) == [event]


async def test_a_receiver_that_hangs_holds_up_no_other_endpoint(
    conninfo: str, database: Database, server: WebhookServer
) -> None:
    async with running_webhook_server() as hanging:
        hanging.hold.clear()
        endpoints = [endpoint_at(hanging.url, name="hangs"), endpoint_at(server.url)]
        sending = Sending(database, endpoints)
        await sending.begin()
        async with worker(conninfo, sending, concurrency=1):
            await sending.publish(10)
            await hanging.until(1)
            await server.until(10)
            await sending.publish(10)
            await server.until(20)
            assert len(hanging.received) <= 4
            hanging.hold.set()


async def test_events_that_fail_add_no_jobs(sending: Sending, server: WebhookServer) -> None:
    server.response = answer(HTTPStatus.INTERNAL_SERVER_ERROR)
    await sending.publish(50)
    for _ in range(3):
        await sending.send()
        sending.clock.advance(minutes=10)
    assert len(await jobs(sending.database)) == 1


async def test_the_job_of_an_endpoint_that_left_the_catalog_ends(
    conninfo: str, sending: Sending, server: WebhookServer
) -> None:
    await sending.publish()
    await sending.webhooks.queue_due()
    queue = patient_queue(conninfo)
    await queue.open()
    retention = RetentionService(sending.database, timedelta(days=90), sending.clock)
    with watched("procrastinate") as log:
        task = asyncio.create_task(queue.run_worker(Work(None, retention)))
        await log.until("Job deliver_webhooks")
        await log.until("ended with status: Success")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await queue.close()
    assert await jobs(sending.database) == []
    assert server.received == []


async def test_a_service_without_webhooks_has_nothing_that_looks_for_them(conninfo: str) -> None:
    work = Parts(make_settings(), conninfo, system_clock).work
    assert work.webhooks is None
    assert work.endpoints == 0


async def test_a_service_with_webhooks_in_its_catalog_sends_them(
    conninfo: str, server: WebhookServer
) -> None:
    catalog = catalog_file(CATALOG.format(url=server.url, secret=SECRET))
    settings = {"TENANTRY_PLANS": catalog, "RUN_JOBS": "true"}
    async with running_service(conninfo, **settings) as service:
        async with patient_database(conninfo, pool_size=1) as database:
            await _until_known(database)
        org = await service.organization()
        await server.until(1)
        record = (await service.operator.get(f"/api/v1/operator/tenants/{org.id}")).json()
    received = server.received[0]
    now = service.clock().timestamp()
    event = webhooks.unwrap(received.body, received.headers, SECRET, now=now)
    assert isinstance(event, TenantEvent)
    assert (event.type, event.org_id, event.data.id) == ("tenant.created", org.id, record["id"])


async def _until_known(database: Database) -> None:
    """Wait until the endpoint has its place in the feed."""
    async with asyncio.timeout(PATIENCE):
        while True:
            async with database.transaction(ACROSS_TENANTS) as connection:
                if await connection.fetch_row("SELECT FROM webhook_endpoints") is not None:
                    return
