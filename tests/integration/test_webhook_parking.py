"""Parked events: they wait for their tenant or customer and are then applied in order (CONTRACT
6).
"""

from collections.abc import AsyncIterator

import pytest

from tests.support import events
from tests.support.billing import Provider, Subscriber
from tests.support.emptying import SharedDatabase
from tests.support.events import NOW
from tests.support.service import Service, running_service

HOUR = 3600


@pytest.fixture
def provider(service: Service) -> Provider:
    return Provider(service)


async def notified(provider: Provider, subscriber: Subscriber) -> list[str]:
    return [made["cause"] for made in await provider.notifications(subscriber)]


async def test_events_wait_for_their_tenant(provider: Provider) -> None:
    unlinked = provider.unlinked()
    first = events.updated(**unlinked.names)
    await provider.send(events.deleted(**unlinked.names, created=NOW + 5), first)
    await provider.arrives(unlinked)
    assert await provider.state(unlinked) == ("free", "canceled")
    assert {entry["outcome"] for entry in (await provider.ledger(unlinked)).values()} == {"applied"}


async def test_answer_to_a_created_tenant_includes_its_parked_events(provider: Provider) -> None:
    unlinked = provider.unlinked()
    await provider.send(events.updated(**unlinked.names))
    body = {"name": "x", "ownerEmail": "owner@x.example"}
    made = (await provider.service.operator.put(f"/api/v1/tenants/{unlinked.id}", body)).json()
    assert (made["plan"], made["subscriptionStatus"], made["stripeCustomerId"]) == (
        "pro",
        "active",
        unlinked.customer,
    )


async def test_a_tenant_created_by_a_user_gets_its_parked_events(provider: Provider) -> None:
    unlinked = provider.unlinked()
    await provider.send(events.updated(**unlinked.names))
    user = provider.service.user("founder", org=unlinked.id, role="owner")
    made = await user.post("/api/v1/tenants", {"name": "x", "ownerEmail": "owner@x.example"})
    assert (made.status_code, made.json()["plan"]) == (201, "pro")


async def test_invoices_wait_for_their_customers_checkout(provider: Provider) -> None:
    subscriber = await provider.subscriber(linked=False)
    failure = events.failed(customer=subscriber.customer)
    await provider.send(failure)
    assert await provider.state(subscriber) == ("free", "none")
    await provider.send(
        events.completed(org=subscriber.id, customer=subscriber.customer, created=NOW + 5)
    )
    assert await provider.state(subscriber) == ("free", "past_due")
    assert await notified(provider, subscriber) == [failure["id"]]


async def test_invoices_wait_for_their_customers_subscription(provider: Provider) -> None:
    subscriber = await provider.subscriber(linked=False)
    await provider.send(
        events.failed(customer=subscriber.customer),
        events.updated(**subscriber.names, created=NOW - 5),
    )
    assert await provider.state(subscriber) == ("pro", "past_due")


async def test_invoices_wait_for_the_operators_link(provider: Provider) -> None:
    subscriber = await provider.subscriber(linked=False)
    failure = events.failed(customer=subscriber.customer)
    await provider.send(failure)
    await provider.arrives(subscriber, stripeCustomerId=subscriber.customer)
    assert await provider.state(subscriber) == ("free", "past_due")
    assert await notified(provider, subscriber) == [failure["id"]]


async def test_invoices_wait_for_a_tenant_and_its_link_at_once(provider: Provider) -> None:
    unlinked = provider.unlinked()
    failure = events.failed(customer=unlinked.customer, created=NOW + 2)
    await provider.send(
        failure,
        events.completed(org=unlinked.id, customer=unlinked.customer, created=NOW + 3),
        events.updated(**unlinked.names, created=NOW + 1),
    )
    await provider.arrives(unlinked)
    assert await provider.state(unlinked) == ("pro", "past_due")
    assert (await provider.tenant(unlinked))["stripeCustomerId"] == unlinked.customer
    assert await notified(provider, unlinked) == [failure["id"]]


async def test_subscriptions_without_metadata_wait_for_their_customers_checkout(
    provider: Provider,
) -> None:
    subscriber = await provider.subscriber(linked=False)
    names = {**subscriber.names, "org": None}
    await provider.send(events.updated(**names), events.deleted(**names, created=NOW + 9))
    assert await provider.state(subscriber) == ("free", "none")
    await provider.send(
        events.completed(org=subscriber.id, customer=subscriber.customer, created=NOW + 5)
    )
    assert await provider.state(subscriber) == ("free", "canceled")
    assert {entry["outcome"] for entry in (await provider.ledger(subscriber)).values()} == {
        "applied"
    }


async def test_subscriptions_without_metadata_wait_for_the_operators_link(
    provider: Provider,
) -> None:
    subscriber = await provider.subscriber(linked=False)
    await provider.send(events.updated(**{**subscriber.names, "org": None}))
    await provider.arrives(subscriber, stripeCustomerId=subscriber.customer)
    assert await provider.state(subscriber) == ("pro", "active")


async def test_subscriptions_without_metadata_count_for_the_tenant_of_their_customer(
    provider: Provider,
) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**{**subscriber.names, "org": None}))
    assert await provider.state(subscriber) == ("pro", "active")


async def test_a_parked_event_sent_again_is_a_duplicate(provider: Provider) -> None:
    unlinked = provider.unlinked()
    event = events.updated(**unlinked.names)
    await provider.send(event, event)
    await provider.arrives(unlinked)
    await provider.send(event)
    assert list(await provider.ledger(unlinked)) == [event["id"]]


async def test_a_parked_event_takes_its_place_before_newer_ones(provider: Provider) -> None:
    subscriber = await provider.subscriber(linked=False)
    failure = events.failed(customer=subscriber.customer, created=NOW - 50)
    await provider.send(
        failure,
        events.updated(
            org=subscriber.id, customer=subscriber.customer, status="trialing", created=NOW
        ),
    )
    assert await provider.state(subscriber) == ("pro", "trialing")
    assert (await provider.ledger(subscriber))[failure["id"]]["outcome"] == "applied"


async def test_a_parked_event_older_than_the_newest_is_late(provider: Provider) -> None:
    subscriber = await provider.subscriber(linked=False)
    failure = events.failed(customer=subscriber.customer, created=NOW - 50)
    claim = events.completed(org=subscriber.id, customer=subscriber.customer, created=NOW + 50)
    await provider.send(failure, events.deleted(org=subscriber.id, created=NOW), claim)
    assert await provider.state(subscriber) == ("free", "canceled")
    assert (await provider.ledger(subscriber))[failure["id"]]["outcome"] == "late"
    assert await notified(provider, subscriber) == []


async def test_a_parked_failure_sends_no_mail_unless_the_tenant_is_past_due(
    provider: Provider,
) -> None:
    unlinked = provider.unlinked()
    await provider.send(
        events.failed(customer=unlinked.customer),
        events.succeeded(customer=unlinked.customer, created=NOW + 1),
        events.updated(**unlinked.names, created=NOW - 1),
    )
    await provider.arrives(unlinked)
    assert await provider.state(unlinked) == ("pro", "active")
    assert await notified(provider, unlinked) == []


async def test_a_parked_failure_of_a_paid_invoice_sends_no_mail(provider: Provider) -> None:
    unlinked = provider.unlinked()
    due = events.failed(customer=unlinked.customer, invoice_id="in_2", created=NOW + 2)
    await provider.send(
        events.failed(customer=unlinked.customer),
        events.succeeded(customer=unlinked.customer, created=NOW + 1),
        due,
    )
    await provider.arrives(unlinked, stripeCustomerId=unlinked.customer)
    assert await notified(provider, unlinked) == [due["id"]]


@pytest.fixture(scope="module")
async def patient_provider(shared_database: SharedDatabase) -> AsyncIterator[Provider]:
    """The provider of another service, whose clock tests move forward, and which mails failures of
    three hours.
    """
    async with running_service(shared_database.conninfo, PARKED_MAIL_HOURS="3") as service:
        yield Provider(service)


@pytest.mark.parametrize(("hours", "expected"), [(2, 1), (3, 0), (4, 0)])
async def test_a_parked_failure_sends_a_mail_only_while_recent(
    patient_provider: Provider, hours: int, expected: int
) -> None:
    unlinked, clock = patient_provider.unlinked(), patient_provider.service.clock
    await patient_provider.send(
        events.failed(customer=unlinked.customer, created=int(clock.now.timestamp()))
    )
    clock.advance(hours=hours)
    await patient_provider.arrives(unlinked, stripeCustomerId=unlinked.customer)
    assert await patient_provider.state(unlinked) == ("free", "past_due")
    assert len(await patient_provider.notifications(unlinked)) == expected


async def test_an_applied_parked_event_sends_no_second_mail(provider: Provider) -> None:
    unlinked = provider.unlinked()
    failure = events.failed(customer=unlinked.customer)
    await provider.send(failure)
    await provider.arrives(unlinked, stripeCustomerId=unlinked.customer)
    await provider.arrives(unlinked, stripeCustomerId=unlinked.customer)
    await provider.send(failure)
    assert await notified(provider, unlinked) == [failure["id"]]


async def test_two_parked_links_are_applied_in_the_order_of_their_tenants(
    provider: Provider,
) -> None:
    first, second = provider.unlinked(), provider.unlinked()
    customer = first.customer
    await provider.send(
        events.completed(org=second.id, customer=customer),
        events.completed(org=first.id, customer=customer),
    )
    await provider.arrives(first)
    await provider.arrives(second)
    assert (await provider.tenant(first))["stripeCustomerId"] == customer
    assert (await provider.tenant(second))["stripeCustomerId"] is None


async def test_an_event_waits_for_thirty_days(patient_provider: Provider) -> None:
    unlinked = patient_provider.unlinked()
    await patient_provider.send(events.updated(**unlinked.names))
    patient_provider.service.clock.advance(days=29)
    await patient_provider.arrives(unlinked)
    assert await patient_provider.state(unlinked) == ("pro", "active")


@pytest.mark.parametrize("together", [True, False])
async def test_one_batch_may_link_park_and_apply_parked_events(
    provider: Provider, together: bool
) -> None:
    """A customer that two tenants claim at once, with older invoices that wait and newer ones that
    come along.
    """
    one, two = await provider.subscriber(linked=False), await provider.subscriber(linked=False)
    await provider.send(
        events.failed(customer=one.customer, created=NOW - 100),
        events.updated(org=one.id, customer=None, created=NOW),
        events.updated(org=two.id, customer=None, created=NOW),
    )
    batch = [
        events.completed(org=one.id, customer=one.customer, created=NOW + 1),
        events.completed(org=two.id, customer=one.customer, created=NOW + 1),
        events.succeeded(customer=one.customer, invoice_id="in_2", created=NOW + 2),
    ]
    if together:
        assert set(await provider.send_together(batch)) == {200}
    else:
        await provider.send(*batch)
    assert {await provider.state(one), await provider.state(two)} == {("pro", "active")}
