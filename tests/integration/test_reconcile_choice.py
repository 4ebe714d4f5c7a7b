"""Which tenants are reconciled, and which of the provider's subscriptions counts."""

from typing import Final

import pytest

from tests.support.billing import Subscriber
from tests.support.truth import NOTHING, OVER, World, drifted, ids, missed_ids

UPDATED: Final = "customer.subscription.updated"
DELETED: Final = "customer.subscription.deleted"
FAILED: Final = "invoice.payment_failed"
SUCCEEDED: Final = "invoice.payment_succeeded"


async def test_a_plan_that_the_operator_gave_is_left_alone(world: World) -> None:
    subscriber = await world.subscriber()
    terms = {"plan": "business", "reason": "a contract"}
    await world.service.operator.put(f"/api/v1/tenants/{subscriber.id}/grants/contract", terms)
    assert await world.compare_one(subscriber) is None
    assert await world.provider.state(subscriber) == ("business", "none")


async def test_a_repair_leaves_grants_as_they_are(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    path = f"/api/v1/tenants/{subscriber.id}/grants"
    terms = {"plan": "business", "limits": {"projects": 7}, "reason": "a contract"}
    await world.service.operator.put(f"{path}/contract", terms)
    before = (await world.service.operator.get(path)).json()
    async with world.losing_deliveries():
        world.simulator.cancel(world.subscription(subscriber).id)
    comparison = await world.compare_one(subscriber)
    assert comparison is not None
    assert comparison.repaired
    assert (await world.service.operator.get(path)).json() == before
    tenant = await world.provider.tenant(subscriber)
    assert (tenant["access"]["plan"], tenant["access"]["state"]) == ("business", "full")


async def test_a_tenant_without_a_customer_is_not_compared(world: World) -> None:
    await world.subscriber(linked=False)
    assert (await world.compare()).compared == 0


async def test_a_tenant_that_has_ended_is_not_compared(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    await world.service.operator.delete(f"/api/v1/tenants/{subscriber.id}")
    assert (await world.compare()).compared == 0


async def test_a_subscription_that_waits_for_its_first_payment_does_not_count(world: World) -> None:
    subscriber = await world.subscriber()
    world.simulator.card_declines(subscriber.customer)
    async with world.losing_deliveries():
        world.subscribe(subscriber, "price_pro")
    assert world.subscription(subscriber).status == "incomplete"
    assert await world.compare_one(subscriber) is None
    assert await world.record(subscriber) == NOTHING


async def test_a_subscription_that_ended_without_its_first_payment_raises_no_plan(
    world: World,
) -> None:
    subscriber = await world.subscriber()
    world.simulator.card_declines(subscriber.customer)
    async with world.losing_deliveries():
        world.subscribe(subscriber, "price_pro")
        await world.simulator.advance(days=2)
    assert world.subscription(subscriber).status == "incomplete_expired"
    assert await world.compare_one(subscriber) is None
    assert await world.record(subscriber) == NOTHING


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_subscription_known_from_the_provider_alone_outlives_its_link_if_it_names_the_tenant(
    world: World, *, is_named: bool
) -> None:
    subscriber = await world.subscriber()
    async with world.losing_deliveries():
        subscription = world.subscribe(subscriber, "price_pro")
        if not is_named:
            world.simulator.update_subscription(subscription, metadata={"orgId": ""})
    await world.compare(subscriber)
    assert await world.provider.state(subscriber) == ("pro", "active")
    await world.provider.arrives(subscriber, stripeCustomerId=None)
    assert await world.provider.state(subscriber) == ("pro", "active")
    await world.compare()
    assert await world.provider.state(subscriber) == (
        ("pro", "active") if is_named else ("free", "canceled")
    )


async def test_a_first_payment_that_comes_late_counts(world: World) -> None:
    subscriber = await world.subscriber()
    world.simulator.card_declines(subscriber.customer)
    async with world.losing_deliveries():
        subscription = world.subscribe(subscriber, "price_pro")
        world.simulator.card_works(subscriber.customer)
        world.simulator.pay(subscription.latest_invoice or "")
    await world.compare(subscriber)
    assert await world.record(subscriber) == world.truth(subscriber)


async def test_the_subscription_of_the_events_counts_while_active(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    async with world.losing_deliveries():
        world.subscribe(subscriber, "price_business")
    assert await world.compare_one(subscriber) is None
    assert await world.provider.state(subscriber) == ("pro", "active")


async def test_another_subscription_counts_after_the_first_has_ended(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    first = world.subscription(subscriber)
    async with world.losing_deliveries():
        world.subscribe(subscriber, "price_business")
        world.simulator.cancel(first)
    await world.compare(subscriber)
    assert await world.provider.state(subscriber) == ("business", "active")


async def test_a_cancellation_that_arrived_does_not_hide_another_subscription(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    world.subscribe(subscriber, "price_business")
    await world.passes(minutes=1)
    world.simulator.cancel(next(iter(world.simulator.subscriptions)))
    await world.passes(minutes=1)
    assert await world.provider.state(subscriber) == ("free", "canceled")  # as every event counts
    await world.compare(subscriber)
    assert await world.provider.state(subscriber) == ("business", "active")


async def test_of_a_tenants_customers_the_living_subscription_counts(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    other = Subscriber(subscriber.id, f"{subscriber.customer}_b", subscriber.organization)
    world.simulator.customer(other.customer)
    await world.provider.arrives(subscriber, stripeCustomerId=other.customer)
    async with world.losing_deliveries():
        world.simulator.cancel(world.subscription(subscriber))
        world.subscribe(other, "price_business")
    found = await world.compare_one(subscriber)
    assert set(missed_ids(found)) == set(ids(world.lost()))
    assert await world.record(other) == world.truth(other)


async def test_a_subscription_of_another_tenant_does_not_count(world: World) -> None:
    subscriber, other = await world.subscriber("price_pro"), await world.subscriber()
    async with world.losing_deliveries():
        world.simulator.set_metadata(world.subscription(subscriber), {"orgId": other.id})
    await world.compare(subscriber)
    assert await world.provider.state(subscriber) == ("free", "canceled")


async def test_a_subscription_without_a_tenants_name_is_that_of_its_customer(world: World) -> None:
    """Whether its events arrive or are lost."""
    arriving, losing_deliveries = await world.subscriber(), await world.subscriber()
    world.simulator.subscribe(arriving.customer, "price_pro")
    await world.passes(minutes=1)
    async with world.losing_deliveries():
        world.simulator.subscribe(losing_deliveries.customer, "price_pro")
    assert (await world.provider.state(arriving), await world.record(losing_deliveries)) == (
        ("pro", "active"),
        NOTHING,
    )
    assert drifted(await world.compare(arriving, losing_deliveries)) == [losing_deliveries.id]
    assert await world.record(losing_deliveries) == world.truth(losing_deliveries)


async def test_a_subscription_of_a_customer_that_is_not_linked_is_asked_for_too(
    world: World,
) -> None:
    """The events name the tenant themselves; its customer is another one."""
    subscriber = await world.subscriber()
    payer = Subscriber(subscriber.id, f"{subscriber.customer}_payer", None)
    world.simulator.customer(payer.customer)
    world.subscribe(payer, "price_pro")
    await world.passes(minutes=1)
    assert await world.provider.state(subscriber) == ("pro", "active")
    assert await world.compare_one(subscriber) is None
    async with world.losing_deliveries():
        world.simulator.change_plan(world.subscription(payer), "price_business")
    assert await world.compare_one(subscriber) is not None
    assert await world.record(subscriber) == world.truth(payer)


async def test_a_nameless_subscription_of_a_customer_that_is_not_linked_does_not_count(
    world: World,
) -> None:
    subscriber = await world.subscriber()
    payer = Subscriber(subscriber.id, f"{subscriber.customer}_payer", None)
    world.simulator.customer(payer.customer)
    own = world.subscribe(payer, "price_pro")
    world.simulator.subscribe(payer.customer, "price_business")
    await world.passes(minutes=1)
    async with world.losing_deliveries():
        world.simulator.cancel(own)
    await world.compare(subscriber)
    assert await world.record(subscriber) == OVER


async def test_several_tenants_by_name(world: World) -> None:
    one, two, three = [await world.subscriber("price_pro") for _ in range(3)]
    async with world.losing_deliveries():
        for subscriber in (one, two, three):
            world.simulator.cancel(world.subscription(subscriber))
    assert drifted(await world.compare(two, three)) == [two.id, three.id]
    assert drifted(await world.compare()) == [one.id]


async def test_a_period_that_began_without_news_is_repaired(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    async with world.losing_deliveries():
        await world.passes(days=32)
    comparison = await world.compare_one(subscriber)
    assert comparison is not None
    assert set(comparison.drift) == {"current_period_end"}
    assert await world.record(subscriber) == world.truth(subscriber)
