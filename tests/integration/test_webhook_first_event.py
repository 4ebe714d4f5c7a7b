"""Subscriptions whose first event is `customer.subscription.created`: trial without a card, coupon,
made by API.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support import events
from tests.support.billing import Provider, Subscriber
from tests.support.events import NOW, subscription_created, updated
from tests.support.postgres import PostgresServer
from tests.support.service import running_service


@pytest.fixture(scope="module", params=["any", "each"])
async def provider(
    postgres: PostgresServer, request: pytest.FixtureRequest
) -> AsyncIterator[Provider]:
    with postgres.database() as conninfo:
        async with running_service(conninfo, SUBSCRIPTIONS=request.param) as service:
            yield Provider(service)


def of(subscriber: Subscriber, **fields: Any) -> dict[str, Any]:
    """The facts of the subscriber's new subscription."""
    return {**subscriber.names, "subscription_created": NOW, **fields}


async def outcomes(provider: Provider, subscriber: Subscriber, *sent: dict[str, Any]) -> list[str]:
    ledger = await provider.ledger(subscriber)
    return [ledger[event["id"]]["outcome"] for event in sent]


@pytest.mark.parametrize("status", ["active", "trialing"])
async def test_the_first_event_gives_the_plan(provider: Provider, status: str) -> None:
    subscriber = await provider.subscriber(linked=False)
    await provider.send(
        subscription_created(**of(subscriber, status=status, price="price_business"))
    )
    record = await provider.tenant(subscriber)
    assert (record["plan"], record["subscriptionStatus"]) == ("business", status)
    assert (record["access"]["state"], record["stripeCustomerId"]) == ("full", subscriber.customer)


async def test_a_later_update_counts_whichever_arrives_first(provider: Provider) -> None:
    for in_order in (True, False):
        subscriber = await provider.subscriber()
        first = subscription_created(**of(subscriber, status="trialing"))
        second = updated(
            **of(subscriber, status="active", price="price_business"), created=NOW + 60
        )
        sent = (first, second) if in_order else (second, first)
        await provider.send(*sent)
        assert await provider.state(subscriber) == ("business", "active")
        late = ["applied", "applied"] if in_order else ["late", "applied"]
        assert await outcomes(provider, subscriber, first, second) == late


async def test_within_one_second_it_is_the_first(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    first = subscription_created(**of(subscriber, status="incomplete"))
    second = updated(**of(subscriber, status="active"), previous={"status": "incomplete"})
    await provider.send(second, first)
    assert await provider.state(subscriber) == ("pro", "active")
    assert (await provider.ledger(subscriber))[first["id"]]["anomalies"] == []


async def test_it_counts_after_the_end_of_a_former_subscription(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    former = {
        **subscriber.names,
        "subscription_id": "sub_former",
        "subscription_created": NOW - 500,
    }
    await provider.send(
        subscription_created(**former, created=NOW - 500),
        events.deleted(**former, created=NOW - 100),
        subscription_created(**of(subscriber, price="price_business")),
    )
    assert await provider.state(subscriber) == ("business", "active")
