"""Reconciling the provider's whole account: subscriptions of which no event arrived, and those that
no tenant has.
"""

import asyncio
from typing import Final

import msgspec
import psycopg
import pytest

from tenantry.billing.customer_links import CustomerLinks
from tenantry.billing.reconcile_run import RunObserver
from tenantry.billing.subscription_survey import UnplacedSubscription
from tenantry.billing.tenant_comparison import Comparison
from tenantry.domain.audit import BY_OPERATOR
from tests.support.billing import Subscriber, rows, until_blocked
from tests.support.facts import ANY, EACH
from tests.support.patience import patient_database
from tests.support.truth import NOTHING, World, drifted, ids, missed_ids, running_world

LOCK_TENANT: Final = "SELECT FROM tenants WHERE id = %s FOR NO KEY UPDATE NOWAIT"
LOCK_NAME: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"


async def customer_of(world: World, subscriber: Subscriber) -> str | None:
    customer: str | None = (await world.provider.tenant(subscriber))["stripeCustomerId"]
    return customer


async def lost_first_payment(world: World, **options: object) -> Subscriber:
    """A tenant without a customer, whose owner subscribes while every event is lost."""
    subscriber = await world.subscriber(linked=False)
    async with world.losing_deliveries():
        world.subscribe(subscriber, "price_pro", **options)
    return subscriber


async def test_a_first_payment_whose_events_were_all_lost_is_found(world: World) -> None:
    subscriber, neighbour = (
        await lost_first_payment(world),
        await world.subscriber("price_business"),
    )
    assert await world.record(subscriber) == NOTHING
    [comparison] = (found := await world.compare()).drifted
    assert (found.compared, found.troubled, found.stopped) == (2, (), None)
    assert (comparison.tenant_id, comparison.linked, comparison.repaired) == (
        subscriber.id,
        (subscriber.customer,),
        True,
    )
    assert set(missed_ids(comparison)) == set(ids(world.lost(subscriber)))
    assert await world.record(subscriber) == world.truth(subscriber)
    assert await world.record(neighbour) == world.truth(neighbour)
    assert await customer_of(world, subscriber) == subscriber.customer
    assert (await world.compare()).drifted == ()


async def test_it_is_found_though_the_provider_lists_its_events_no_more(world: World) -> None:
    subscriber = await lost_first_payment(world, trial_days=60)
    await world.passes(days=31)
    [comparison] = (await world.compare()).drifted
    assert (comparison.linked, comparison.missed) == ((subscriber.customer,), ())
    assert await world.record(subscriber) == world.truth(subscriber)
    assert await customer_of(world, subscriber) == subscriber.customer


async def test_of_each_subscription_it_is_found_too(conninfo: str) -> None:
    """With `SUBSCRIPTIONS=each`, beside another subscription of the tenant."""
    async with running_world(conninfo, policy=EACH) as world:
        subscriber, second = await lost_first_payment(world), await world.subscriber("price_pro")
        async with world.losing_deliveries():
            further = world.subscribe(second, "price_business")
        found = (await world.compare()).drifted
        assert {each.tenant_id: each.linked for each in found} == {
            subscriber.id: (subscriber.customer,),
            second.id: (),
        }
        assert f"{further.id}.plan" in {name for each in found for name in each.drift}
        assert await world.record(subscriber) == world.truth(subscriber)
        assert await world.provider.state(second) == ("business", "active")
        assert (await world.compare()).drifted == ()


async def test_a_dry_run_names_it_and_writes_nothing(world: World) -> None:
    subscriber = await lost_first_payment(world)
    [comparison] = (await world.compare(dry_run=True)).drifted
    assert comparison.linked == (subscriber.customer,)
    assert comparison.drift["plan"] == ("free", "pro")
    assert (comparison.repaired, await world.record(subscriber)) == (False, NOTHING)
    assert await customer_of(world, subscriber) is None
    assert (
        await rows(
            world.service.conninfo,
            "SELECT FROM billing_findings WHERE name = 'unplaced_subscriptions'",
        )
        == []
    )


async def test_a_named_tenant_without_a_customer_is_compared(world: World) -> None:
    subscriber, other = await lost_first_payment(world), await lost_first_payment(world)
    assert drifted(await world.compare(subscriber)) == [subscriber.id]
    assert (await world.record(subscriber), await world.record(other)) == (
        world.truth(subscriber),
        NOTHING,
    )


async def test_a_named_tenant_of_which_the_provider_knows_nothing_is_compared(world: World) -> None:
    subscriber = await world.subscriber(linked=False)
    found = await world.compare(subscriber)
    assert (found.compared, found.drifted, found.unplaced) == (1, (), ())


async def test_a_named_tenant_is_compared_with_customers_that_are_not_linked(world: World) -> None:
    """It has a customer, whose subscription is over, and has paid by another one."""
    subscriber = await world.subscriber("price_pro")
    world.simulator.cancel(world.subscription(subscriber).id)
    await world.passes(minutes=1)
    async with world.losing_deliveries():
        world.simulator.subscribe(
            world.simulator.customer("cus_second"),
            "price_business",
            metadata={"orgId": subscriber.id},
        )
    assert drifted(await world.compare(subscriber, dry_run=True)) == [subscriber.id]
    assert drifted(await world.compare(subscriber)) == [subscriber.id]
    assert await world.provider.state(subscriber) == ("business", "active")


async def test_a_comparison_of_named_tenants_says_nothing_of_other_subscriptions(
    world: World,
) -> None:
    subscriber = await lost_first_payment(world)
    world.simulator.subscribe(world.simulator.customer("cus_unknown"), "price_pro")
    found = await world.compare(subscriber)
    assert (drifted(found), found.unplaced, found.unplaced_number) == ([subscriber.id], (), 0)


async def test_a_tenant_with_subscriptions_on_two_pages_is_told_once(world: World) -> None:
    subscriber = await world.subscriber(linked=False)
    async with world.losing_deliveries():
        world.simulator.subscribe(
            world.simulator.customer("cus_first"),
            "price_business",
            metadata={"orgId": subscriber.id},
        )
        for number in range(100):
            world.simulator.subscribe(
                world.simulator.customer(f"cus_{number}"),
                "price_pro",
                metadata={"orgId": "unknown"},
            )
        await world.passes(minutes=1)
        world.simulator.subscribe(
            world.simulator.customer("cus_second"), "price_pro", metadata={"orgId": subscriber.id}
        )
    await world.passes(minutes=1)
    told: list[Comparison] = []
    found = await world.reconciler.run(observer=RunObserver(found=told.append))
    assert (
        [each.linked for each in told]
        == [each.linked for each in found.drifted]
        == [("cus_second",)]
    )


async def test_the_first_claim_on_a_customer_stands(world: World) -> None:
    holder, second = await world.subscriber(), await world.subscriber(linked=False)
    async with world.losing_deliveries():
        world.simulator.subscribe(holder.customer, "price_pro", metadata={"orgId": second.id})
    [comparison] = (await world.compare()).drifted
    assert (comparison.tenant_id, comparison.linked) == (second.id, ())
    assert (await world.provider.state(second), await world.record(holder)) == (
        ("pro", "active"),
        NOTHING,
    )
    assert (await customer_of(world, second), await customer_of(world, holder)) == (
        None,
        holder.customer,
    )
    anomalies = [entry["anomalies"] for entry in (await world.provider.ledger(second)).values()]
    assert any("customer_taken" in found for found in anomalies)


async def test_a_tenant_is_locked_in_order_with_the_holder_of_the_customer_that_it_claims(
    world: World,
) -> None:
    """While the comparison waits for the holder, another transaction can lock the tenant, whose id
    is greater.
    """
    holder, second = await world.subscriber(), await world.subscriber(linked=False)
    assert holder.id < second.id
    async with world.losing_deliveries():
        world.simulator.subscribe(holder.customer, "price_pro", metadata={"orgId": second.id})
    conninfo = world.service.conninfo
    async with await psycopg.AsyncConnection.connect(conninfo) as other:
        await other.execute(LOCK_TENANT, (holder.id,))
        comparing = asyncio.create_task(world.compare())
        await until_blocked(conninfo)
        await other.execute(LOCK_TENANT, (second.id,))
    found = await comparing
    assert (drifted(found), found.stopped) == ([second.id], None)


async def test_a_comparison_that_a_deadlock_ends_is_tried_again(world: World) -> None:
    """The deadlock is made: the comparison has one name and wants the tenant, another transaction
    the reverse.
    """
    subscriber, conninfo = await world.subscriber(linked=False), world.service.conninfo
    world.simulator.customer("cus_a")
    world.simulator.customer("cus_b")
    async with world.losing_deliveries():
        world.simulator.subscribe("cus_a", "price_pro", metadata={"orgId": subscriber.id})
        world.simulator.subscribe("cus_b", "price_pro", metadata={"orgId": subscriber.id})
    connect = psycopg.AsyncConnection.connect
    async with await connect(conninfo) as pausing, await connect(conninfo) as opposing:
        # so that PostgreSQL aborts the comparison, not this transaction
        await opposing.execute("SET deadlock_timeout = '1h'")
        await pausing.execute(LOCK_NAME, ("customer cus_a",))
        comparing = asyncio.create_task(world.compare())
        await until_blocked(conninfo)
        await opposing.execute(LOCK_TENANT, (subscriber.id,))
        wanting = asyncio.create_task(opposing.execute(LOCK_NAME, ("customer cus_b",)))
        await until_blocked(conninfo, 2)
        await pausing.rollback()
        await wanting
        await opposing.rollback()
    found = await comparing
    assert (drifted(found), found.troubled, found.stopped) == ([subscriber.id], (), None)


async def test_a_removed_link_is_not_made_again_by_the_question_that_follows_it(
    world: World,
) -> None:
    subscriber = await world.subscriber("price_pro")
    async with patient_database(world.service.conninfo, pool_size=1) as database:
        await CustomerLinks(database, ANY, world.desk.outbox, world.service.clock).unlink(
            BY_OPERATOR, subscriber.customer
        )
    await world.reconciler.fetch_snapshot(subscriber.id)
    assert await customer_of(world, subscriber) is None


async def test_a_removed_link_is_not_made_again_by_the_checkout_session_that_had_made_it(
    world: World,
) -> None:
    subscriber = await world.subscriber(linked=False)
    session = world.simulator.checkout(
        "price_pro", metadata={"orgId": subscriber.id}, subscription_metadata={}
    )
    completed = world.simulator.complete(session.id)
    await world.passes(minutes=1)
    assert await customer_of(world, subscriber) == completed.customer
    async with patient_database(world.service.conninfo, pool_size=1) as database:
        await CustomerLinks(database, ANY, world.desk.outbox, world.service.clock).unlink(
            BY_OPERATOR, f"{completed.customer}"
        )
    found = await world.compare()
    assert (found.drifted, [each.customer_id for each in found.unplaced]) == (
        (),
        [completed.customer],
    )
    assert (await customer_of(world, subscriber), await world.record(subscriber)) == (None, NOTHING)


# Subscriptions that name no tenant


async def test_a_checkout_session_places_a_subscription_that_names_no_tenant(world: World) -> None:
    subscriber = await world.subscriber(linked=False)
    async with world.losing_deliveries():
        session = world.simulator.checkout(
            "price_pro", metadata={"orgId": subscriber.id}, subscription_metadata={}
        )
        completed = world.simulator.complete(session.id)
    looked = await world.compare(dry_run=True)
    assert (drifted(looked), looked.unplaced, await world.record(subscriber)) == (
        [subscriber.id],
        (),
        NOTHING,
    )
    [comparison] = (await world.compare()).drifted
    assert comparison.linked == (completed.customer,)
    assert await world.provider.state(subscriber) == ("pro", "active")
    assert await customer_of(world, subscriber) == completed.customer
    assert (await world.compare()).drifted == ()


@pytest.mark.parametrize("has_customer", [True, False])
async def test_a_buyers_reference_places_a_subscription_of_a_tenant_without_a_customer(
    conninfo: str, has_customer: bool
) -> None:
    policy = msgspec.structs.replace(ANY, checkout_reference_links=True)
    async with running_world(conninfo, policy=policy) as world:
        subscriber = await world.subscriber(
            "price_pro" if has_customer else None, linked=has_customer
        )
        async with world.losing_deliveries():
            session = world.simulator.checkout("price_business", client_reference_id=subscriber.id)
            bought = world.simulator.complete(session.id)
        found = await world.compare()
        assert [each.customer_id for each in found.unplaced] == (
            [bought.customer] if has_customer else []
        )
        assert drifted(found) == ([] if has_customer else [subscriber.id])
        assert await world.provider.state(subscriber) == (
            "pro" if has_customer else "business",
            "active",
        )


async def test_the_checkout_session_of_another_product_leaves_the_tenants_alone(
    world: World,
) -> None:
    subscriber = await lost_first_payment(world)
    session = world.simulator.checkout(
        "price_pro", metadata={"orgId": "Acme GmbH"}, subscription_metadata={}
    )
    foreign = world.simulator.complete(session.id)
    found = await world.compare()
    assert (drifted(found), found.stopped) == ([subscriber.id], None)
    assert [each.customer_id for each in found.unplaced] == [foreign.customer]


async def test_living_subscriptions_of_no_tenant_are_named_with_the_reason(world: World) -> None:
    ended = await world.subscriber()
    await world.service.operator.delete(f"/api/v1/tenants/{ended.id}")
    for customer in ("cus_nameless", "cus_unknown", "cus_past"):
        world.simulator.customer(customer)
    async with world.losing_deliveries():
        nameless = world.simulator.subscribe("cus_nameless", "price_pro")
        unknown = world.simulator.subscribe(
            "cus_unknown", "price_pro", metadata={"orgId": "unknown"}
        )
        of_ended = world.subscribe(ended, "price_pro")
        world.simulator.cancel(world.simulator.subscribe("cus_past", "price_pro").id)
    found = await world.compare()
    assert found.unplaced == (
        UnplacedSubscription(
            of_ended.id, ended.customer, ended.id, f"it names tenant {ended.id}, which has ended"
        ),
        UnplacedSubscription(
            unknown.id,
            "cus_unknown",
            "unknown",
            "it names tenant unknown, which does not exist",
        ),
        UnplacedSubscription(
            nameless.id,
            "cus_nameless",
            None,
            "it names no tenant, and its customer is linked to none",
        ),
    )
    assert (found.unplaced_number, found.drifted, found.troubled) == (3, (), ())
    [finding] = await rows(
        world.service.conninfo,
        "SELECT number FROM billing_findings WHERE name = 'unplaced_subscriptions'",
    )
    assert finding["number"] == 3


async def test_a_moved_subscription_is_found_by_its_former_tenant(world: World) -> None:
    former, present = await world.subscriber("price_pro"), await world.subscriber(linked=False)
    assert (await world.compare()).drifted == ()
    async with world.losing_deliveries():
        world.simulator.update_subscription(
            world.subscription(former).id, metadata={"orgId": present.id}
        )
    assert drifted(await world.compare()) == sorted([former.id, present.id])
    assert (await world.provider.state(former))[1] == "canceled"
    assert await world.provider.state(present) == ("pro", "active")


async def test_a_subscription_that_moved_to_a_tenant_with_another_is_found_by_the_former(
    world: World,
) -> None:
    former, present = await world.subscriber("price_pro"), await world.subscriber("price_pro")
    assert (await world.compare()).drifted == ()
    async with world.losing_deliveries():
        world.simulator.update_subscription(
            world.subscription(former).id, metadata={"orgId": present.id}
        )
    assert former.id in drifted(await world.compare())
    assert (await world.provider.state(former))[1] == "canceled"


async def test_a_suspended_tenant_is_compared(world: World) -> None:
    subscriber = await lost_first_payment(world)
    await world.provider.arrives(subscriber, suspended=True)
    assert drifted(await world.compare()) == [subscriber.id]
