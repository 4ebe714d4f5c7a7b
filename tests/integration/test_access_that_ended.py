"""Access that ended by time because the event of an end is lost: enforced at once, recorded, and
asked about.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import psycopg
import pytest

from tenantry.billing import access_ends_store
from tenantry.billing.access_ends import record_access_ends
from tenantry.common.clock import from_epoch, system_clock
from tenantry.db.job_names import RECORD_ACCESS_ENDS
from tenantry.domain.billing.state import SubscriptionRule
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tests.support.billing import Subscriber, rows, until_blocked
from tests.support.emptying import SharedDatabase
from tests.support.facts import ANY, EACH
from tests.support.logs import watched
from tests.support.replays import replay_one
from tests.support.service import VERIFY
from tests.support.truth import Stage, World, fetches, running_stage

DEFER: Final = (
    "SELECT procrastinate_defer_jobs_v1(ARRAY[ROW('maintenance', '%s', 0, NULL, NULL, "
    "'{\"timestamp\": 0}', NULL)]::procrastinate_job_to_defer_v1[])"
)
ENDED: Final = "tenantry.access.ended"
LATE: Final = timedelta(days=3)
POLICIES: Final = {SubscriptionRule.ANY: ANY, SubscriptionRule.EACH: EACH}


@pytest.fixture(scope="module", params=SubscriptionRule)
async def either_stage(
    shared_database: SharedDatabase, request: pytest.FixtureRequest
) -> AsyncIterator[Stage]:
    async with running_stage(shared_database.conninfo, POLICIES[request.param]) as stage:
        yield stage


@pytest.fixture
async def either_world(either_stage: Stage, emptied: str) -> AsyncIterator[World]:
    """With each setting of `SUBSCRIPTIONS`."""
    async with either_stage.world() as world:
        yield world


async def recorded(world: World, *, asks_provider: bool = True) -> int:
    """How many entries the job adds."""
    desk = world.desk
    return await record_access_ends(
        desk.database,
        desk.outbox,
        ANY.catalog,
        world.service.clock,
        asks_provider=asks_provider,
    )


async def entries(world: World, subscriber: Subscriber) -> list[dict[str, Any]]:
    return [
        entry
        for entry in (await world.provider.ledger(subscriber)).values()
        if entry["type"] == ENDED
    ]


async def verified(subscriber: Subscriber) -> tuple[str, str, str]:
    """What a gateway gets for a key: access, effective plan and plan."""
    assert subscriber.organization is not None
    headers = (await subscriber.organization.owner.get(f"{VERIFY}-")).headers
    return headers["x-access"], headers["x-effective-plan"], headers["x-plan"]


async def leaving(world: World) -> tuple[Subscriber, timedelta]:
    """A tenant whose subscription has ended without an event, and the time until its access
    ends.
    """
    subscriber = await world.subscriber("price_pro")
    world.simulator.cancel(world.subscription(subscriber), at_period_end=True)
    await world.passes(minutes=1)
    end = from_epoch(world.subscription(subscriber).period_end)
    async with world.losing_deliveries():
        await world.passes(seconds=(end - world.service.clock.now).total_seconds() + 60)
    return subscriber, end + LATE - world.service.clock.now


async def test_a_lost_end_gives_access_for_three_days(world: World) -> None:
    subscriber, left = await leaving(world)
    access = (await world.provider.tenant(subscriber))["access"]
    assert (access["state"], access["plan"]) == ("full", "pro")
    world.service.clock.advance(seconds=left.total_seconds() - 1)
    assert await verified(subscriber) == ("full", "pro", "pro")
    assert await recorded(world) == 0
    world.service.clock.advance(seconds=2)
    assert await verified(subscriber) == ("none", "free", "pro")
    record = await world.provider.tenant(subscriber)
    assert record["access"]["reason"] == "The subscription is active. Its announced end has passed."
    assert (record["plan"], record["subscriptionStatus"]) == ("pro", "active")


async def test_the_ledger_says_that_access_ended_once(either_world: World) -> None:
    subscriber, left = await leaving(either_world)
    until = (await either_world.provider.tenant(subscriber))["access"]["until"]
    either_world.service.clock.advance(seconds=left.total_seconds() + 1)
    assert sum(await asyncio.gather(*(recorded(either_world) for _ in range(3)))) == 1
    [entry] = await entries(either_world, subscriber)
    assert (entry["created"], entry["outcome"]) == (until, "no_change")
    reason = (
        "Access to plan pro has ended. The subscription is active. Its announced end has passed."
    )
    assert entry["reason"] == f"{reason} The provider is asked."
    policy = POLICIES[either_world.reconciler.policy.subscriptions]
    assert (await replay_one(either_world.provider, subscriber, policy=policy)).is_right


async def test_the_end_is_published_once_with_its_moment(either_world: World) -> None:
    """The job runs a day later, in two workers."""
    subscriber, left = await leaving(either_world)
    until = (await either_world.provider.tenant(subscriber))["access"]["until"]
    either_world.service.clock.advance(seconds=left.total_seconds(), days=1)
    assert sum(await asyncio.gather(recorded(either_world), recorded(either_world))) == 1
    assert await recorded(either_world) == 0
    found = await either_world.service.operator.get(
        "/api/v1/operator/events", orgId=subscriber.id, types="tenant.*"
    )
    *earlier, event = found.json()["data"]
    assert (event["type"], event["at"]) == ("tenant.access_changed", until)
    assert until not in [each["at"] for each in earlier]
    record = await either_world.service.operator.get(f"/api/v1/operator/tenants/{subscriber.id}")
    assert event["data"] == record.json()
    assert event["data"]["access"]["state"] == "none"


# Like another entry of the tenant, but for its key.
RECORD_END: Final = """
INSERT INTO billing_events
SELECT (jsonb_populate_record(e, jsonb_build_object('id', %s::text, 'arrival', nextval('billing_arrivals')))).*
  FROM billing_events e
 WHERE tenant_id = %s
 LIMIT 1
"""


async def test_an_end_that_another_run_records_just_before_the_lock_is_left_to_it(
    either_world: World,
) -> None:
    subscriber, left = await leaving(either_world)
    until = (await either_world.provider.tenant(subscriber))["access"]["until"]
    at = int(datetime.fromisoformat(until).timestamp())
    either_world.service.clock.advance(seconds=left.total_seconds() + 1)
    conninfo = either_world.service.conninfo
    async with await psycopg.AsyncConnection.connect(conninfo) as other:
        # numbers the entries of no other transaction until it commits: the run waits, its snapshot
        # taken and its tenants not locked
        await other.execute("ALTER SEQUENCE billing_arrivals CACHE 1")
        running = asyncio.create_task(recorded(either_world))
        await until_blocked(conninfo)
        name = f"access_ended_{subscriber.id}_{at}"
        await other.execute(RECORD_END, (name, subscriber.id))
    assert await running == 0


async def test_the_provider_is_asked_and_its_answer_counts(world: World) -> None:
    subscriber, left = await leaving(world)
    world.service.clock.advance(seconds=left.total_seconds() + 1)
    before = len(await fetches(world.service.conninfo))
    assert await recorded(world) == 1
    asked = await fetches(world.service.conninfo)
    assert [job["args"]["tenant_id"] for job in asked[before:]] == [subscriber.id]
    await world.reconciler.fetch_snapshot(subscriber.id)
    record = await world.provider.tenant(subscriber)
    assert (record["plan"], record["subscriptionStatus"]) == ("free", "canceled")
    assert await recorded(world) == 0


async def test_access_is_back_where_the_provider_says_that_the_subscription_goes_on(
    either_world: World,
) -> None:
    """The event that revoked the cancellation is lost."""
    subscriber = await either_world.subscriber("price_pro")
    subscription = either_world.simulator.cancel(
        either_world.subscription(subscriber), at_period_end=True
    )
    await either_world.passes(minutes=1)
    async with either_world.losing_deliveries():
        either_world.simulator.resume(subscription)
        await either_world.passes(days=35)
    assert await verified(subscriber) == ("none", "free", "pro")
    assert await recorded(either_world) == 1
    await either_world.reconciler.fetch_snapshot(subscriber.id)
    assert await verified(subscriber) == ("full", "pro", "pro")


async def test_without_a_key_the_ledger_says_nothing_of_the_provider(world: World) -> None:
    subscriber, left = await leaving(world)
    world.service.clock.advance(seconds=left.total_seconds() + 1)
    assert await recorded(world, asks_provider=False) == 1
    [entry] = await entries(world, subscriber)
    assert entry["reason"].endswith("Its announced end has passed.")


async def test_old_ends_and_ended_tenants_are_left_alone(world: World) -> None:
    subscriber, left = await leaving(world)
    world.service.clock.advance(seconds=left.total_seconds() + 1)
    await rows(
        world.service.conninfo, "UPDATE tenants SET deleted_at = now() WHERE id = %s", subscriber.id
    )
    assert await recorded(world) == 0
    await rows(
        world.service.conninfo, "UPDATE tenants SET deleted_at = NULL WHERE id = %s", subscriber.id
    )
    world.service.clock.advance(days=30)
    assert await recorded(world) == 0


async def test_a_worker_records_access_that_ended(world: World) -> None:
    subscriber, left = await leaving(world)
    world.service.clock.advance(seconds=left.total_seconds() + 1)
    desk = world.desk
    record = partial(
        record_access_ends,
        desk.database,
        desk.outbox,
        ANY.catalog,
        world.service.clock,
        asks_provider=True,
    )
    work = Work(
        None,
        RetentionService(desk.database, timedelta(days=90), system_clock),
        record_access_ends=record,
    )
    await rows(world.service.conninfo, DEFER % RECORD_ACCESS_ENDS)
    with watched("procrastinate") as log:
        worker = asyncio.create_task(desk.queue.run_worker(work, polling_interval=0.02))
        await log.until("(timestamp=0) ended with status: Success")
        worker.cancel()
        await asyncio.wait({worker})
    assert len(await entries(world, subscriber)) == 1


async def test_the_job_finds_tenants_by_indexes(emptied: str) -> None:
    statement = access_ends_store.ENDED
    for name, value in (("since", "1000000000"), ("until", "2000000000"), ("most", "10")):
        statement = statement.replace(f"%({name})s", value)
    plan = str(await rows(f"{emptied} options='-c enable_seqscan=off'", f"EXPLAIN {statement}"))
    assert "tenants_by_first_access_end" in plan
    assert "tenants_by_last_access_end" in plan
    assert "tenants_by_more_access_ends" in plan
