"""Replay of a ledger's newest events: equal to a full replay, or refused."""

from datetime import UTC, datetime

import pytest

from tenantry.domain.billing.state import BillingPolicy, SubscriptionRule
from tests.support import events
from tests.support.billing import Provider
from tests.support.catalogs import CATALOG
from tests.support.events import NOW
from tests.support.replays import HOUR, check_newest, corrupt, replay_one, with_fold, with_history
from tests.support.service import Service


@pytest.fixture
def provider(service: Service) -> Provider:
    return Provider(service)


async def test_the_newest_events_are_enough_from_one_that_says_everything_on(
    provider: Provider,
) -> None:
    subscriber = await provider.subscriber()
    await provider.send(
        events.updated(**subscriber.names, created=NOW - 5 * HOUR, price="price_business"),
        events.updated(**subscriber.names, created=NOW - 4 * HOUR),
        events.failed(customer=subscriber.customer, created=NOW - 3 * HOUR),
        events.updated(**subscriber.names, created=NOW - 2 * HOUR, cancel=True),
        events.failed(customer=subscriber.customer, created=NOW),
    )
    await corrupt(provider, subscriber, f"plan = 'gold', {with_fold(tip_state='null')}")
    whole = await replay_one(provider, subscriber, dry_run=True)
    folded = {most: await check_newest(provider, subscriber, most) for most in range(1, 7)}
    assert {most: one.checked and one.checked.events for most, one in folded.items()} == {
        1: None,
        2: 2,
        3: 2,
        4: 4,
        5: 5,
        6: 5,
    }
    for one in folded.values():
        assert one.checked is None or one.checked.differences == whole.differences
    assert folded[3].since == datetime.fromtimestamp(NOW - 2 * HOUR, UTC)
    assert folded[5].since is None


async def test_the_newest_events_are_not_enough_for_a_tenant_with_grants(
    provider: Provider,
) -> None:
    subscriber = await provider.subscriber()
    await provider.send(
        events.updated(**subscriber.names, created=NOW - 5 * HOUR),
        events.updated(**subscriber.names, created=NOW - 4 * HOUR),
    )
    terms = {"plan": "business", "reason": "a contract"}
    path = f"/api/v1/tenants/{subscriber.id}/grants/contract"
    await provider.service.operator.put(path, terms)
    assert (await check_newest(provider, subscriber, 2)).checked is None
    whole = await check_newest(provider, subscriber, 3)
    assert whole.checked is not None
    assert whole.checked.differences == ()


async def test_an_event_that_says_everything_is_no_beginning_where_it_shares_its_second_or_is_the_newest(
    provider: Provider,
) -> None:
    subscriber = await provider.subscriber()
    await provider.send(
        events.updated(**subscriber.names, created=NOW - 5 * HOUR),
        events.updated(**subscriber.names, created=NOW - HOUR),
        events.failed(customer=subscriber.customer, created=NOW - HOUR),
        events.updated(**subscriber.names, created=NOW),
    )
    for most in (1, 2, 3):
        assert (await check_newest(provider, subscriber, most)).checked is None


async def test_with_each_the_newest_events_are_not_enough(provider: Provider) -> None:
    subscriber = await with_history(provider)
    each = BillingPolicy(catalog=CATALOG, subscriptions=SubscriptionRule.EACH)
    assert (await check_newest(provider, subscriber, 3, each)).checked is None
    assert (await check_newest(provider, subscriber, 4, each)).checked is not None
