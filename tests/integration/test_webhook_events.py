"""The effect of the five events on a tenant, read over the API (SPEC 3 and 6, CONTRACT 6)."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from tenantry.domain.billing.state import SubscriptionRule
from tests.support import events
from tests.support.billing import EVENTS, Provider, notice
from tests.support.events import MONTH, NOW, Shape
from tests.support.postgres import PostgresServer
from tests.support.service import Service, running_service

PERIOD_END = "2026-01-31T12:00:00Z"
BOTH_SHAPES = [(Shape.OLD, False), (Shape.NEW, True)]


@pytest.fixture
def provider(service: Service) -> Provider:
    return Provider(service)


@pytest.fixture(scope="module")
async def providers(postgres: PostgresServer) -> AsyncIterator[dict[str, Provider]]:
    """The provider of a service with each setting of `SUBSCRIPTIONS`, where the buyer's reference
    of a checkout links a customer.
    """
    async with AsyncExitStack() as stack:
        found = {}
        for mode in SubscriptionRule:
            conninfo = stack.enter_context(postgres.database())
            running = running_service(
                conninfo, CHECKOUT_REFERENCE_LINKS="true", SUBSCRIPTIONS=mode.value
            )
            found[mode.value] = Provider(await stack.enter_async_context(running))
        yield found


def billing(record: dict[str, Any]) -> tuple[str, str, str | None, bool]:
    return (
        record["plan"],
        record["subscriptionStatus"],
        record["currentPeriodEnd"],
        record["cancelAtPeriodEnd"],
    )


@pytest.mark.parametrize(("shape", "expanded"), BOTH_SHAPES)
async def test_an_update_sets_the_four_fields(
    provider: Provider, shape: Shape, expanded: bool
) -> None:
    subscriber = await provider.subscriber()
    event = events.updated(
        **subscriber.names, status="trialing", cancel=True, shape=shape, expanded=expanded
    )
    await provider.send(event)
    assert subscriber.organization is not None
    record = (await subscriber.organization.owner.get(subscriber.organization.path)).json()
    assert billing(record) == ("pro", "trialing", PERIOD_END, True)
    assert record["stripeCustomerId"] == subscriber.customer


async def test_an_end_sets_the_three_fields(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(
        events.updated(**subscriber.names, cancel=True),
        events.deleted(**subscriber.names, created=NOW + 1),
    )
    assert billing(await provider.tenant(subscriber)) == ("free", "canceled", None, True)


@pytest.mark.parametrize("price", ["price_unknown", None])
async def test_a_price_that_means_no_plan_means_free(provider: Provider, price: str | None) -> None:
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names, price=price)
    await provider.send(event)
    assert await provider.state(subscriber) == ("free", "active")
    assert "which means plan free" in (await provider.ledger(subscriber))[event["id"]]["reason"]


@pytest.mark.parametrize(("shape", "expanded"), BOTH_SHAPES)
async def test_a_failed_payment_makes_past_due_and_one_notification(
    provider: Provider, shape: Shape, expanded: bool
) -> None:
    subscriber = await provider.subscriber()
    failure = events.failed(
        customer=subscriber.customer, created=NOW + 1, shape=shape, expanded=expanded
    )
    await provider.send(events.updated(**subscriber.names), failure)
    record = await provider.tenant(subscriber)
    assert billing(record) == ("pro", "past_due", PERIOD_END, False)
    [made] = await provider.notifications(subscriber)
    assert made.pop("id")
    assert made == notice(failure, subscriber, record["ownerId"])


@pytest.mark.parametrize("url", [None, "javascript:alert(1)", 7])
async def test_without_a_web_address_the_notification_has_no_url(
    provider: Provider, url: Any
) -> None:
    subscriber = await provider.subscriber()
    failure = events.failed(customer=subscriber.customer)
    failure["data"]["object"]["hosted_invoice_url"] = url
    await provider.send(failure)
    [made] = await provider.notifications(subscriber)
    assert made["data"] == {"invoiceUrl": None}


@pytest.mark.parametrize(("shape", "expanded"), BOTH_SHAPES)
async def test_a_payment_clears_past_due(provider: Provider, shape: Shape, expanded: bool) -> None:
    subscriber = await provider.subscriber()
    await provider.send(
        events.updated(**subscriber.names, status="trialing"),
        events.failed(customer=subscriber.customer, created=NOW + 1, shape=shape),
        events.succeeded(
            customer=subscriber.customer, created=NOW + 2, shape=shape, expanded=expanded
        ),
    )
    assert await provider.state(subscriber) == ("pro", "trialing")


async def test_a_payment_is_logged(provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    subscriber = await provider.subscriber()
    payment = events.succeeded(customer=subscriber.customer)
    with caplog.at_level(logging.INFO):
        await provider.send(payment)
    assert (
        f"payment received: tenant={subscriber.id} invoice=in_acme event={payment['id']}"
        in caplog.text
    )
    assert await provider.state(subscriber) == ("free", "none")


@pytest.mark.parametrize("expanded", [False, True])
async def test_a_checkout_links_the_customer(provider: Provider, expanded: bool) -> None:
    subscriber = await provider.subscriber(linked=False)
    await provider.send(
        events.completed(org=subscriber.id, customer=subscriber.customer, expanded=expanded)
    )
    assert (await provider.tenant(subscriber))["stripeCustomerId"] == subscriber.customer
    await provider.send(events.failed(customer=subscriber.customer))
    assert await provider.state(subscriber) == ("free", "past_due")


@pytest.mark.parametrize("mode", ["payment", "setup"])
async def test_another_checkout_links_nothing(provider: Provider, mode: str) -> None:
    subscriber = await provider.subscriber(linked=False)
    await provider.send(
        events.completed(org=subscriber.id, customer=subscriber.customer, mode=mode)
    )
    assert (await provider.tenant(subscriber))["stripeCustomerId"] is None


async def test_a_buyers_reference_links_nothing(provider: Provider) -> None:
    subscriber = await provider.subscriber(linked=False)
    await provider.send(
        events.completed(org=None, reference=subscriber.id, customer=subscriber.customer)
    )
    assert (await provider.tenant(subscriber))["stripeCustomerId"] is None


async def test_a_buyers_reference_links_where_it_may(providers: dict[str, Provider]) -> None:
    provider = providers["any"]
    subscriber = await provider.subscriber(linked=False)
    await provider.send(
        events.completed(org=None, reference=subscriber.id, customer=subscriber.customer)
    )
    assert (await provider.tenant(subscriber))["stripeCustomerId"] == subscriber.customer


@pytest.mark.parametrize("mode", ["any", "each"])
async def test_a_buyers_reference_adds_no_customer_to_a_tenant_that_has_one(
    providers: dict[str, Provider], mode: str
) -> None:
    provider = providers[mode]
    subscriber = await provider.subscriber()
    buyer = f"cus_buyer_of_{subscriber.id}"
    await provider.send(events.updated(**subscriber.names))
    purchase = events.completed(org=None, reference=subscriber.id, customer=buyer)
    bought = events.updated(
        org=None, customer=buyer, subscription_id=f"sub_{buyer}", price="price_business"
    )
    await provider.send(
        purchase, bought, events.failed(customer=buyer), events.failed(customer=buyer)
    )
    assert (await provider.tenant(subscriber))["stripeCustomerId"] == subscriber.customer
    assert await provider.state(subscriber) == ("pro", "active")
    assert await provider.notifications(subscriber) == []
    stored = await provider.stored(purchase["id"])
    assert stored is not None
    assert (stored["outcome"], stored["anomalies"]) == ("no_change", ["reference_refused"])


async def test_a_buyers_reference_that_waits_for_its_tenant_links_nothing_more(
    providers: dict[str, Provider],
) -> None:
    provider = providers["any"]
    unlinked = provider.unlinked()
    await provider.send(events.completed(org=None, reference=unlinked.id, customer="cus_buyer"))
    await provider.arrives(unlinked, stripeCustomerId=unlinked.customer)
    assert (await provider.tenant(unlinked))["stripeCustomerId"] == unlinked.customer


async def test_a_customer_is_not_taken_from_its_tenant(provider: Provider) -> None:
    holder, claimant = await provider.subscriber(), await provider.subscriber(linked=False)
    claim = events.completed(org=claimant.id, customer=holder.customer)
    also = events.updated(org=claimant.id, customer=holder.customer)
    await provider.send(claim, also)
    assert (await provider.tenant(claimant))["stripeCustomerId"] is None
    assert (await provider.tenant(holder))["stripeCustomerId"] == holder.customer
    ledger = await provider.ledger(claimant)
    assert "belongs to another organization" in ledger[claim["id"]]["reason"]
    assert "belongs to another organization" in ledger[also["id"]]["reason"]
    assert await provider.state(claimant) == ("pro", "active")


async def test_a_tenant_may_have_several_customers_and_shows_the_last(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    second = f"{subscriber.customer}_second"
    await provider.send(events.completed(org=subscriber.id, customer=second))
    assert (await provider.tenant(subscriber))["stripeCustomerId"] == second
    await provider.send(events.failed(customer=subscriber.customer))
    assert await provider.state(subscriber) == ("free", "past_due")


async def test_a_subscription_links_its_customer_where_neither_is_linked(
    provider: Provider,
) -> None:
    subscriber = await provider.subscriber(linked=False)
    await provider.send(
        events.updated(**subscriber.names),
        events.failed(customer=subscriber.customer, created=NOW + 1),
    )
    assert (await provider.tenant(subscriber))["stripeCustomerId"] == subscriber.customer
    assert await provider.state(subscriber) == ("pro", "past_due")


async def test_an_end_links_nothing(provider: Provider) -> None:
    subscriber = await provider.subscriber(linked=False)
    await provider.send(events.deleted(**subscriber.names))
    assert (await provider.tenant(subscriber))["stripeCustomerId"] is None


async def test_the_ledger_shows_the_outcome_of_an_event(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names, created=NOW - 60)
    await provider.send(event)
    assert subscriber.organization is not None
    entry = (await subscriber.organization.owner.get(f"{EVENTS}/{event['id']}")).json()
    received = entry.pop("receivedAt")
    assert received.startswith("2026-01-01T12:00:00")
    assert entry == {
        "id": event["id"],
        "type": "customer.subscription.updated",
        "created": "2026-01-01T11:59:00Z",
        "livemode": False,
        "outcome": "applied",
        "reason": "The subscription is active: price price_pro means plan pro.",
        "before": {
            "plan": "free",
            "subscriptionStatus": "none",
            "currentPeriodEnd": None,
            "cancelAtPeriodEnd": False,
        },
        "after": {
            "plan": "pro",
            "subscriptionStatus": "active",
            "currentPeriodEnd": PERIOD_END,
            "cancelAtPeriodEnd": False,
        },
        "anomalies": [],
        "reversal": None,
    }


async def test_the_same_event_again_changes_nothing(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    failure = events.failed(customer=subscriber.customer)
    await provider.send(failure, events.updated(**subscriber.names, created=NOW + 1))
    record = await provider.tenant(subscriber)
    await provider.send(failure)
    assert await provider.tenant(subscriber) == record
    assert len(await provider.notifications(subscriber)) == 1


async def test_fifty_concurrent_duplicates_count_once(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    failure = events.failed(customer=subscriber.customer)
    assert await provider.send_together([failure] * 50) == [200] * 50
    assert await provider.state(subscriber) == ("free", "past_due")
    assert list(await provider.ledger(subscriber)) == [failure["id"]]
    assert len(await provider.notifications(subscriber)) == 1


async def test_concurrent_duplicates_among_other_events_count_once(provider: Provider) -> None:
    subscribers = [await provider.subscriber() for _ in range(5)]
    failures = [events.failed(customer=subscriber.customer) for subscriber in subscribers]
    assert set(await provider.send_together(failures * 8)) == {200}
    for subscriber in subscribers:
        assert len(await provider.notifications(subscriber)) == 1


async def test_many_events_of_many_tenants_at_once(provider: Provider) -> None:
    subscribers = [await provider.subscriber() for _ in range(20)]
    sent = []
    for number, subscriber in enumerate(subscribers):
        sent += [
            events.updated(**subscriber.names, created=NOW + number),
            events.failed(customer=subscriber.customer, created=NOW + number + 100),
            events.updated(
                **subscriber.names,
                created=NOW + number + 200,
                status="past_due",
                price="price_business",
            ),
        ]
    assert set(await provider.send_together(sent[::-1])) == {200}
    assert {await provider.state(subscriber) for subscriber in subscribers} == {
        ("business", "past_due")
    }


async def test_a_late_update_does_not_revive_an_ended_tenant(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    late = events.updated(**subscriber.names, created=NOW - 5)
    await provider.send(events.deleted(**subscriber.names), late)
    assert billing(await provider.tenant(subscriber)) == ("free", "canceled", None, False)
    assert (await provider.ledger(subscriber))[late["id"]]["outcome"] == "late"


HISTORY: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("updated", {"status": "trialing"}),
    ("updated", {"previous": {"status": "trialing"}}),
    ("failed", {}),
    ("updated", {"status": "past_due", "cancel": True}),
    ("succeeded", {}),
)


@pytest.mark.parametrize("order", [(1, 3, 0, 4, 2), (4, 3, 2, 1, 0)])
async def test_events_in_any_order_of_arrival_give_the_same_state(
    provider: Provider, order: tuple[int, ...]
) -> None:
    subscriber = await provider.subscriber()
    history = []
    for step, (kind, fields) in enumerate(HISTORY):
        made = getattr(events, kind)
        names = subscriber.names if kind == "updated" else {"customer": subscriber.customer}
        history.append(made(**names, created=NOW + 10 * step, **fields))
    await provider.send(*(history[step] for step in order))
    assert billing(await provider.tenant(subscriber)) == ("pro", "active", PERIOD_END, True)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("order", [(1, 2, 0), (2, 1, 0)])
async def test_events_of_one_second_take_the_order_that_they_prove(
    provider: Provider, order: tuple[int, ...], together: bool
) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**subscriber.names, status="incomplete", created=NOW - 60))
    chain = [
        events.updated(**subscriber.names, status="active", previous={"status": "incomplete"}),
        events.updated(**subscriber.names, status="past_due", previous={"status": "active"}),
        events.updated(
            **subscriber.names,
            status="active",
            cancel=True,
            previous={"status": "past_due", "cancel_at_period_end": False},
        ),
    ]
    arriving = [chain[step] for step in order]
    if together:
        assert set(await provider.send_together(arriving)) == {200}
    else:
        await provider.send(*arriving)
    assert billing(await provider.tenant(subscriber)) == ("pro", "active", PERIOD_END, True)


@pytest.mark.parametrize("shape", list(Shape))
async def test_a_plan_change_and_its_reversal_in_one_second(
    provider: Provider, shape: Shape
) -> None:
    subscriber = await provider.subscriber()

    def change(old: str, new: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": "si_1", "price": {"id": old}}
        if shape is Shape.NEW:
            item["current_period_end"] = NOW + MONTH
        return events.updated(
            **subscriber.names, price=new, previous={"items": {"data": [item]}}, shape=shape
        )

    up, down = change("price_pro", "price_business"), change("price_business", "price_pro")
    await provider.send(events.updated(**subscriber.names, created=NOW - 60), down, up)
    assert await provider.state(subscriber) == ("pro", "active")


async def test_a_late_failure_of_a_paid_invoice_sends_no_mail(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(
        events.succeeded(customer=subscriber.customer, created=NOW + 10),
        events.failed(customer=subscriber.customer),
    )
    assert await provider.state(subscriber) == ("free", "active")
    assert await provider.notifications(subscriber) == []


async def test_a_late_failure_sends_a_mail_unless_its_invoice_is_paid(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(
        events.succeeded(customer=subscriber.customer, invoice_id="in_other", created=NOW + 10),
        events.failed(customer=subscriber.customer),
    )
    assert len(await provider.notifications(subscriber)) == 1


async def test_every_subscription_of_a_tenant_counts(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    other = {**subscriber.names, "subscription_id": "sub_other", "subscription_created": NOW}
    await provider.send(
        events.updated(**subscriber.names),
        events.updated(**other, created=NOW + 1),
        events.deleted(**subscriber.names, created=NOW + 2),
    )
    assert await provider.state(subscriber) == ("free", "canceled")


async def test_with_each_the_end_of_one_subscription_leaves_the_other(
    providers: dict[str, Provider],
) -> None:
    provider = providers["each"]
    subscriber = await provider.subscriber()
    other = {
        **subscriber.names,
        "subscription_id": f"sub_other_{subscriber.id}",
        "subscription_created": NOW,
    }
    await provider.send(
        events.updated(**other, price="price_business", created=NOW + 1),
        events.updated(**subscriber.names, created=NOW + 2),
        events.updated(**other, price="price_business", created=NOW + 3),
        events.deleted(**subscriber.names, created=NOW + 4),
    )
    assert await provider.state(subscriber) == ("business", "active")
    await provider.send(events.deleted(**other, created=NOW + 5))
    assert await provider.state(subscriber) == ("free", "canceled")


async def test_an_event_without_created_counts_as_created_on_arrival(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    event = events.deleted(**subscriber.names)
    del event["created"]
    await provider.send(events.updated(**subscriber.names, created=NOW - 1), event)
    assert await provider.state(subscriber) == ("free", "canceled")
    assert (await provider.ledger(subscriber))[event["id"]]["created"] == "2026-01-01T12:00:00Z"


async def test_an_ended_tenant_gets_no_mail(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    assert (
        await provider.service.operator.delete(f"/api/v1/tenants/{subscriber.id}")
    ).status_code == 204
    await provider.send(events.failed(customer=subscriber.customer))
    assert await provider.notifications(subscriber) == []


async def test_the_answer_comes_after_the_commit(provider: Provider) -> None:
    subscriber = await provider.subscriber()

    async def deliver_and_read(number: int) -> bool:
        event = events.updated(**subscriber.names, created=NOW + number)
        await provider.send(event)
        return event["id"] in await provider.ledger(subscriber)

    assert all(await asyncio.gather(*(deliver_and_read(number) for number in range(20))))


@pytest.mark.parametrize("mode", ["any", "each"])
async def test_an_invoice_without_a_customer_is_placed_by_its_subscription(
    providers: dict[str, Provider], mode: str
) -> None:
    """Whichever arrives first."""
    provider = providers[mode]
    at = int(provider.service.clock.now.timestamp())
    bystander = await provider.subscriber()
    await provider.send(events.updated(**bystander.names))
    for order in [(0, 1, 2), (2, 1, 0)]:
        subscriber = await provider.subscriber()
        sent = [
            events.updated(**subscriber.names, created=at - 30),
            events.updated(**subscriber.names, created=at - 20, cancel=True),
            events.failed(customer=None, subscription_id=f"sub_{subscriber.id}", created=at - 10),
        ]
        await provider.send(*(sent[place] for place in order))
        assert await provider.state(subscriber) == ("pro", "past_due"), order
        assert len(await provider.notifications(subscriber)) == 1, order
    assert await provider.state(bystander) == ("pro", "active")


async def test_an_invoice_without_a_customer_and_with_an_unknown_subscription_waits(
    provider: Provider,
) -> None:
    await provider.send(event := events.failed(customer=None, subscription_id="sub_unknown"))
    stored = await provider.stored(event["id"])
    assert stored is not None
    assert (stored["outcome"], stored["reason"]) == (
        "parked",
        "Waits: subscription sub_unknown is not known yet.",
    )
