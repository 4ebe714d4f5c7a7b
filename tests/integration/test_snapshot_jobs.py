"""Jobs that fetch snapshots from the provider: after a checkout, and after an ambiguous order."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from procrastinate.jobs import Job

from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.jobs.tasks import PROVIDER_RETRY
from tenantry_devkit.simulator import Rules
from tests.support import events
from tests.support.billing import Provider, Subscriber, rows
from tests.support.cases import cases
from tests.support.facts import EACH
from tests.support.ports import free_port
from tests.support.provider_api import KEY, refusal, running_provider
from tests.support.service import Service
from tests.support.truth import (
    OVER,
    Stage,
    World,
    fetches,
    reconciling,
    running_world,
    until_fetches,
)

UPDATED: Final = "customer.subscription.updated"
DELETED: Final = "customer.subscription.deleted"
FAILED: Final = "invoice.payment_failed"
SUCCEEDED: Final = "invoice.payment_succeeded"
AT_ONCE: Final = (
    "UPDATE procrastinate_jobs SET scheduled_at = now() - interval '1 second' WHERE status = 'todo'"
)

TWICE: Final = """
INSERT INTO procrastinate_jobs (queue_name, task_name, lock, args, scheduled_at)
SELECT queue_name, task_name, lock, args, scheduled_at FROM procrastinate_jobs RETURNING id
"""
"""A worker was killed during a fetch while the next one waited: both wait."""

WAITS: Final = (
    "SELECT scheduled_at > now() AS waits FROM procrastinate_jobs WHERE task_name = 'ask_provider'"
)


@pytest.fixture
async def world(stage: Stage, emptied: str) -> AsyncIterator[World]:
    async with stage.world(rules=Rules(retry_days=())) as world:
        yield world


def none(jobs: list[dict[str, Any]]) -> bool:
    return not jobs


def put_back(jobs: list[dict[str, Any]]) -> bool:
    return [(job["status"], job["attempts"]) for job in jobs] == [("todo", 1)]


async def answered(world: World) -> None:
    """Run the waiting fetches now."""
    await rows(world.service.conninfo, AT_ONCE)
    async with world.desk.working():
        await until_fetches(world.service.conninfo, none)


# After a checkout


async def checked_out(world: World, *lost: str, linked: bool = False) -> Subscriber:
    """A tenant whose people have paid in a checkout, while events of these types were lost."""
    subscriber = await world.provider.subscriber(linked=linked)
    world.simulator.customer(subscriber.customer)
    session = world.simulator.checkout(
        "price_business", metadata={"orgId": subscriber.id}, customer=subscriber.customer
    )
    async with world.losing_deliveries(*lost):
        world.simulator.complete(session)
    return subscriber


@pytest.mark.parametrize("linked", [False, True])
async def test_a_checkout_fetches_the_subscription(world: World, linked: bool) -> None:
    subscriber = await checked_out(world, UPDATED, SUCCEEDED, linked=linked)
    assert await world.provider.state(subscriber) == ("free", "none")
    assert [job["args"] for job in await fetches(world.service.conninfo)] == [
        {"tenant_id": subscriber.id}
    ]
    await answered(world)
    assert await world.record(subscriber) == world.truth(subscriber)


async def test_a_duplicate_checkout_fetches_nothing(world: World) -> None:
    await checked_out(world, UPDATED)
    [completed] = world.simulator.events("checkout.session.completed")
    await world.simulator.resend(completed)
    assert len(await fetches(world.service.conninfo)) == 1


async def test_an_event_newer_than_the_snapshot_after_a_checkout_wins(world: World) -> None:
    subscriber = await checked_out(world)
    await world.passes(minutes=1)
    world.simulator.cancel(world.subscription(subscriber))
    await world.simulator.deliver()
    await answered(world)
    assert await world.record(subscriber) == OVER


async def test_without_a_key_nothing_is_fetched(fresh_service: Service) -> None:
    provider = Provider(fresh_service)
    subscriber = await provider.subscriber(linked=False)
    await provider.send(events.completed(org=subscriber.id, customer=subscriber.customer))
    assert (await provider.tenant(subscriber))["stripeCustomerId"] == subscriber.customer
    assert await fetches(fresh_service.conninfo) == []


# Where nothing decides the order


async def test_an_ambiguous_order_is_marked_and_fetches_a_snapshot_a_moment_later(
    world: World,
) -> None:
    subscriber = await world.subscriber("price_pro")
    now = int(world.simulator.now.timestamp())
    first, last = (
        events.updated(**subscriber.names, created=now, price=price)
        for price in ("price_pro", "price_business")
    )
    await world.provider.send(first, last)
    assert await world.provider.state(subscriber) == ("business", "active")
    ledger = await world.provider.ledger(subscriber)
    assert ledger[last["id"]]["anomalies"] == ["ambiguous_order"]
    assert first["id"] in ledger[last["id"]]["reason"]
    assert [job["args"] for job in await fetches(world.service.conninfo)] == [
        {"tenant_id": subscriber.id}
    ]
    [job] = await rows(world.service.conninfo, WAITS)
    assert job["waits"]
    await answered(world)
    assert await world.record(subscriber) == world.truth(subscriber)


async def test_a_last_failed_payment_that_arrives_after_the_end_of_its_subscription_changes_nothing(
    world: World,
) -> None:
    subscriber = await world.subscriber("price_pro")
    world.simulator.card_declines(subscriber.customer)
    await world.passes(days=27)
    async with world.losing_deliveries(FAILED):
        await world.passes(days=5)
    [failure] = world.lost(subscriber)
    [end] = world.simulator.events(DELETED)
    assert failure.created == end.created
    await world.simulator.resend(failure)
    assert await world.record(subscriber) == OVER
    assert await fetches(world.service.conninfo) == []


async def test_the_snapshot_decides_whatever_the_clocks_say(world: World) -> None:
    """The provider's clock stands still, in the second of the events or long before it."""
    for ahead in (0, 1_000_000):
        subscriber = await world.subscriber("price_pro")
        now = int(world.simulator.now.timestamp()) + ahead
        one, other = (
            events.updated(**subscriber.names, created=now, price=price)
            for price in ("price_business", "price_free")
        )
        await world.provider.send(one, other)
        assert await world.provider.state(subscriber) == ("free", "active")  # as they arrived
        await answered(world)
        assert await world.record(subscriber) == world.truth(subscriber)


@pytest.mark.parametrize("is_in_order", [True, False])
async def test_the_snapshot_decides_between_two_tenants_that_a_subscription_named_in_one_second(
    conninfo: str, is_in_order: bool
) -> None:
    """The event between the two that arrive is lost: the one that moved the subscription back."""
    async with running_world(conninfo, policy=EACH) as world:
        former, present = [await world.subscriber(linked=False) for _ in range(2)]
        world.simulator.card_declines(present.customer)
        async with world.losing_deliveries():
            subscription = world.subscribe(present, "price_pro")
            await world.passes(minutes=1)
            for named in (former, present):
                subscription = world.simulator.set_metadata(subscription, {"orgId": named.id})
            world.simulator.card_works(present.customer)
            world.simulator.pay(str(subscription.latest_invoice))
        moved, _, paid = world.simulator.events(UPDATED)[-3:]
        arriving = [moved, paid] if is_in_order else [paid, moved]
        for event in arriving:
            await world.simulator.resend(event)
        ledger = await world.provider.ledger(present if is_in_order else former)
        assert "ambiguous_order" in ledger[arriving[-1].id]["anomalies"]
        await answered(world)
        assert await world.record(present) == world.truth(present)
        assert await world.record(former) == OVER


async def test_a_decided_order_fetches_nothing(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    for price in ("price_business", "price_pro", "price_business"):
        world.simulator.change_plan(world.subscription(subscriber), price)
    await world.simulator.deliver()
    assert await fetches(world.service.conninfo) == []
    assert await world.provider.state(subscriber) == ("business", "active")


# A provider that does not answer


async def test_a_fetch_from_an_unavailable_provider_is_retried(world: World, emptied: str) -> None:
    subscriber = await checked_out(world, UPDATED)
    await rows(emptied, AT_ONCE)
    nowhere = f"http://127.0.0.1:{free_port()}"
    async with reconciling(emptied, nowhere, clock=world.service.clock) as desk, desk.working():
        await until_fetches(emptied, put_back)
    assert await world.provider.state(subscriber) == ("free", "none")
    await answered(world)
    assert await world.record(subscriber) == world.truth(subscriber)


async def test_a_requeued_fetch_does_not_collide_with_the_next_one(
    world: World, emptied: str
) -> None:
    """While the provider is being asked in vain, another checkout of the tenant comes in."""
    subscriber = await checked_out(world, UPDATED)
    await rows(emptied, AT_ONCE)
    async with running_provider() as server:
        server.open.clear()
        async with (
            reconciling(emptied, server.url, KEY, clock=world.service.clock) as desk,
            desk.working(),
        ):
            await server.until_requested(1)
            await world.provider.send(
                events.completed(org=subscriber.id, customer=subscriber.customer)
            )
            assert sorted(job["status"] for job in await fetches(emptied)) == ["doing", "todo"]
            server.answers.append(refusal(500))
            server.open.set()
            await until_fetches(
                emptied, lambda jobs: [job["status"] for job in jobs] == ["todo", "todo"]
            )
    await answered(world)
    assert await world.record(subscriber) == world.truth(subscriber)


async def test_of_many_requests_for_a_tenant_one_waits(world: World, emptied: str) -> None:
    subscriber = await checked_out(world, UPDATED)
    for _ in range(3):
        await world.provider.send(events.completed(org=subscriber.id, customer=subscriber.customer))
    assert len(await fetches(emptied)) == 1


async def test_events_of_a_tenant_are_ingested_while_two_fetches_wait(
    world: World, emptied: str
) -> None:
    subscriber = await checked_out(world, UPDATED)
    await rows(emptied, TWICE)
    await world.provider.send(events.completed(org=subscriber.id, customer=subscriber.customer))
    assert len(await fetches(emptied)) == 2


async def test_a_fetch_with_a_rejected_key_is_not_retried(world: World, emptied: str) -> None:
    subscriber = await checked_out(world, UPDATED)
    async with (
        reconciling(
            emptied, world.simulator.url, "sk_test_wrong", clock=world.service.clock
        ) as desk,
        desk.working(),
    ):
        await until_fetches(emptied, lambda jobs: [job["status"] for job in jobs] == ["failed"])
    assert await world.provider.state(subscriber) == ("free", "none")


@cases(
    ("exception", "attempts", "again"),
    [
        (ProviderUnavailableError(""), 29, True),
        (ProviderUnavailableError(""), 30, False),
        (ProviderRefusedError(""), 0, False),
        (RuntimeError(), 0, True),
        (asyncio.CancelledError(), 0, True),
    ],
)
def test_which_fetches_are_retried(exception: BaseException, attempts: int, again: bool) -> None:
    job = Job(
        id=1,
        status="doing",
        queue="provider",
        lock=None,
        queueing_lock=None,
        task_name="ask_provider",
        attempts=attempts,
    )
    assert (PROVIDER_RETRY.get_retry_decision(exception=exception, job=job) is not None) is again
