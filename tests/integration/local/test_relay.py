"""The relay between a simulated provider and an endpoint, both over HTTP: order, gaps, refusals and outages."""

import json
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import pytest

from tenantry.common.secret import Secret
from tenantry.domain.billing.events import HANDLED_TYPES
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.stripe.api import ProviderApi
from tenantry_devkit.local.endpoint import WEBHOOK_PATH, Endpoint
from tenantry_devkit.local.relay import OVERLAP, Outcome, Relay, Subscription
from tenantry_devkit.local.service import Credentials, ServiceReader
from tenantry_devkit.simulator import Simulator
from tenantry_devkit.simulator.http import Receive, Scope, Send
from tenantry_devkit.simulator.server import serving
from tests.support.app import OPERATOR_TOKEN
from tests.support.findings import free_port
from tests.support.local import QUICK, SECRET, Receiver, Told, asked, running, served_service

ALL: Final = frozenset({"*"})


class Line(NamedTuple):
    """A relay that has begun, and both of its ends."""

    simulator: Simulator
    relay: Relay
    told: Told


@asynccontextmanager
async def line(
    url: str, types: Collection[str] = ALL, *, since: int | None = None, concurrency: int = 1, patience: float = 30
) -> AsyncIterator[Line]:
    """A relay from a provider with one customer to an address."""
    told = Told()
    simulator = Simulator()
    simulator.customer("cus_1")
    async with simulator.serving(), asked(simulator) as provider, new_http_client(patience) as client:
        source = Subscription(provider, types)
        await source.begin(since)
        endpoint = Endpoint(client, url, Secret(SECRET))
        yield Line(
            simulator, Relay(source, endpoint, told.hearing, pace=QUICK, concurrency=concurrency), told
        )  # fmt: skip


def ids(simulator: Simulator, *types: str, after: int = 0) -> list[str]:
    """The ids of the provider's events, oldest first."""
    return [event.id for event in simulator.events(*types)[after:]]


async def test_what_happens_from_now_on_reaches_the_service_and_changes_the_tenant(conninfo: str) -> None:
    async with (
        served_service(conninfo) as base,
        line(base + WEBHOOK_PATH, HANDLED_TYPES) as (simulator, relay, told),
        new_http_client() as client,
        running(relay),
    ):
        reader = ServiceReader(client, base, Credentials(operator=Secret(OPERATOR_TOKEN)))
        await reader.make_tenant("acme", "Acme", "owner@acme.example")
        simulator.subscribe("cus_1", "price_pro", metadata={"orgId": "acme"})
        await told.until_delivered(2)
        assert [attempt.event.id for attempt in told.attempts] == ids(simulator, *HANDLED_TYPES)
        assert {(attempt.status, attempt.answer) for attempt in told.attempts} == {(200, "OK")}
        assert (told.attempts[-1].event.tenant, told.attempts[-1].event.customer) == ("acme", "cus_1")
        tenant = (await reader.look("acme")).tenant
        assert tenant is not None
        assert (tenant.plan, tenant.subscription_status) == ("pro", "active")


async def test_an_event_arrives_byte_for_byte_as_it_was_listed() -> None:
    receiver = Receiver()
    async with serving(receiver), line(receiver.url) as (simulator, relay, told), running(relay):
        simulator.customer("cus_ü", name="Süßwaren \U0001f36c 株式会社", metadata={"note": '\u2028"\\'})
        await told.until_delivered(1)
        async with asked(simulator) as provider, aclosing(provider.events_since(0, None)) as listed:
            assert receiver.bodies == [await anext(listed)]


async def test_events_from_before_are_relayed_only_when_asked_for() -> None:
    receiver = Receiver()
    async with serving(receiver), line(receiver.url) as (simulator, relay, told), running(relay):
        simulator.subscribe("cus_1", "price_pro")
        before = len(simulator.prices) + 1  # each price and the customer
        await told.until_delivered(len(simulator.events()) - before)
        assert receiver.ids == ids(simulator, after=before)
    receiver = Receiver()
    async with serving(receiver), line(receiver.url, since=0) as (simulator, relay, told), running(relay):
        await told.until_delivered(len(simulator.events()))
        assert receiver.ids == ids(simulator)


async def test_more_events_than_a_page_holds_arrive_in_order_and_once() -> None:
    receiver = Receiver()
    async with serving(receiver), line(receiver.url, {"customer.updated", "price.created"}) as (simulator, relay, told):
        made = [simulator.price(f"price_{number}").id for number in range(130)]
        await simulator.advance(seconds=1)
        made += [simulator.price(f"price_later_{number}").id for number in range(130)]
        async with running(relay):
            await told.until_delivered(len(made))
            # another of the same second, after the list was read
            made.append(simulator.price("price_last").id)
            await told.until_delivered(len(made))
        assert [event["data"]["object"]["id"] for event in receiver.events] == made


async def test_what_is_remembered_does_not_grow() -> None:
    simulator = Simulator()
    async with simulator.serving(), asked(simulator) as provider:
        source = Subscription(provider, ALL)
        await source.begin()
        for number in range(4):
            await simulator.advance(seconds=OVERLAP + 1)
            simulator.price(f"price_{number}")
            assert [event.type for event in await source.fresh()] == ["price.created"]
        assert len(source._seen) == 1


async def test_a_service_that_was_away_gets_everything_in_order_and_nothing_twice() -> None:
    receiver, port = Receiver(), free_port()
    async with line(f"http://127.0.0.1:{port}/") as (simulator, relay, told), running(relay):
        simulator.price("price_early")
        await told.until(lambda told: len(told.notices) == 1)
        for number in range(20):
            simulator.price(f"price_{number}")
        async with serving(receiver, port):
            await told.until_delivered(10)
        async with serving(receiver, port):
            await told.until_delivered(21)
            simulator.price("price_late")
            await told.until_delivered(22)
        assert receiver.ids == ids(simulator, "price.created", after=3)
        assert relay.tally.is_clean
        assert "takes no connections" in told.notices[0]
        assert "takes connections again" in told.notices[1]


async def test_a_provider_that_was_away_is_told_of_once_and_nothing_is_lost() -> None:
    receiver = Receiver()
    told, port = Told(), free_port()
    simulator = Simulator(url=f"http://127.0.0.1:{port}")
    async with serving(receiver), new_http_client() as client, asked(simulator) as provider:
        source = Subscription(provider, ALL)
        async with simulator.serving(port):
            await source.begin()
            relay = Relay(source, Endpoint(client, receiver.url, Secret(SECRET)), told.hearing, pace=QUICK)
            simulator.price("price_before")
        async with running(relay):
            await told.until(lambda told: len(told.notices) == 1)
            simulator.price("price_meanwhile")
            async with simulator.serving(port):
                await told.until_delivered(2)
        assert receiver.ids == ids(simulator, after=3)
        assert len(told.notices) == 2
        assert "out of reach" in told.notices[0]


async def test_a_refusal_is_told_with_its_text_and_passed_over() -> None:
    receiver = Receiver()
    receiver.statuses.extend([422, 200])
    receiver.text = "price: is\nunknown \x1b[31m " + "x" * 100_000
    async with serving(receiver), line(receiver.url) as (simulator, relay, told), running(relay):
        simulator.price("price_refused")
        simulator.price("price_taken")
        await told.until_delivered(1)
    first, second = told.attempts
    assert (first.outcome, first.status, first.number) == (Outcome.REFUSED, 422, 1)
    assert first.answer.startswith("price: is\nunknown")
    assert len(first.answer) < 3000
    assert second.outcome is Outcome.DELIVERED
    assert (relay.tally.received, relay.tally.refused, relay.tally.delivered) == (2, 1, 1)


async def test_an_event_is_tried_again_and_in_the_end_given_up_without_holding_up_the_others() -> None:
    receiver = Receiver()
    receiver.statuses.extend([500, 200, 503, 429, 500])
    async with serving(receiver), line(receiver.url) as (simulator, relay, told), running(relay):
        for name in ("price_second_try", "price_given_up", "price_at_once"):
            simulator.price(name)
        await told.until_delivered(2)
    told_so = [(attempt.outcome, attempt.status, attempt.number) for attempt in told.attempts]
    assert told_so == [
        (Outcome.RETRYING, 500, 1),
        (Outcome.DELIVERED, 200, 2),
        (Outcome.RETRYING, 503, 1),
        (Outcome.RETRYING, 429, 2),
        (Outcome.GIVEN_UP, 500, 3),
        (Outcome.DELIVERED, 200, 1),
    ]
    assert (relay.tally.given_up, relay.tally.waiting, relay.tally.is_clean) == (1, 0, False)


async def test_an_endpoint_that_never_answers_is_given_up() -> None:
    receiver = Receiver()
    receiver.open.clear()
    async with serving(receiver), line(receiver.url, patience=0.05) as (simulator, relay, told), running(relay):
        simulator.price("price_unheard")
        await told.until(lambda told: len(told.of(Outcome.GIVEN_UP)) == 1)
        receiver.open.set()
    assert {(attempt.status, attempt.answer) for attempt in told.attempts} == {(None, "ReadTimeout")}


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ({"invoice.payment_succeeded"}, {"invoice.payment_succeeded"}),
        ({"invoice.*", "customer.created"}, {"invoice.created", "invoice.finalized", "invoice.paid",
                                             "invoice.payment_succeeded"}),
    ],
)  # fmt: skip
async def test_only_the_types_that_are_wanted_are_relayed(types: set[str], expected: set[str]) -> None:
    receiver = Receiver()
    async with serving(receiver), line(receiver.url, types) as (simulator, relay, told), running(relay):
        simulator.subscribe("cus_1", "price_pro")
        await told.until_delivered(len(expected))
        simulator.price("price_last")
        simulator.subscribe("cus_1", "price_pro")
        await told.until_delivered(2 * len(expected))
    assert {event["type"] for event in receiver.events} == expected


async def test_with_concurrency_so_many_are_under_way_at_once() -> None:
    receiver = Receiver()
    receiver.open.clear()
    async with serving(receiver), line(receiver.url, concurrency=3) as (simulator, relay, told), running(relay):
        for number in range(9):
            simulator.price(f"price_{number}")
        await receiver.until_at_once(3)
        receiver.open.set()
        await told.until_delivered(9)
    assert receiver.most_at_once == 3
    assert sorted(receiver.ids) == sorted(ids(simulator, "price.created", after=3))


async def test_a_key_that_the_provider_refuses_ends_the_relay() -> None:
    simulator = Simulator()
    async with (
        simulator.serving(),
        asked(simulator, "sk_test_of_somebody_else") as provider,
        new_http_client() as client,
    ):
        source = Subscription(provider, ALL)
        with pytest.raises(ProviderRefusedError):
            await source.begin()
        relay = Relay(source, Endpoint(client, "http://127.0.0.1:1/", Secret(SECRET)), Told().hearing, pace=QUICK)
        with pytest.raises(ProviderRefusedError):
            await relay.run()


async def test_a_provider_out_of_reach_at_the_start_is_an_error() -> None:
    simulator = Simulator(url=f"http://127.0.0.1:{free_port()}")
    async with asked(simulator) as provider:
        with pytest.raises(ProviderUnavailableError):
            await Subscription(provider, ALL).begin()


class Listing:
    """A provider's list of events, to which anything may be added."""

    def __init__(self) -> None:
        self.url = ""
        self.asked = 0
        self.events: list[dict[str, Any]] = []

    def add(self, event_id: str, created: int) -> None:
        self.events.append({"id": event_id, "type": "price.created", "created": created, "data": {"object": {}}})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert not (await receive()).get("more_body")
        self.asked += 1
        query = dict(parse_qsl(scope["query_string"].decode()))
        since = int(query.get("created[gte]", 0))
        listed = sorted(self.events, key=lambda event: -event["created"])
        body = {"object": "list", "data": [each for each in listed if each["created"] >= since], "has_more": False}
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


class Seconds:
    """Seconds that go on when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def listing() -> AsyncIterator[tuple[Listing, Subscription, Seconds]]:
    seconds = Seconds()
    async with serving(Listing()) as provider, aclosing(ProviderApi(Secret("sk_test_x"), provider.url)) as api:
        yield provider, Subscription(api, ALL, seconds), seconds


async def test_event_that_is_listed_late_is_found() -> None:
    async with listing() as (provider, source, _):
        provider.add("evt_1", 1000)
        await source.begin()
        provider.add("evt_3", 1010)
        assert [event.id for event in await source.fresh()] == ["evt_3"]
        provider.add("evt_2", 1005)
        assert [event.id for event in await source.fresh()] == ["evt_2"]
        assert await source.fresh() == []


async def test_what_is_old_is_not_read_again_once_it_has_been_quiet() -> None:
    async with listing() as (provider, source, seconds):
        provider.add("evt_1", 1000)
        await source.begin(0)
        assert [event.id for event in await source.fresh()] == ["evt_1"]
        seconds.now += OVERLAP + 1
        assert await source.fresh() == []
        provider.events.clear()
        provider.add("evt_read_again", 1000)
        assert await source.fresh() == [] or source.began_anew
        provider.add("evt_2", 1001)
        assert "evt_2" in [event.id for event in await source.fresh()]


async def test_source_whose_clock_went_back_is_heard_again() -> None:
    receiver, told = Receiver(), Told()
    async with serving(receiver), listing() as (provider, source, _), new_http_client() as client:
        provider.add("evt_of_next_month", 9_000_000)
        await source.begin()
        relay = Relay(source, Endpoint(client, receiver.url, Secret(SECRET)), told.hearing, pace=QUICK)
        async with running(relay):
            provider.events.clear()
            provider.add("evt_1", 1000)
            provider.add("evt_2", 1001)
            await told.until_delivered(2)
            provider.add("evt_3", 1001)
            await told.until_delivered(3)
    assert receiver.ids == ["evt_1", "evt_2", "evt_3"]
    assert told.notices == ["The payment provider's list has begun anew, and is relayed from its beginning."]


class Breaking:
    """Answers with a status, and with a body that never comes to its end."""

    def __init__(self, status: int) -> None:
        self.url = ""
        self.requests = 0
        self._status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["method"] == "POST"
        while (await receive()).get("more_body"):
            pass
        self.requests += 1
        headers = [(b"content-length", b"100"), (b"content-encoding", b"gzip")]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": b"no gzip"})


@pytest.mark.parametrize(("status", "outcome"), [(200, Outcome.DELIVERED), (422, Outcome.REFUSED)])
async def test_status_is_the_answer_whatever_becomes_of_the_body(status: int, outcome: Outcome) -> None:
    breaking = Breaking(status)
    async with serving(breaking), line(breaking.url) as (simulator, relay, told), running(relay):
        simulator.price("price_x")
        await told.until(lambda told: bool(told.attempts))
    assert [(attempt.status, attempt.outcome) for attempt in told.attempts] == [(status, outcome)]
    assert breaking.requests == 1
