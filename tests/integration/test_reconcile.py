"""Reconciliation with the provider: drift is found, reported and repaired permanently."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from tenantry.billing.customer_links import give_up_customer
from tenantry.billing.replay import ReplayService, Selection
from tenantry_devkit.simulator import Subscription
from tests.support import events
from tests.support.billing import Subscriber, rows
from tests.support.facts import ANY, EACH
from tests.support.patience import patient_database
from tests.support.truth import OVER, World, drifted, ids, missed_ids, running_world

UPDATED: Final = "customer.subscription.updated"
DELETED: Final = "customer.subscription.deleted"
FAILED: Final = "invoice.payment_failed"
SUCCEEDED: Final = "invoice.payment_succeeded"


# Each kind of loss


async def first_payment(world: World, subscriber: Subscriber) -> None:
    world.subscribe(subscriber, "price_pro")


async def upgrade(world: World, subscriber: Subscriber) -> None:
    world.simulator.change_plan(world.subscribe(subscriber, "price_pro"), "price_business")


async def trial(world: World, subscriber: Subscriber) -> None:
    world.subscribe(subscriber, "price_business", trial_days=10)


async def cancellation_ahead(world: World, subscriber: Subscriber) -> None:
    world.simulator.cancel(world.subscribe(subscriber, "price_pro"), at_period_end=True)


async def cancellation(world: World, subscriber: Subscriber) -> None:
    world.subscribe(subscriber, "price_pro")
    await world.passes(days=3)
    world.simulator.cancel(world.subscription(subscriber))


async def renewal(world: World, subscriber: Subscriber) -> None:
    world.subscribe(subscriber, "price_pro")
    await world.passes(days=31)


async def failed_renewal(world: World, subscriber: Subscriber) -> None:
    world.subscribe(subscriber, "price_pro")
    await world.passes(days=3)
    world.simulator.card_declines(subscriber.customer)
    await world.passes(days=28)


async def recovery(world: World, subscriber: Subscriber) -> None:
    await failed_renewal(world, subscriber)
    world.simulator.card_works(subscriber.customer)
    await world.passes(days=6)


Story = Callable[[World, Subscriber], Awaitable[None]]
STORIES: Final[list[Story]] = [
    first_payment,
    upgrade,
    trial,
    cancellation_ahead,
    cancellation,
    renewal,
    failed_renewal,
    recovery,
]


Lost = tuple[str, ...]
ALL: Final[Lost] = ()
DRIFTS: Final[list[tuple[Story, Lost]]] = [
    *((story, ALL) for story in STORIES),
    (trial, (UPDATED,)),
    (cancellation_ahead, (UPDATED,)),
    (cancellation, (DELETED,)),
    (failed_renewal, (UPDATED,)),
    (recovery, (UPDATED,)),
]
NO_DRIFTS: Final[list[tuple[Story, Lost]]] = [
    (cancellation, (UPDATED,)),
    (recovery, (FAILED,)),
    (recovery, (SUCCEEDED,)),
]
"""The events that arrive say what the lost ones do."""


@pytest.mark.parametrize(("story", "lost"), DRIFTS)
async def test_whatever_is_lost_is_repaired_and_the_missed_events_are_named(
    world: World, story: Story, lost: Lost
) -> None:
    subscriber = await loses(world, story, lost)
    assert await world.record(subscriber) != world.truth(subscriber)
    repaired = await world.compare_one(subscriber)
    assert await world.record(subscriber) == world.truth(subscriber)
    assert missed_ids(repaired) == listed(world, subscriber)
    assert set(missed_ids(repaired)) <= set(await world.provider.ledger(subscriber))
    assert await world.compare_one(subscriber) is None


@pytest.mark.parametrize(("story", "lost"), NO_DRIFTS)
async def test_lost_events_that_others_make_up_for_are_no_drift(
    world: World, story: Story, lost: Lost
) -> None:
    subscriber = await loses(world, story, lost)
    assert await world.record(subscriber) == world.truth(subscriber)
    assert await world.compare_one(subscriber) is None


async def loses(world: World, story: Story, lost: Lost) -> Subscriber:
    """A tenant to which a story happened, of which the events of these types never arrived."""
    subscriber, neighbour = await world.subscriber(), await world.subscriber("price_pro")
    async with world.losing_deliveries(*lost, subscribers=[subscriber]):
        await story(world, subscriber)
        await world.passes(hours=1)
    assert world.lost(neighbour) == []
    assert world.lost(subscriber) != []
    return subscriber


def listed(world: World, subscriber: Subscriber) -> list[str]:
    """The lost events that the provider still lists."""
    oldest = world.simulator.now.timestamp() - 30 * 24 * 3600
    return ids(event for event in world.lost(subscriber) if event.created > oldest)


# What a comparison says and does


async def test_a_dry_run_names_what_differs_and_writes_nothing(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    before = await everything(world)
    async with world.losing_deliveries():
        world.simulator.change_plan(world.subscription(subscriber), "price_business")
    drift = await world.compare_one(subscriber, dry_run=True)
    assert drift is not None
    assert (drift.drift, drift.repaired) == ({"plan": ("pro", "business")}, False)
    assert missed_ids(drift) == ids(world.lost(subscriber))
    assert await everything(world) == before


async def everything(world: World) -> list[list[dict[str, Any]]]:
    tables = (
        "tenants",
        "customers",
        "billing_events",
        "billing_bodies",
        "mails",
        "procrastinate_jobs",
    )
    return [await rows(world.service.conninfo, f"TABLE {table} ORDER BY 1") for table in tables]


async def test_drift_is_an_anomaly_in_the_ledger(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    async with world.losing_deliveries():
        world.simulator.change_plan(world.subscription(subscriber), "price_business")
    await world.compare(subscriber)
    [entry] = [
        entry
        for entry in (await world.provider.ledger(subscriber)).values()
        if "snapshot" in entry["type"]
    ]
    assert (entry["outcome"], entry["anomalies"]) == ("applied", ["drift"])
    assert (
        entry["reason"]
        == "The provider was asked. The subscription is active: price price_business means plan business."
    )
    assert (entry["before"]["plan"], entry["after"]["plan"]) == ("pro", "business")


async def test_without_drift_the_answer_confirms_and_is_no_anomaly(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    assert await world.compare_one(subscriber) is None
    assert [entry["anomalies"] for entry in await snapshots(world, subscriber)] == [[]]


async def snapshots(world: World, subscriber: Subscriber) -> list[dict[str, Any]]:
    """The provider's answers in the tenant's ledger."""
    return [
        entry
        for entry in (await world.provider.ledger(subscriber)).values()
        if "snapshot" in entry["type"]
    ]


async def test_answers_that_confirm_do_not_pile_up(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    for _ in range(5):
        assert await world.compare_one(subscriber) is None
    assert len(await snapshots(world, subscriber)) == 1


async def test_missed_events_take_their_place_before_the_answer(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    async with world.losing_deliveries():
        world.simulator.change_plan(world.subscription(subscriber), "price_business")
    [missed] = missed_ids(await world.compare_one(subscriber))
    entry = (await world.provider.ledger(subscriber))[missed]
    assert entry["outcome"] == "late"
    stored = await world.provider.stored(missed)
    assert stored is not None
    assert stored["body"]


async def test_events_that_the_last_comparison_has_made_up_for_are_not_looked_for_again(
    world: World,
) -> None:
    subscriber = await world.subscriber("price_pro")
    async with world.losing_deliveries():
        world.simulator.cancel(world.subscription(subscriber), at_period_end=True)
        world.simulator.resume(world.subscription(subscriber))
    await world.passes(hours=2)
    assert await world.compare_one(subscriber) is None
    await world.passes(days=1)
    async with world.losing_deliveries():
        world.simulator.change_plan(world.subscription(subscriber), "price_business")
    assert missed_ids(await world.compare_one(subscriber)) == ids(world.lost(subscriber)[2:])


async def test_an_event_that_comes_after_the_repair_changes_nothing(world: World) -> None:
    subscriber = await world.subscriber()
    async with world.losing_deliveries():
        world.subscribe(subscriber, "price_pro")
        await world.passes(days=1)
        world.simulator.cancel(world.subscription(subscriber))
    [repaired] = (await world.compare(subscriber)).drifted
    assert repaired.drift == {"subscription_status": ("none", "canceled")}
    before = await everything(world)
    for event in world.lost(subscriber):
        await world.simulator.resend(event)
    assert await everything(world) == before
    assert await world.record(subscriber) == OVER


async def test_an_event_that_was_never_listed_and_comes_after_the_repair_is_late(
    world: World,
) -> None:
    subscriber = await world.subscriber("price_pro", cancel_at_period_end=True)
    async with world.losing_deliveries():
        world.simulator.resume(world.subscription(subscriber))
        await world.passes(days=40)  # by then it is off the provider's list
    assert missed_ids(await world.compare_one(subscriber)) == ids(world.lost(subscriber)[1:])
    await world.simulator.resend(world.lost(subscriber)[0])
    entry = (await world.provider.ledger(subscriber))[world.lost(subscriber)[0].id]
    assert entry["outcome"] == "late"
    assert await world.record(subscriber) == world.truth(subscriber)


async def test_an_event_newer_than_the_answer_wins(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    async with world.losing_deliveries():
        world.simulator.change_plan(world.subscription(subscriber), "price_business")
    await world.compare(subscriber)
    await world.passes(minutes=1)
    world.simulator.change_plan(world.subscription(subscriber), "price_pro")
    await world.simulator.deliver()
    assert await world.provider.state(subscriber) == ("pro", "active")


async def test_an_answer_older_than_the_newest_event_does_not_undo_it(world: World) -> None:
    """The provider has not answered yet when an event comes in that it makes only after the
    question.
    """
    subscriber = await world.subscriber("price_pro")
    await world.simulator.advance(minutes=1)
    world.simulator.change_plan(world.subscription(subscriber), "price_business")
    await world.simulator.deliver()
    # an answer is dated before its second
    assert (await world.reconciler.run([subscriber.id])).drifted == ()
    assert await world.record(subscriber) == world.truth(subscriber)


async def test_replay_and_rebuild_keep_what_was_repaired(world: World, emptied: str) -> None:
    subscribers = [await world.subscriber("price_pro") for _ in range(3)]
    async with world.losing_deliveries():
        world.simulator.cancel(world.subscription(subscribers[0]))
        world.simulator.change_plan(world.subscription(subscribers[1]), "price_business")
    await world.compare()
    database = patient_database(emptied, pool_size=1)
    await database.open()
    service = ReplayService(database, ANY, world.service.clock)
    folded = [
        checked
        async for chunk in service.run(Selection(), dry_run=False)
        for checked in chunk.checked
    ]
    await database.close()
    assert [checked.differences for checked in folded] == [()] * 3
    assert [await world.record(subscriber) for subscriber in subscribers] == [
        world.truth(subscriber) for subscriber in subscribers
    ]


async def test_the_record_was_updated_when_it_was_repaired(world: World) -> None:
    subscriber = await world.subscriber("price_pro")
    before = (await world.provider.tenant(subscriber))["updatedAt"]
    assert await world.compare_one(subscriber) is None
    assert (await world.provider.tenant(subscriber))["updatedAt"] == before
    async with world.losing_deliveries():
        world.simulator.change_plan(world.subscription(subscriber), "price_business")
    await world.compare(subscriber)
    assert (await world.provider.tenant(subscriber))["updatedAt"] > before


# Mails


async def past_due(world: World, **lasting: float) -> Subscriber:
    """A tenant whose renewal fails while no event arrives for some time."""
    subscriber = await world.subscriber("price_pro")
    world.simulator.card_declines(subscriber.customer)
    await world.passes(days=30, hours=23)
    async with world.losing_deliveries():
        await world.passes(hours=2, **lasting)
    return subscriber


def failures(world: World, subscriber: Subscriber) -> list[str]:
    """The failed payments that were never heard of."""
    return [event.id for event in world.lost(subscriber) if event.type == FAILED]


async def test_a_missed_failure_mails_once(world: World) -> None:
    subscriber = await past_due(world)
    await world.compare(subscriber)
    assert await world.provider.state(subscriber) == ("pro", "past_due")
    [failure] = failures(world, subscriber)
    await world.simulator.resend(failure)
    await world.compare(subscriber)
    assert [each["cause"] for each in await world.provider.notifications(subscriber)] == [failure]


async def test_of_missed_failures_only_the_young_ones_mail(world: World) -> None:
    subscriber = await past_due(world, days=4)
    _, young = failures(world, subscriber)
    await world.compare(subscriber)
    assert await world.provider.state(subscriber) == ("pro", "past_due")
    assert [each["cause"] for each in await world.provider.notifications(subscriber)] == [young]


async def test_a_missed_failure_that_was_paid_since_does_not_mail(world: World) -> None:
    subscriber = await past_due(world)
    async with world.losing_deliveries():
        world.simulator.card_works(subscriber.customer)
        [invoice] = [each for each in world.simulator.invoices.values() if each.status == "open"]
        world.simulator.pay(invoice)
    await world.compare(subscriber)
    assert await world.provider.state(subscriber) == ("pro", "active")
    assert await world.provider.notifications(subscriber) == []


async def test_the_plan_behind_the_items_that_the_provider_lists_is_found(conninfo: str) -> None:
    async with running_world(conninfo, policy=EACH) as world:
        tenant = await world.subscriber()
        prices = [f"price_other_{number}" for number in range(10)]
        for price in prices:
            world.simulator.price(price)
        items = [(price, 1) for price in (*prices, "price_pro")]
        metadata = {"orgId": tenant.id}
        world.simulator.subscribe(tenant.customer, items, metadata=metadata)
        await world.passes()
        assert await world.provider.state(tenant) == ("free", "active")
        await world.reconciler.fetch_snapshot(tenant.id)
        assert await world.provider.state(tenant) == ("pro", "active")
        world.simulator.set_metadata(world.subscription(tenant), {"note": "changed"})
        await world.passes()
        assert await world.provider.state(tenant) == ("pro", "active")


async def deletes_customer(world: World, tenant: Subscriber) -> Subscription:
    """The provider deletes a tenant's customer; the end of its subscription is lost."""
    subscription = world.subscription(tenant)
    async with world.losing_deliveries():
        world.simulator.delete_customer(tenant.customer)
    created = int(world.service.clock.now.timestamp())
    deleted = {"object": "customer", "id": tenant.customer}
    await world.provider.send(events.event("customer.deleted", deleted, created=created))
    return subscription


async def test_the_subscription_of_a_deleted_customer_ends(world: World) -> None:
    tenant, unknown = await world.subscriber("price_pro"), await world.subscriber("price_pro")
    await deletes_customer(world, tenant)
    forgotten = await deletes_customer(world, unknown)
    del world.simulator.account.table(Subscription)[forgotten.id]
    found = await world.compare(tenant, unknown)
    assert (drifted(found), found.troubled) == ([tenant.id], ())
    assert await world.provider.state(tenant) == ("free", "canceled")
    assert await world.provider.state(unknown) == ("pro", "active")


async def test_a_customer_with_a_living_subscription_is_used_again(world: World) -> None:
    tenant, now = await world.subscriber("price_pro"), world.service.clock.now
    await give_up_customer(world.desk.database, ANY, tenant.id, tenant.customer, now, None)
    assert (await world.provider.tenant(tenant))["stripeCustomerId"] is None
    await world.compare_one(tenant)
    assert (await world.provider.tenant(tenant))["stripeCustomerId"] == tenant.customer


async def test_the_subscription_of_a_deleted_customer_does_not_hide_another(conninfo: str) -> None:
    async with running_world(conninfo, policy=EACH) as world:
        for is_known in (True, False):
            tenant = await world.subscriber("price_pro")
            former = await deletes_customer(world, tenant)
            other = f"{tenant.customer}_b"
            await world.provider.arrives(tenant, stripeCustomerId=other)
            world.simulator.customer(other)
            async with world.losing_deliveries():
                metadata = {"orgId": tenant.id}
                world.simulator.subscribe(other, "price_business", metadata=metadata)
            if not is_known:
                del world.simulator.account.table(Subscription)[former.id]
            found = await world.compare(tenant)
            assert (found.troubled, drifted(found)) == ((), [tenant.id])
            assert await world.provider.state(tenant) == ("business", "active")
