"""Missed events, fetched from the provider's list: state and mails are as if they had been
delivered.
"""

import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from tenantry.billing.backfill import BackfillPart, BackfillResult, MissedEvent, Observer
from tenantry.domain.billing.events import KNOWN_TYPES, REQUIRED_TYPES, SUBSCRIPTION_CREATED
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry_devkit.simulator import Rules
from tests.support import events
from tests.support.billing import Provider, rows
from tests.support.events import NOW
from tests.support.provider_api import KEY, ProviderServer, refusal
from tests.support.service import Service
from tests.support.truth import OVER, Stage, World, ids, reconciling

FAILED: Final = "invoice.payment_failed"
DELETED: Final = "customer.subscription.deleted"
DAY: Final = 24 * 3600


@pytest.fixture
async def world(stage: Stage, emptied: str) -> AsyncIterator[World]:
    async with stage.world(rules=Rules(retry_days=(1, 1))) as world:
        yield world


def adding_to(told: list[MissedEvent]) -> Observer:
    """An observer that keeps the missed events of each part."""
    return lambda part: told.extend(part.missed)


async def backfill(
    world: World, *, days: float = 29, dry_run: bool = False
) -> tuple[BackfillResult, list[MissedEvent]]:
    """The result of a backfill of so many days, and the events that it reported, in order."""
    told: list[MissedEvent] = []
    since = int(world.simulator.now.timestamp() - days * DAY)
    return await world.reconciler.backfill.run(
        since, dry_run=dry_run, observer=adding_to(told)
    ), told


async def test_a_backfill_after_a_day_without_events_restores_every_state(world: World) -> None:
    upgraded, cancelled, newcomer, recovered, trial = [
        await world.subscriber(),
        await world.subscriber(),
        await world.subscriber(),
        await world.subscriber(),
        await world.subscriber(),
    ]
    for subscriber in (upgraded, cancelled, recovered):
        world.subscribe(subscriber, "price_pro")
    world.subscribe(trial, "price_business", trial_days=31)
    world.simulator.card_declines(recovered.customer)
    await world.passes(days=30, hours=23)
    async with world.losing_deliveries():
        await world.passes(hours=2)
        world.simulator.change_plan(world.subscription(upgraded), "price_business")
        world.simulator.cancel(world.subscription(cancelled))
        world.subscribe(newcomer, "price_pro")
        world.simulator.card_works(recovered.customer)
        await world.passes(days=1)
    done, told = await backfill(world, days=2)
    made = (upgraded, cancelled, newcomer, recovered, trial)
    assert [await world.record(each) for each in made] == [world.truth(each) for each in made]
    assert (done.missed, done.stopped) == (len(world.lost()), None)
    assert sorted(event.id for event in told) == sorted(ids(world.lost()))
    assert sum(done.outcomes.values()) == done.missed
    assert (await world.compare()).drifted == ()
    # it was paid a day later
    assert await rows(world.service.conninfo, "SELECT * FROM notifications") == []


async def test_a_second_backfill_applies_nothing(world: World) -> None:
    async with world.losing_deliveries():
        await world.subscriber("price_pro")
    done, _ = await backfill(world)
    assert done.missed == 2
    again, told = await backfill(world)
    assert (again.listed, again.missed, again.outcomes, told) == (done.listed, 0, {}, [])


async def test_a_dry_run_names_what_was_missed_and_writes_nothing(world: World) -> None:
    async with world.losing_deliveries():
        subscriber = await world.subscriber("price_pro")
    done, told = await backfill(world, dry_run=True)
    assert (done.missed, done.outcomes) == (2, {})
    assert {(event.id, event.tenant_id, event.outcome) for event in told} == {
        (event.id, subscriber.id, None) for event in world.lost()
    }
    assert await rows(world.service.conninfo, "SELECT * FROM billing_events") == []


async def test_events_before_the_given_time_are_ignored(world: World) -> None:
    async with world.losing_deliveries():
        subscriber = await world.subscriber("price_pro")
        await world.passes(days=1)
        world.simulator.cancel(world.subscription(subscriber), at_period_end=True)
    _, told = await backfill(world, days=0.5)
    assert [event.id for event in told] == ids(world.lost()[-1:])
    assert await world.record(subscriber) == world.truth(subscriber)


async def test_the_newest_second_comes_first_and_its_events_as_they_came_about(
    world: World,
) -> None:
    async with world.losing_deliveries():
        subscriber = await world.subscriber("price_pro")
        for price in ("price_business", "price_pro"):
            world.simulator.change_plan(world.subscription(subscriber), price)
    _, told = await backfill(world)
    first, second, third, fourth = ids(world.lost())
    assert [event.id for event in told] == [third, fourth, first, second]


async def failing(world: World, **lasting: float) -> str:
    """A renewal fails while no event arrives for some time; returns the tenant's id."""
    subscriber = await world.subscriber("price_pro")
    world.simulator.card_declines(subscriber.customer)
    await world.passes(days=30, hours=23)
    async with world.losing_deliveries():
        await world.passes(hours=2, **lasting)
    return subscriber.id


async def mailed(world: World) -> list[str]:
    return [
        row["cause"]
        for row in await rows(world.service.conninfo, "SELECT cause FROM notifications")
    ]


async def test_a_failure_that_still_holds_mails(world: World) -> None:
    await failing(world)
    await backfill(world)
    assert await mailed(world) == [event.id for event in world.lost() if event.type == FAILED]


async def test_a_failure_that_ended_the_subscription_in_its_second_does_not_mail(
    world: World,
) -> None:
    """The provider lists the end first; in the order of the list, the failure would make the tenant
    past due.
    """
    subscriber = await world.subscriber("price_pro")
    world.simulator.card_declines(subscriber.customer)
    await world.passes(days=32, hours=23)
    told = await mailed(world)
    async with world.losing_deliveries():
        await world.passes(hours=2)
    assert {FAILED, DELETED} <= {event.type for event in world.lost()}
    await backfill(world)
    assert await world.record(subscriber) == OVER
    assert await mailed(world) == told


async def test_events_without_a_tenant_are_parked(world: World) -> None:
    unlinked = world.provider.unlinked()
    world.simulator.customer(unlinked.customer)
    async with world.losing_deliveries():
        world.subscribe(unlinked, "price_pro")
    done, told = await backfill(world)
    assert done.outcomes == {"parked": 2}
    assert {event.tenant_id for event in told} == {unlinked.id, None}
    await world.provider.arrives(unlinked, stripeCustomerId=unlinked.customer)
    assert await world.record(unlinked) == world.truth(unlinked)


# A provider that fails


@pytest.fixture
def provider(emptied_service: Service) -> Provider:
    return Provider(emptied_service)


async def listing(provider: Provider, server: ProviderServer, number: int) -> list[dict[str, Any]]:
    """Renewals of one tenant, a second after another, as the provider lists them."""
    subscriber = await provider.subscriber()
    server.events = [
        events.updated(**subscriber.names, created=NOW - age, period_end=NOW - age)
        for age in range(number)
    ]
    return server.events


async def test_more_events_than_a_page_or_a_batch_holds(
    provider: Provider, server: ProviderServer
) -> None:
    await listing(provider, server, 350)
    service = provider.service
    async with reconciling(service.conninfo, server.url, KEY, clock=service.clock) as desk:
        done = await desk.reconciler.backfill.run(NOW - 300)
    assert (done.listed, done.missed, done.outcomes) == (301, 301, {"applied": 1, "late": 300})


async def test_a_failure_in_the_middle_keeps_the_applied_events(
    provider: Provider, server: ProviderServer
) -> None:
    await listing(provider, server, 250)
    service = provider.service
    told: list[MissedEvent] = []

    def tell(part: BackfillPart) -> None:
        told.extend(part.missed)
        server.answers.append(refusal(500, type="api_error"))

    async with reconciling(service.conninfo, server.url, KEY, clock=service.clock) as desk:
        done = await desk.reconciler.backfill.run(0, observer=tell)
    assert isinstance(done.stopped, ProviderUnavailableError)
    assert done.reached is not None
    assert done.reached.id == told[-1].id
    stored = await rows(service.conninfo, "SELECT id FROM billing_events")
    assert 0 < done.missed < 250
    assert {event.id for event in told} == {row["id"] for row in stored}


async def test_observer_stops_a_run_after_a_part(
    provider: Provider, server: ProviderServer
) -> None:
    await listing(provider, server, 250)
    service = provider.service
    async with reconciling(service.conninfo, server.url, KEY, clock=service.clock) as desk:
        done = await desk.reconciler.backfill.run(0, observer=lambda part: part.listed > 0)
        assert (done.interrupted, done.stopped, done.missed) == (True, None, done.listed)
        assert done.reached is not None
        assert 0 < done.listed < 250
        rest = await desk.reconciler.backfill.run(0, until=done.reached.created)
    assert done.missed + rest.missed == 250
    assert not rest.interrupted


async def test_a_type_that_no_endpoint_must_send_is_missed_only_on_request(
    provider: Provider, server: ProviderServer
) -> None:
    subscriber = await provider.subscriber()
    server.events = [
        events.subscription_created(**subscriber.names, status="trialing", event_id="evt_1")
    ]
    service = provider.service
    async with reconciling(service.conninfo, server.url, KEY, clock=service.clock) as desk:
        await desk.reconciler.backfill.run(0)
        required = server.requests[-1].params
        done = await desk.reconciler.backfill.run(0, types=KNOWN_TYPES)
        known = server.requests[-1].params
    assert SUBSCRIPTION_CREATED in known.values()
    assert {text for name, text in required.items() if name.startswith("types[")} == REQUIRED_TYPES
    assert done.outcomes == {"applied": 1}
    assert await provider.state(subscriber) == ("pro", "trialing")


async def test_a_key_that_is_refused(provider: Provider, server: ProviderServer) -> None:
    service = provider.service
    async with reconciling(
        service.conninfo, server.url, "sk_test_wrong", clock=service.clock
    ) as desk:
        done = await desk.reconciler.backfill.run(0)
    assert isinstance(done.stopped, ProviderRefusedError)


async def test_invalid_list_items_are_skipped(
    provider: Provider, server: ProviderServer, caplog: pytest.LogCaptureFixture
) -> None:
    listed = await listing(provider, server, 3)
    listed[1]["data"] = {"object": "nothing"}
    service = provider.service
    with caplog.at_level(logging.WARNING, "tenantry"):
        async with reconciling(service.conninfo, server.url, KEY, clock=service.clock) as desk:
            done = await desk.reconciler.backfill.run(0)
    assert (done.listed, done.missed) == (2, 2)
    assert caplog.messages == [
        "the provider's list has a malformed event: data.object is not an object"
    ]


async def test_an_event_of_a_connected_account_is_ignored_like_a_delivered_one(
    provider: Provider, server: ProviderServer
) -> None:
    subscriber = await provider.subscriber()
    server.events = [events.updated(**subscriber.names, event_id="evt_1") | {"account": "acct_1"}]
    service, told = provider.service, list[MissedEvent]()
    async with reconciling(service.conninfo, server.url, KEY, clock=service.clock) as desk:
        done = await desk.reconciler.backfill.run(0, observer=adding_to(told))
        again = await desk.reconciler.backfill.run(0)
    assert (done.outcomes, [event.tenant_id for event in told], again.missed) == (
        {"ignored": 1},
        [None],
        0,
    )
    assert await provider.state(subscriber) == ("free", "none")


async def test_an_event_that_came_in_invalid_is_missed_until_it_is_valid(
    provider: Provider, server: ProviderServer
) -> None:
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names, event_id="evt_1")
    invalid = {**event, "data": {"object": {**event["data"]["object"], "status": None}}}
    await provider.send(invalid)
    service = provider.service
    async with reconciling(service.conninfo, server.url, KEY, clock=service.clock) as desk:
        server.events = [invalid]
        assert (await desk.reconciler.backfill.run(0)).missed == 0
        server.events = [event]
        assert (await desk.reconciler.backfill.run(0)).outcomes == {"applied": 1}
        assert (await desk.reconciler.backfill.run(0)).missed == 0
    assert await provider.state(subscriber) == ("pro", "active")
