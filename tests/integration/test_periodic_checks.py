"""The worker's scheduled checks: reconciliation with the provider, and stale tenants."""

import asyncio
from datetime import timedelta
from functools import partial

import pytest

from tenantry.billing.stale_tenants import count_stale_tenants
from tenantry.common.clock import system_clock
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tests.support.billing import Subscriber, rows
from tests.support.logs import watched
from tests.support.truth import World

DEFER = (
    "SELECT procrastinate_defer_jobs_v1(ARRAY[ROW('maintenance', '%s', 0, NULL, NULL, "
    "'{\"timestamp\": 0}', NULL)]::procrastinate_job_to_defer_v1[]) AS ids"
)


async def run_job(world: World, name: str, *, asks_provider: bool = True, hours: int = 24) -> None:
    """Let a worker run the periodic job once."""
    desk = world.desk
    work = Work(
        None,
        RetentionService(desk.database, timedelta(days=90), system_clock),
        partial(count_stale_tenants, desk.database, timedelta(hours=24), world.service.clock),
        desk.reconciler if asks_provider else None,
        hours,
    )
    [[number]] = [row["ids"] for row in await rows(world.service.conninfo, DEFER % name)]
    with watched("procrastinate") as log:
        worker = asyncio.create_task(desk.queue.run_worker(work, polling_interval=0.02))
        await log.until(f"Job {name}[{number}](timestamp=0) ended with status: Success")
        worker.cancel()
        await asyncio.wait({worker})


async def drifted(world: World) -> Subscriber:
    """A tenant that has not heard of its subscription's end."""
    subscriber = await world.subscriber("price_pro")
    async with world.losing_deliveries():
        world.simulator.cancel(world.subscription(subscriber))
    await world.passes(minutes=1)
    return subscriber


async def test_a_tenant_that_has_drifted_is_repaired(world: World) -> None:
    subscriber = await drifted(world)
    assert await world.provider.state(subscriber) == ("pro", "active")
    await run_job(world, "reconcile_due_tenants")
    assert await world.record(subscriber) == world.truth(subscriber)


@pytest.mark.parametrize(
    ("asks_provider", "hours"), [(True, 0), (False, 24)], ids=["never wanted", "without a key"]
)
async def test_no_tenant_is_compared_when_disabled_or_impossible(
    world: World, asks_provider: bool, hours: int
) -> None:
    subscriber = await drifted(world)
    await run_job(world, "reconcile_due_tenants", asks_provider=asks_provider, hours=hours)
    assert await world.provider.state(subscriber) == ("pro", "active")


async def test_a_tenant_without_news_is_counted(world: World) -> None:
    await world.subscriber("price_pro")
    async with world.losing_deliveries():
        await world.passes(days=40)
    await run_job(world, "count_stale_tenants")
    query = "SELECT number FROM billing_findings WHERE name = 'stale_tenants'"
    assert await rows(world.service.conninfo, query) == [{"number": 1}]
