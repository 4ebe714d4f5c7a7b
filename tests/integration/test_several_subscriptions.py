"""Tenants with several subscriptions (`SUBSCRIPTIONS=each`): the record, its tenant's links, and
the explanation.

`test_moved_subscriptions` delivers such histories in every order.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tenantry.billing.customer_links import CustomerLinks
from tenantry.billing.ledger_queries import OperatorLedger
from tenantry.db.outbox import Outbox
from tenantry.domain.audit import BY_OPERATOR
from tests.support import events
from tests.support.billing import Provider, Subscriber, rows
from tests.support.emptying import SharedDatabase
from tests.support.events import NOW
from tests.support.facts import EACH
from tests.support.issuer import NOW as ISSUER_NOW
from tests.support.patience import patient_database
from tests.support.postgres import PostgresServer
from tests.support.replays import replay_one
from tests.support.service import Service, running_service

OLD = {"subscription_id": "sub_old", "subscription_created": NOW - 100}
NEW = {"subscription_id": "sub_new", "subscription_created": NOW - 50, "price": "price_business"}


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with running_service(shared_database.conninfo, SUBSCRIPTIONS="each") as service:
        yield service


@pytest.fixture(scope="module")
async def any_service(postgres: PostgresServer) -> AsyncIterator[Service]:
    """With `SUBSCRIPTIONS=any`, before the setting changes."""
    with postgres.database() as conninfo:
        async with running_service(conninfo) as service:
            yield service


@pytest.fixture
def provider(emptied_service: Service) -> Provider:
    emptied_service.clock.now = ISSUER_NOW
    return Provider(emptied_service)


@pytest.fixture
def former_provider(any_service: Service) -> Provider:
    """Its database keeps the rows of earlier tests, and its clock is not moved."""
    return Provider(any_service)


def of(subscriber: Subscriber, **facts: Any) -> dict[str, Any]:
    return {"org": subscriber.id, "customer": subscriber.customer, **facts}


async def mailed(provider: Provider, subscriber: Subscriber) -> list[str]:
    return [made["cause"] for made in await provider.notifications(subscriber)]


async def test_the_end_of_an_old_subscription_is_explained(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(
        events.updated(**of(subscriber, **OLD), created=NOW),
        events.updated(**of(subscriber, **NEW), created=NOW + 60),
        events.deleted(**of(subscriber, **OLD), created=NOW + 120),
    )
    record = await provider.tenant(subscriber)
    assert (record["plan"], record["subscriptionStatus"]) == ("business", "active")
    assert record["access"] == {
        "state": "full",
        "plan": "business",
        "until": None,
        "reason": "The subscription is active.",
    }
    async with patient_database(provider.service.conninfo, pool_size=1) as database:
        ledger = OperatorLedger(database, EACH, lambda: datetime.fromtimestamp(NOW, UTC))
        shown = await ledger.explain(subscriber.id, 10)
    chosen = "sub_new is active, sub_old is canceled."
    gives = "It gives full access to plan business. The organization's access is from it."
    assert [(each.id, each.plan, each.status, each.reason) for each in shown.subscriptions] == [
        ("sub_new", "business", "active", f"Counts: {chosen} {gives}"),
        ("sub_old", "free", "canceled", f"Does not count: {chosen} It has ended."),
    ]
    assert shown.differences == ()


async def test_table_of_subscriptions_has_their_facts(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    subscription = events.updated(**of(subscriber, **NEW), created=NOW, cancel=True)
    subscription["data"]["object"] |= {
        "trial_end": NOW + 7,
        "pause_collection": {"behavior": "keep_as_draft"},
    }
    [sent_item] = subscription["data"]["object"]["items"]["data"]
    sent_item["quantity"] = 5
    await provider.send(subscription)
    [row] = await rows(
        provider.service.conninfo, "SELECT * FROM subscriptions WHERE tenant_id = %s", subscriber.id
    )
    facts = {
        name: row[name]
        for name in ("id", "customer_id", "created", "status", "plan", "quantity", "trial_end")
    }
    assert facts == {
        "id": "sub_new",
        "customer_id": subscriber.customer,
        "created": NOW - 50,
        "status": "active",
        "plan": "business",
        "quantity": 5,
        "trial_end": NOW + 7,
    }
    period_end = NOW + events.MONTH
    ends = {
        name: row[name]
        for name in ("current_period_start", "current_period_end", "cancel_at", "pause_behavior")
    }
    assert ends == {
        "current_period_start": NOW,
        "current_period_end": period_end,
        "cancel_at": period_end,
        "pause_behavior": "keep_as_draft",
    }
    of_item = {"id": sent_item["id"], "price_id": "price_business", "quantity": 5}
    assert row["items"] == [{**of_item, "period_end": period_end, "period_start": NOW}]


CHANGES: Final[list[dict[str, Any]]] = [
    {"status": "unpaid"},
    {"cancel_at_period_end": True},
    {"trial_end": NOW + 7},
    {"pause_collection": {"behavior": "void"}},
    {"cancel_at": NOW + 8},
    {"created": NOW - 51},
    {},
]


async def test_what_the_next_event_of_a_subscription_changes_is_stored(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    for number, change in enumerate(CHANGES):
        names = of(subscriber, **NEW | {"subscription_id": f"sub_{number}"})
        following = events.updated(**names, created=NOW + 60)
        following["data"]["object"] |= change
        await provider.send(events.updated(**names, created=NOW), following)
    assert (await replay_one(provider, subscriber, policy=EACH)).is_right


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
async def test_failed_payment_of_a_customer_without_a_link_reaches_the_tenant_by_its_subscription(
    provider: Provider, order: tuple[int, ...]
) -> None:
    """A second customer of the tenant, made by API: a subscription event links it only where the
    tenant has none.
    """
    subscriber = await provider.subscriber()
    second: dict[str, Any] = {
        "customer": f"{subscriber.customer}_second",
        "subscription_id": f"sub_{subscriber.id}",
    }
    failure = events.failed(**second, created=NOW + 1)
    sent = [
        events.updated(org=subscriber.id, **second, created=NOW),
        failure,
        events.updated(
            **of(subscriber, subscription_id=f"sub_of_first_{subscriber.id}"), status="canceled"
        ),
    ]
    await provider.send(*(sent[position] for position in order))
    assert await provider.state(subscriber) == ("pro", "past_due")
    assert await mailed(provider, subscriber) == [failure["id"]]
    assert (await replay_one(provider, subscriber, policy=EACH)).is_right


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
async def test_of_two_tenants_with_one_customer_each_has_its_own_invoices(
    provider: Provider, order: tuple[int, ...]
) -> None:
    one, other = await provider.subscriber(linked=False), await provider.subscriber(linked=False)
    mine, theirs = f"sub_{one.id}", f"sub_{other.id}"
    sent = [
        events.updated(org=one.id, customer=one.customer, subscription_id=mine, created=NOW),
        events.updated(org=other.id, customer=one.customer, subscription_id=theirs, created=NOW),
        events.failed(customer=one.customer, subscription_id=theirs, created=NOW + 1),
    ]
    await provider.send(*(sent[position] for position in order))
    assert await provider.state(one) == ("pro", "active")
    assert await provider.state(other) == ("pro", "past_due")
    for subscriber in (one, other):
        assert (await replay_one(provider, subscriber, policy=EACH)).is_right


@pytest.mark.parametrize("late", [False, True], ids=["in order", "late"])
async def test_subscription_whose_metadata_name_another_tenant_leaves_its_former_one(
    provider: Provider, late: bool
) -> None:
    former, present = await provider.subscriber(), await provider.subscriber()
    subscription: dict[str, Any] = {
        "customer": former.customer,
        "subscription_id": f"sub_{former.id}",
    }
    sent = [
        events.updated(org=former.id, **subscription, created=NOW),
        events.updated(org=present.id, **subscription, created=NOW + 60),
    ]
    await provider.send(*(reversed(sent) if late else sent))
    assert await provider.state(former) == ("free", "canceled")
    assert await provider.state(present) == ("pro", "active")
    await provider.send(events.updated(org=former.id, **subscription, created=NOW + 120))
    assert await provider.state(former) == ("pro", "active")
    assert await provider.state(present) == ("free", "canceled")


async def test_subscription_that_left_stays_away_from_its_former_tenant(provider: Provider) -> None:
    former, present = await provider.subscriber(), await provider.subscriber()
    subscription: dict[str, Any] = {
        "customer": former.customer,
        "subscription_id": f"sub_{former.id}",
    }
    await provider.send(
        events.updated(org=former.id, **subscription, created=NOW),
        events.updated(org=present.id, **subscription, created=NOW + 60),
        events.deleted(**of(former, subscription_id=f"sub_of_{former.id}"), created=NOW + 120),
    )
    assert await provider.state(former) == ("free", "canceled")
    assert await provider.state(present) == ("pro", "active")
    for subscriber in (former, present):
        assert (await replay_one(provider, subscriber, policy=EACH)).is_right


async def test_access_in_grace_ends_without_a_further_event(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**of(subscriber), created=NOW, status="past_due"))
    access = (await provider.tenant(subscriber))["access"]
    assert (access["state"], access["plan"], access["until"]) == (
        "grace",
        "pro",
        "2026-03-07T12:00:00Z",
    )
    provider.service.clock.advance(days=65)
    access = (await provider.tenant(subscriber))["access"]
    assert (access["state"], access["plan"], access["until"]) == ("none", "free", None)


async def test_rebuild_after_a_change_of_the_setting_finds_subscriptions_that_have_moved(
    former_provider: Provider,
) -> None:
    former, present = await former_provider.subscriber(), await former_provider.subscriber()
    subscription: dict[str, Any] = {
        "customer": former.customer,
        "subscription_id": f"sub_{former.id}",
    }
    await former_provider.send(
        events.updated(org=former.id, **subscription, created=NOW),
        events.updated(org=present.id, **subscription, created=NOW + 60),
    )
    for subscriber in (former, present):
        await replay_one(former_provider, subscriber, policy=EACH)
    assert await former_provider.state(former) == ("free", "canceled")
    assert await former_provider.state(present) == ("pro", "active")


@pytest.mark.parametrize("is_linked_elsewhere", [False, True])
async def test_rebuild_applies_an_invoice_that_waits_for_a_subscription_that_is_known(
    former_provider: Provider, *, is_linked_elsewhere: bool
) -> None:
    subscriber, other = await former_provider.subscriber(), await former_provider.subscriber()
    second: dict[str, Any] = {
        "customer": f"{subscriber.customer}_second",
        "subscription_id": f"sub_{subscriber.id}",
    }
    failure = events.failed(**second, created=NOW + 1)
    await former_provider.send(events.updated(org=subscriber.id, **second, created=NOW), failure)
    assert await former_provider.state(subscriber) == ("pro", "active")
    if is_linked_elsewhere:
        await rows(
            former_provider.service.conninfo,
            "INSERT INTO customers (id, tenant_id, linked_by) VALUES (%s, %s, 'operator')",
            second["customer"],
            other.id,
        )
    checked = await replay_one(former_provider, subscriber, policy=EACH)
    assert (checked.parked, checked.repaired) == (1, True)
    assert failure["id"] in await former_provider.ledger(subscriber)
    assert await former_provider.state(subscriber) == ("pro", "past_due")
    for each in (subscriber, other):
        assert (await replay_one(former_provider, each, policy=EACH)).is_right


async def test_rebuild_applies_an_invoice_without_a_customer_of_the_current_subscription(
    former_provider: Provider,
) -> None:
    subscriber = await former_provider.subscriber()
    subscription = {"subscription_id": f"sub_{subscriber.id}"}
    failure = events.failed(customer=None, **subscription, created=NOW + 1)
    await former_provider.send(
        events.updated(**of(subscriber, **subscription), created=NOW), failure
    )
    await rows(
        former_provider.service.conninfo,
        "UPDATE billing_events SET outcome = 'parked', tenant_id = NULL WHERE id = %s",
        failure["id"],
    )
    checked = await replay_one(former_provider, subscriber)
    assert (checked.parked, checked.repaired) == (1, True)
    assert failure["id"] in await former_provider.ledger(subscriber)
    assert (await replay_one(former_provider, subscriber)).is_right


async def test_pause_ends_access_with_the_period_in_which_it_began(provider: Provider) -> None:
    """The provider renews a paused subscription with voided invoices."""
    subscriber = await provider.subscriber()
    for number in range(3):
        paused = events.updated(
            **of(subscriber, **NEW),
            created=NOW + number * events.MONTH,
            period_end=NOW + (number + 1) * events.MONTH,
        )
        paused["data"]["object"]["pause_collection"] = {"behavior": "void"}
        await provider.send(paused)
    until = datetime.fromtimestamp(NOW + events.MONTH, UTC).isoformat().replace("+00:00", "Z")
    assert (await provider.tenant(subscriber))["access"]["until"] == until
    assert (await replay_one(provider, subscriber, policy=EACH)).is_right


async def test_event_takes_over_the_customer_of_an_ended_tenant(provider: Provider) -> None:
    ended, present = await provider.subscriber(), await provider.subscriber(linked=False)
    assert (
        await provider.service.operator.delete(f"/api/v1/tenants/{ended.id}")
    ).status_code == 204
    await provider.send(events.completed(org=present.id, customer=ended.customer))
    assert (await provider.tenant(present))["stripeCustomerId"] == ended.customer
    await provider.send(
        events.failed(customer=ended.customer, subscription_id=None, created=NOW + 1)
    )
    assert len(await mailed(provider, present)) == 1


async def test_operator_takes_over_the_customer_of_an_ended_tenant_with_its_invoices(
    provider: Provider,
) -> None:
    ended, present = await provider.subscriber(), await provider.subscriber(linked=False)
    failure = events.failed(customer=ended.customer, subscription_id="sub_unknown", created=NOW)
    await provider.send(failure)
    assert (
        await provider.service.operator.delete(f"/api/v1/tenants/{ended.id}")
    ).status_code == 204
    await provider.arrives(present, stripeCustomerId=ended.customer)
    assert (await provider.tenant(present))["stripeCustomerId"] == ended.customer
    assert (await provider.ledger(present))[failure["id"]]["outcome"] == "applied"


async def test_customer_of_a_living_tenant_stays(provider: Provider) -> None:
    holder, other = await provider.subscriber(), await provider.subscriber(linked=False)
    body = {"name": other.id, "ownerEmail": "owner@x.example", "stripeCustomerId": holder.customer}
    answer = await provider.service.operator.put(f"/api/v1/tenants/{other.id}", body)
    assert (answer.status_code, answer.json()["code"]) == (409, "customer_taken")


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "in one batch"])
async def test_invoice_before_the_first_event_of_its_subscription_ends_at_its_tenant(
    provider: Provider, together: bool
) -> None:
    one, other = await provider.subscriber(), await provider.subscriber()
    subscription = f"sub_{other.id}"
    sent = [
        events.failed(customer=one.customer, subscription_id=subscription, created=NOW + 1),
        events.updated(
            org=other.id, customer=one.customer, subscription_id=subscription, created=NOW
        ),
    ]
    await (provider.deliver_together(sent) if together else provider.send(*sent))
    assert await provider.state(one) == ("free", "none")
    assert await provider.state(other) == ("pro", "past_due")


async def test_moved_customer_leaves_invoices_of_the_tenants_own_subscription(
    provider: Provider,
) -> None:
    holder, other = await provider.subscriber(), await provider.subscriber(linked=False)
    subscription = f"sub_{holder.id}"
    await provider.send(
        events.updated(
            org=holder.id, customer=holder.customer, subscription_id=subscription, created=NOW
        ),
        events.failed(customer=holder.customer, subscription_id=subscription, created=NOW + 1),
    )
    async with patient_database(provider.service.conninfo, pool_size=1) as database:
        links = CustomerLinks(database, EACH, Outbox(), lambda: datetime.fromtimestamp(NOW, UTC))
        await links.move(BY_OPERATOR, holder.customer, other.id)
    assert await provider.state(holder) == ("pro", "past_due")
    assert await provider.state(other) == ("free", "none")


async def test_failed_payment_that_waits_for_its_subscription_counts_when_the_tenant_is_made(
    provider: Provider,
) -> None:
    late = provider.unlinked()
    subscription: dict[str, Any] = {"customer": "cus_unknown", "subscription_id": f"sub_{late.id}"}
    failure = events.failed(**subscription, created=NOW + 1)
    await provider.send(failure, events.updated(org=late.id, **subscription, created=NOW))
    await provider.arrives(late, stripeCustomerId=late.customer)
    assert await provider.state(late) == ("pro", "past_due")
    assert await mailed(provider, late) == [failure["id"]]


async def test_checkout_after_a_change_of_the_setting_leaves_the_subscription(
    former_provider: Provider,
) -> None:
    subscriber = await former_provider.subscriber()
    names = of(subscriber, subscription_id=f"sub_{subscriber.id}")
    await former_provider.send(events.updated(**names, price="price_business"))
    conninfo = former_provider.service.conninfo
    async with running_service(conninfo, SUBSCRIPTIONS="each") as after:
        provider = Provider(after)
        attempt = of(
            subscriber, subscription_id=f"sub_attempt_{subscriber.id}", status="incomplete"
        )
        await provider.send(
            events.completed(
                org=subscriber.id, customer=f"{subscriber.customer}_new", created=NOW + 1
            ),
            events.updated(**attempt, created=NOW + 2),
        )
        assert await provider.state(subscriber) == ("business", "active")


async def test_two_processes_leave_a_subscription_with_one_tenant(provider: Provider) -> None:
    """Its newest event names one tenant, while an older one of another tenant is handled at the
    same time.
    """
    conninfo = provider.service.conninfo
    async with running_service(conninfo, SUBSCRIPTIONS="each") as other_process:
        second = Provider(other_process)
        former, present = await provider.subscriber(), await provider.subscriber()
        for number in range(12):
            subscription: dict[str, Any] = {
                "customer": former.customer,
                "subscription_id": f"sub_{former.id}_{number}",
            }
            await provider.send(events.updated(org=former.id, **subscription, created=NOW))
            await asyncio.gather(
                provider.deliver_together(
                    [events.updated(org=present.id, **subscription, created=NOW + 20)]
                ),
                second.deliver_together(
                    [events.updated(org=former.id, **subscription, created=NOW + 10)]
                ),
            )
    holders = "SELECT DISTINCT tenant_id FROM subscriptions WHERE moved_at IS NULL"
    assert await rows(conninfo, holders) == [{"tenant_id": present.id}]


HOUR = 3600


def moved_within_a_day(former: Subscriber, present: Subscriber) -> list[dict[str, Any]]:
    """A subscription moves to another tenant; then a payment fails, and succeeds."""
    shared: dict[str, Any] = {"customer": former.customer, "subscription_id": f"sub_of_{former.id}"}
    moved = {"metadata": {"orgId": former.id}}
    invoice = {**shared, "invoice_id": f"in_of_{former.id}"}
    return [
        events.updated(org=former.id, created=NOW - 9 * HOUR, **shared),
        events.updated(org=present.id, created=NOW - 5 * HOUR, previous=moved, **shared),
        events.failed(created=NOW - 4 * HOUR, **invoice),
        events.succeeded(created=NOW - 3 * HOUR, **invoice),
    ]


@pytest.mark.parametrize("order", [(0, 2, 1), (3, 2, 1, 0)])
async def test_an_invoice_that_arrives_before_the_move_goes_to_the_tenant_of_its_second(
    provider: Provider, order: tuple[int, ...]
) -> None:
    former, present = await provider.subscriber(), await provider.subscriber()
    history = moved_within_a_day(former, present)
    await provider.send(*(history[place] for place in order))
    is_paid = 3 in order
    assert await provider.state(former) == ("free", "canceled")
    assert await provider.state(present) == ("pro", "active" if is_paid else "past_due")
    assert await mailed(provider, former) == []
    if not is_paid:
        assert await mailed(provider, present) == [history[2]["id"]]


async def test_subscriptions_that_move_both_ways_at_once_end_alike(provider: Provider) -> None:
    """The transactions lock both tenants of each move, and the events arrive on several
    connections.
    """
    pairs = [(await provider.subscriber(), await provider.subscriber()) for _ in range(4)]
    sent = [
        event
        for one, other in pairs
        for way in ((one, other), (other, one))
        for event in moved_within_a_day(*way)
    ]
    await provider.deliver_together([*sent[::2], *sent[1::2]])
    for subscriber in itertools.chain(*pairs):
        assert await provider.state(subscriber) == ("pro", "active")
