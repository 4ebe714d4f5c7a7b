"""Reconciliation with a failing provider, and with tenants that change meanwhile."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import psycopg
import pytest

from tenantry.billing.reconcile import Reconciler
from tenantry.billing.reconcile_run import RunObserver
from tenantry.billing.subscription_survey import MOST_CHECKOUTS
from tenantry.billing.tenant_comparison import Comparison
from tenantry.domain.errors import (
    DatabaseUnavailableError,
    NotFoundError,
    ProviderRefusedError,
    ProviderUnavailableError,
)
from tests.support import events
from tests.support.billing import Provider, Subscriber, rows
from tests.support.events import NOW
from tests.support.facts import ANY
from tests.support.provider_api import KEY, Answer, ProviderServer, refusal
from tests.support.service import Service
from tests.support.truth import Desk, drifted, reconciling

BROKEN: Final = refusal(500, type="api_error")
AN_HOUR: Final = timedelta(hours=1)
TWO_HOURS: Final = timedelta(hours=2)
SNAPSHOTS: Final = "SELECT id FROM billing_events WHERE type = 'tenantry.subscription.snapshot'"


@pytest.fixture
def provider(emptied_service: Service) -> Provider:
    return Provider(emptied_service)


@pytest.fixture
async def desk(emptied_service: Service, server: ProviderServer) -> AsyncIterator[Desk]:
    async with reconciling(
        emptied_service.conninfo, server.url, KEY, clock=emptied_service.clock
    ) as desk:
        yield desk


@pytest.fixture
def reconciler(desk: Desk) -> Reconciler:
    return desk.reconciler


def subscribes(server: ProviderServer, subscriber: Subscriber, **fields: Any) -> None:
    """At the provider, the tenant's customer has a subscription of which no event arrived."""
    server.subscriptions.setdefault(subscriber.customer, []).append(
        events.subscription(**{**subscriber.names, **fields})
    )


async def subscribers(provider: Provider, server: ProviderServer, number: int) -> list[Subscriber]:
    """Tenants that have all drifted; their ids are in this order."""
    made = [await provider.subscriber() for _ in range(number)]
    for subscriber in made:
        subscribes(server, subscriber)
    return made


def unreadable(subscriber: Subscriber) -> dict[str, Any]:
    """A subscription without a status."""
    return {"id": f"sub_{subscriber.id}", "customer": subscriber.customer}


async def plans(provider: Provider, *subscribers: Subscriber) -> list[str]:
    return [(await provider.state(subscriber))[0] for subscriber in subscribers]


# One tenant's trouble


async def test_an_unusable_answer_about_one_tenant_leaves_the_others_alone(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    made = await subscribers(provider, server, 5)
    server.subscriptions[made[1].customer] = [unreadable(made[1])]
    found = await reconciler.run()
    assert [(each.tenant_id, each.trouble) for each in found.troubled] == [
        (made[1].id, "The payment provider's answer cannot be used.")
    ]
    assert (found.compared, found.stopped) == (4, None)
    assert await plans(provider, *made) == ["pro", "free", "pro", "pro", "pro"]


@pytest.mark.parametrize("number", [1, 4, 9])
async def test_tenants_of_whom_nothing_can_be_learned_do_not_stop_the_run(
    provider: Provider, server: ProviderServer, reconciler: Reconciler, number: int
) -> None:
    made = await subscribers(provider, server, number)
    for subscriber in made:
        server.subscriptions[subscriber.customer] = [unreadable(subscriber)]
    found = await reconciler.run()
    assert (found.compared, len(found.troubled), found.stopped) == (0, number, None)


async def test_a_customer_that_the_provider_does_not_know_is_trouble_and_changes_nothing(
    provider: Provider, reconciler: Reconciler
) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**subscriber.names))
    [troubled] = (await reconciler.run()).troubled
    assert (
        troubled.trouble
        == f"the provider does not know its customer in this account and mode: {subscriber.customer}"
    )
    assert await provider.state(subscriber) == ("pro", "active")
    assert await rows(provider.service.conninfo, SNAPSHOTS) == []


async def with_two_customers(provider: Provider) -> tuple[Subscriber, str]:
    """A tenant with a known subscription, and another customer of it."""
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**subscriber.names, created=NOW - 60))
    await provider.arrives(subscriber, stripeCustomerId=f"{subscriber.customer}_b")
    return subscriber, f"{subscriber.customer}_b"


async def test_an_unknown_customer_beside_the_one_that_subscribes_does_not_matter(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    subscriber, _ = await with_two_customers(provider)
    subscribes(server, subscriber, price="price_business")
    assert drifted(await reconciler.run()) == [subscriber.id]
    assert await provider.state(subscriber) == ("business", "active")


async def test_a_subscription_is_not_over_because_its_customer_is_unknown(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    subscriber, other = await with_two_customers(provider)
    server.subscriptions[other] = []
    [troubled] = (await reconciler.run()).troubled
    assert (
        troubled.trouble
        == f"the provider does not know its customer in this account and mode: {subscriber.customer}"
    )
    assert await provider.state(subscriber) == ("pro", "active")


async def test_a_subscription_is_not_over_because_it_is_not_listed(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    """The provider lists those that have ended too: it is another account's, or none of the
    provider's.
    """
    subscriber, other = await with_two_customers(provider)
    server.subscriptions |= {other: [], subscriber.customer: []}
    [troubled] = (await reconciler.run()).troubled
    assert troubled.trouble == f"the provider does not know its subscription sub_{subscriber.id}"
    assert len(server.requests) == 1 + len(
        (subscriber.customer, other)
    )  # nothing has happened that would change an answer
    assert await provider.state(subscriber) == ("pro", "active")


# How often the provider is asked


async def test_only_tenants_that_differ_are_asked_about(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    made = await subscribers(provider, server, 12)
    await reconciler.run()
    server.requests.clear()
    server.subscriptions[made[7].customer][0]["status"] = "past_due"
    found = await reconciler.run()
    assert (found.compared, drifted(found)) == (12, [made[7].id])
    asked = [
        request.params.get("customer")
        for request in server.requests
        if request.path == "/v1/subscriptions"
    ]
    assert asked == [None, made[7].customer]


async def test_checkout_sessions_are_asked_for_a_bounded_number_of_subscriptions(
    provider: Provider,
    server: ProviderServer,
    reconciler: Reconciler,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An account may have thousands of subscriptions to other products."""
    for number in range(MOST_CHECKOUTS + 5):
        server.subscriptions[f"cus_other_{number}"] = [
            events.subscription(
                org=None, customer=f"cus_other_{number}", subscription_id=f"sub_other_{number}"
            )
        ]
    with caplog.at_level(logging.WARNING, "tenantry.billing.subscription_survey"):
        found = await reconciler.run()
    [limit] = caplog.messages
    assert limit.startswith(
        f"more than {MOST_CHECKOUTS} living subscriptions at the provider name no tenant"
    )
    assert (found.unplaced_number, found.stopped) == (MOST_CHECKOUTS + 5, None)
    assert (
        len([each for each in server.requests if each.path == "/v1/checkout/sessions"])
        == MOST_CHECKOUTS
    )


async def test_a_key_that_may_not_read_checkout_sessions_compares_without_them(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    server.subscriptions["cus_other"] = [events.subscription(org=None, customer="cus_other")]
    server.answers.extend([Answer(200, whole_list(server)), refusal(403)])
    found = await reconciler.run()
    assert (found.unplaced_number, found.stopped) == (1, None)


@pytest.mark.parametrize(("livemode", "expected"), [(True, 0), (False, 1)])
async def test_subscriptions_of_the_mode_that_is_ignored_do_not_count(
    provider: Provider, server: ProviderServer, *, livemode: bool, expected: int
) -> None:
    """With PROVIDER_LIVEMODE=test."""
    subscriber = await provider.subscriber(linked=False)
    subscribes(server, subscriber)
    server.subscriptions[subscriber.customer][0]["livemode"] = livemode
    policy = msgspec.structs.replace(ANY, livemode=False, ignores_other_mode=True)
    service = provider.service
    async with reconciling(
        service.conninfo, server.url, KEY, clock=service.clock, policy=policy
    ) as desk:
        assert len((await desk.reconciler.run()).drifted) == expected


async def test_trouble_with_a_second_question_does_not_hide_what_the_first_has_repaired(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    [subscriber] = await subscribers(provider, server, 1)
    for number in range(100):
        server.subscriptions[f"cus_unknown_{number}"] = [
            events.subscription(
                org="unknown",
                customer=f"cus_unknown_{number}",
                subscription_id=f"sub_{number}",
            )
        ]
    server.subscriptions["cus_second"] = [
        events.subscription(
            org=subscriber.id,
            customer="cus_second",
            subscription_id="sub_second",
            price="price_business",
        )
    ]

    def break_answers(_: Comparison) -> None:
        server.subscriptions[subscriber.customer] = [unreadable(subscriber)]

    found = await reconciler.run(observer=RunObserver(found=break_answers))
    assert (drifted(found), [each.tenant_id for each in found.troubled]) == (
        [subscriber.id],
        [subscriber.id],
    )
    assert found.drifted[0].repaired


# A provider that is away or refuses


async def test_an_unreachable_provider_stops_the_run_without_changes(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    made = await subscribers(provider, server, 2)
    await server.stop()
    found = await reconciler.run()
    assert isinstance(found.stopped, ProviderUnavailableError)
    assert (found.compared, found.drifted, found.troubled) == (0, (), ())
    assert await plans(provider, *made) == ["free", "free"]
    assert await rows(provider.service.conninfo, SNAPSHOTS) == []


async def test_a_provider_that_breaks_in_the_middle_leaves_what_was_done(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    made = await subscribers(provider, server, 6)
    found = await reconciler.run(
        observer=RunObserver(lambda _: server.answers.extend([BROKEN] * 9))
    )
    assert isinstance(found.stopped, ProviderUnavailableError)
    assert (found.compared, drifted(found)) == (4, [each.id for each in made[:4]])
    assert all(each.repaired for each in found.drifted)
    assert await plans(provider, *made) == ["pro"] * 4 + ["free"] * 2


STOPPING: Final = (BROKEN,) * 3
"""The answers to the questions about two tenants, and to the one that asks whether the provider
answers at all.
"""


async def test_an_error_does_not_lose_the_missed_events_of_repaired_tenants(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    made = await subscribers(provider, server, 6)
    server.events = [events.updated(**made[0].names, event_id="evt_missed")]
    found = await reconciler.run(observer=RunObserver(lambda _: server.answers.extend(STOPPING)))
    assert isinstance(found.stopped, ProviderUnavailableError)
    assert [[event.id for event in each.missed] for each in found.drifted] == [
        ["evt_missed"],
        [],
        [],
        [],
    ]
    assert "evt_missed" in await provider.ledger(made[0])


@pytest.mark.thorough
async def test_an_error_of_one_tenant_does_not_lose_what_was_repaired_beside_it(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    repaired, locked = await subscribers(provider, server, 2)
    server.events = [events.updated(**repaired.names, event_id="evt_missed")]
    async with await psycopg.AsyncConnection.connect(provider.service.conninfo) as connection:
        await connection.execute(
            "SELECT FROM tenants WHERE id = %s FOR NO KEY UPDATE", (locked.id,)
        )
        found = await reconciler.run()
    assert isinstance(found.stopped, DatabaseUnavailableError)
    assert drifted(found) == [repaired.id]
    assert "evt_missed" in await provider.ledger(repaired)


async def test_missed_events_that_could_not_be_fetched_are_fetched_by_the_next_run(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    made = await subscribers(provider, server, 6)
    server.events = [events.updated(**made[0].names, event_id="evt_missed")]
    observer = RunObserver(lambda _: server.answers.extend([*STOPPING, BROKEN]))
    assert isinstance((await reconciler.run(observer=observer)).stopped, ProviderUnavailableError)
    assert "evt_missed" not in await provider.ledger(made[0])
    server.answers.clear()
    assert drifted(await reconciler.run()) == [each.id for each in made[4:]]
    assert "evt_missed" in await provider.ledger(made[0])


async def test_a_run_that_is_stopped_ends_after_the_tenants_in_flight(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    made = await subscribers(provider, server, 6)
    seen: list[str] = []
    observer = RunObserver(found=lambda each: seen.append(each.tenant_id), stops=lambda: bool(seen))
    found = await reconciler.run(observer=observer)
    assert (found.interrupted, found.stopped, found.compared) == (True, None, 4)
    assert seen == drifted(found) == [each.id for each in made[:4]]
    assert await plans(provider, *made) == ["pro"] * 4 + ["free"] * 2
    rest = await reconciler.run()
    assert (rest.interrupted, drifted(rest)) == (False, [each.id for each in made[4:]])


async def test_a_provider_that_does_not_list_its_events_leaves_what_was_repaired(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    [subscriber] = await subscribers(provider, server, 1)
    found = await reconciler.run(observer=RunObserver(lambda _: server.answers.append(BROKEN)))
    assert isinstance(found.stopped, ProviderUnavailableError)
    assert drifted(found) == [subscriber.id]
    assert await provider.state(subscriber) == ("pro", "active")


async def test_a_key_that_is_refused_stops_the_run(
    provider: Provider, server: ProviderServer
) -> None:
    made = await subscribers(provider, server, 5)
    service = provider.service
    async with reconciling(
        service.conninfo, server.url, "sk_test_wrong", clock=service.clock
    ) as desk:
        found = await desk.reconciler.run()
    assert isinstance(found.stopped, ProviderRefusedError)
    assert (found.compared, found.troubled) == (0, ())
    assert len(server.requests) == 1
    assert await plans(provider, *made) == ["free"] * 5


async def test_a_key_that_may_not_read_subscriptions_stops_the_run(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    await subscribers(provider, server, 1)
    server.answers.append(refusal(403))
    found = await reconciler.run()
    assert isinstance(found.stopped, ProviderRefusedError)
    assert (found.stopped.of_key, found.troubled) == (True, ())


@pytest.mark.parametrize("name", ["missing", "not a tenant's id", ""])
async def test_for_a_tenant_that_does_not_exist_nothing_is_done(
    provider: Provider, server: ProviderServer, reconciler: Reconciler, name: str
) -> None:
    [subscriber] = await subscribers(provider, server, 1)
    with pytest.raises(NotFoundError, match=f"There is no such tenant: {name}"):
        await reconciler.run([subscriber.id, name])
    assert server.requests == []
    assert await provider.state(subscriber) == ("free", "none")


# What changes while the provider is asked


async def test_nothing_is_locked_while_the_provider_is_slow(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    [subscriber] = await subscribers(provider, server, 1)
    server.open.clear()
    run = asyncio.create_task(reconciler.run([subscriber.id]))
    await server.until_requested(1)
    await provider.send(
        events.updated(**subscriber.names, price="price_business", created=NOW + 60)
    )
    server.open.set()
    assert (await run).drifted == ()
    assert await provider.state(subscriber) == ("business", "active")


async def test_a_page_of_the_list_that_is_older_than_an_event_undoes_nothing(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    [subscriber] = await subscribers(provider, server, 1)
    server.open.clear()
    server.answers.append(Answer(200, whole_list(server)))
    run = asyncio.create_task(reconciler.run())
    await server.until_requested(1)
    server.subscriptions.clear()
    subscribes(server, subscriber, price="price_business")
    await provider.send(
        events.updated(**subscriber.names, price="price_business", created=NOW + 60)
    )
    server.open.set()
    assert (await run).drifted == ()
    assert await provider.state(subscriber) == ("business", "active")


async def test_a_customer_that_is_linked_while_the_provider_is_asked_is_asked_for_too(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**subscriber.names, created=NOW - 3600))
    await provider.send(events.deleted(**subscriber.names, created=NOW - 1800))
    subscribes(server, subscriber, status="canceled")
    other = f"{subscriber.customer}_b"
    server.subscriptions[other] = [
        events.subscription(**{**subscriber.names, "customer": other, "subscription_id": "sub_b"})
    ]
    server.open.clear()
    run = asyncio.create_task(reconciler.run([subscriber.id]))
    await server.until_requested(1)
    await provider.arrives(subscriber, stripeCustomerId=other)
    await provider.send(
        events.updated(
            **{**subscriber.names, "customer": other, "subscription_id": "sub_b"}, created=NOW - 900
        )
    )
    server.open.set()
    found = await run
    assert (found.compared, found.drifted, found.troubled) == (1, (), ())
    assert await provider.state(subscriber) == ("pro", "active")


async def test_a_subscription_that_begins_while_the_provider_is_asked_is_asked_for_again(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    subscriber = await provider.subscriber()
    server.open.clear()
    server.answers.append(Answer(200, {"object": "list", "data": [], "has_more": False}))
    run = asyncio.create_task(reconciler.run([subscriber.id]))
    await server.until_requested(1)
    await provider.send(events.updated(**subscriber.names, created=NOW - 60))
    subscribes(server, subscriber)
    server.open.set()
    found = await run
    assert (found.compared, found.drifted, found.troubled) == (1, (), ())
    assert await provider.state(subscriber) == ("pro", "active")


async def test_a_subscription_that_begins_meanwhile_is_asked_for_again_though_another_customer_is_unknown(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    subscriber = await provider.subscriber()
    other = f"{subscriber.customer}_b"
    await provider.arrives(subscriber, stripeCustomerId=other)
    names = {**subscriber.names, "customer": other}
    server.open.clear()
    server.answers.extend(
        [
            refusal(400, code="resource_missing", param="customer", message="No such customer"),
            Answer(200, {"object": "list", "data": [], "has_more": False}),
        ]
    )
    run = asyncio.create_task(reconciler.run([subscriber.id]))
    await server.until_requested(1)
    await provider.send(events.updated(**names, created=NOW - 60))
    server.subscriptions[other] = [events.subscription(**names)]
    server.open.set()
    found = await run
    assert (found.compared, found.drifted, found.troubled) == (1, (), ())
    assert await provider.state(subscriber) == ("pro", "active")


async def test_a_tenant_that_ends_while_the_provider_is_asked_is_left_alone(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    [subscriber] = await subscribers(provider, server, 1)
    server.open.clear()
    run = asyncio.create_task(reconciler.run())
    await server.until_requested(1)
    await provider.service.operator.delete(f"/api/v1/tenants/{subscriber.id}")
    server.open.set()
    assert (await run).drifted == ()
    assert await rows(provider.service.conninfo, SNAPSHOTS) == []


# Comparing from time to time


async def compared_at(provider: Provider) -> dict[str, Any]:
    found = await rows(provider.service.conninfo, "SELECT id, reconciled_at FROM tenants")
    return {row["id"]: row["reconciled_at"] for row in found}


async def test_all_are_compared_from_time_to_time_and_new_ones_in_between(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    await subscribers(provider, server, 2)
    assert (await reconciler.run_due(AN_HOUR, 1)).compared == 2
    before = await compared_at(provider)
    provider.service.clock.advance(minutes=10)
    made = await subscribers(provider, server, 3)
    assert drifted(await reconciler.run_due(AN_HOUR, 2)) == [made[0].id, made[1].id]
    assert drifted(await reconciler.run_due(AN_HOUR, 2)) == [made[2].id]
    assert (await reconciler.run_due(AN_HOUR, 2)).compared == 0
    assert before.items() <= (await compared_at(provider)).items()
    provider.service.clock.advance(minutes=50)
    assert (await reconciler.run_due(AN_HOUR, 1)).compared == 5


async def test_a_run_that_was_stopped_is_completed_by_the_next(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    made = await subscribers(provider, server, 6)
    server.answers.extend([Answer(200, whole_list(server)), *[BROKEN] * 9])
    with pytest.raises(ProviderUnavailableError):
        await reconciler.run_due(AN_HOUR, 1)
    server.answers.clear()
    assert (await reconciler.run_due(AN_HOUR, 1)).compared == 6
    assert await plans(provider, *made) == ["pro"] * 6


async def test_a_scheduled_run_continues_after_the_pages_that_were_done_before_an_error(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    for number in range(150):
        server.subscriptions[f"cus_unknown_{number}"] = [
            events.subscription(
                org="unknown",
                customer=f"cus_unknown_{number}",
                subscription_id=f"sub_{number}",
            )
        ]
    everything = whole_list(server)
    server.answers.extend(
        [Answer(200, {**everything, "data": everything["data"][:100], "has_more": True}), BROKEN]
    )
    with pytest.raises(ProviderUnavailableError):
        await reconciler.run_due(TWO_HOURS, 1)
    server.requests.clear()
    assert (await reconciler.run_due(TWO_HOURS, 1)).unplaced_number == 150
    assert [each.params.get("starting_after") for each in server.requests] == ["sub_99"]


async def test_a_scheduled_run_begins_again_if_the_provider_does_not_know_where_to_continue(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    [subscriber] = await subscribers(provider, server, 1)
    page = {
        **whole_list(server),
        "data": [events.subscription(org="unknown", customer="cus_gone")],
        "has_more": True,
    }
    server.answers.extend([Answer(200, page), BROKEN])
    with pytest.raises(ProviderUnavailableError):
        await reconciler.run_due(TWO_HOURS, 1)
    with pytest.raises(ProviderRefusedError):
        await reconciler.run_due(TWO_HOURS, 1)
    assert drifted(await reconciler.run_due(TWO_HOURS, 1)) == [subscriber.id]


async def test_a_scheduled_run_that_takes_too_long_is_continued(
    provider: Provider, server: ProviderServer
) -> None:
    for number in range(250):
        server.subscriptions[f"cus_unknown_{number}"] = [
            events.subscription(
                org="unknown",
                customer=f"cus_unknown_{number}",
                subscription_id=f"sub_{number}",
            )
        ]
    clock = provider.service.clock

    def ten_minutes_later() -> datetime:
        clock.advance(minutes=10)
        return clock()

    async with reconciling(
        provider.service.conninfo, server.url, KEY, clock=ten_minutes_later
    ) as desk:
        found = [await desk.reconciler.run_due(TWO_HOURS, 1) for _ in range(3)]
    assert [each.interrupted for each in found] == [True, True, False]
    assert found[-1].unplaced_number == 250
    pages = [
        each.params.get("starting_after")
        for each in server.requests
        if each.path == "/v1/subscriptions"
    ]
    assert pages == [None, "sub_99", "sub_99", "sub_199", "sub_199"]


def whole_list(server: ProviderServer) -> dict[str, Any]:
    data = [one for listed in server.subscriptions.values() for one in listed]
    return {"object": "list", "data": data, "has_more": False}


async def test_a_dry_run_does_not_count_as_a_comparison(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    await subscribers(provider, server, 1)
    await reconciler.run(dry_run=True)
    assert (await reconciler.run_due(AN_HOUR, 9)).compared == 1


async def test_tenants_in_trouble_do_not_keep_the_others_waiting(
    provider: Provider,
    server: ProviderServer,
    reconciler: Reconciler,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = await subscribers(provider, server, 3)
    for subscriber in made[:2]:
        server.subscriptions[subscriber.customer] = [unreadable(subscriber)]
    with caplog.at_level(logging.WARNING, "tenantry.billing.reconcile"):
        assert (await reconciler.run_due(TWO_HOURS, 2)).compared == 1
    why = "The payment provider's answer cannot be used."
    assert caplog.messages[-1] == (
        f"tenants that could not be compared with the provider: 2 ({made[0].id}: {why}; {made[1].id}: {why})"
    )
    assert (await reconciler.run_due(TWO_HOURS, 2)).compared == 0
    provider.service.clock.advance(hours=1)
    server.subscriptions[made[0].customer] = []
    found = await reconciler.run_due(TWO_HOURS, 2)
    assert (found.compared, [each.tenant_id for each in found.troubled]) == (1, [made[1].id])


async def test_what_is_repaired_from_time_to_time_is_logged(
    provider: Provider,
    server: ProviderServer,
    reconciler: Reconciler,
    caplog: pytest.LogCaptureFixture,
) -> None:
    [subscriber] = await subscribers(provider, server, 1)
    with caplog.at_level(logging.WARNING, "tenantry.billing.reconcile"):
        await reconciler.run_due(AN_HOUR, 9)
    fields = "current_period_end, plan, subscription_status"
    assert caplog.messages == [
        f"tenant {subscriber.id} had drifted from the provider and is repaired: {fields}"
    ]


async def test_what_stops_a_run_from_time_to_time_is_raised(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    await subscribers(provider, server, 1)
    server.answers.extend([BROKEN, BROKEN])
    with pytest.raises(ProviderUnavailableError):
        await reconciler.run_due(AN_HOUR, 9)
    assert set((await compared_at(provider)).values()) == {None}


# Single questions


async def test_a_check_of_an_ended_tenant_or_without_a_customer_is_dropped(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    unlinked, ended = await provider.subscriber(linked=False), await provider.subscriber()
    await provider.service.operator.delete(f"/api/v1/tenants/{ended.id}")
    for tenant_id in (unlinked.id, ended.id, "missing"):
        await reconciler.fetch_snapshot(tenant_id)
    assert server.requests == []


async def test_an_answer_to_a_question_is_no_drift(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    [subscriber] = await subscribers(provider, server, 1)
    await reconciler.fetch_snapshot(subscriber.id)
    assert [entry["anomalies"] for entry in (await provider.ledger(subscriber)).values()] == [[]]
    assert set((await compared_at(provider)).values()) == {None}


async def test_a_question_that_the_provider_cannot_answer_now_is_an_error(
    provider: Provider, server: ProviderServer, reconciler: Reconciler
) -> None:
    [subscriber] = await subscribers(provider, server, 1)
    server.answers.append(BROKEN)
    with pytest.raises(ProviderUnavailableError):
        await reconciler.fetch_snapshot(subscriber.id)
    assert await provider.state(subscriber) == ("free", "none")
