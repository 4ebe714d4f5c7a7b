"""The relay between a simulated provider and an endpoint over HTTP: order, gaps, rejections and
outages.
"""

import json
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import pytest

from tenantry.common.secret import Secret
from tenantry.domain.billing.events import KNOWN_TYPES, REQUIRED_TYPES
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.stripe.client import ProviderApi
from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.local.endpoint import WEBHOOK_PATH, Endpoint
from tenantry_devkit.local.relay import OVERLAP, ProviderEventFeed, Relay, RelayOutcome
from tenantry_devkit.local.service_reader import ServiceReader
from tenantry_devkit.serving import serving
from tenantry_devkit.simulator import Simulator
from tests.support.app import OPERATOR_TOKEN
from tests.support.local import (
    QUICK,
    SECRET,
    Receiver,
    RelayRecorder,
    provider_api,
    running,
    served_service,
)
from tests.support.ports import free_port

TYPES: Final = KNOWN_TYPES | {"price.created", "customer.created"}


class Line(NamedTuple):
    """A relay, its provider and its observer."""

    simulator: Simulator
    relay: Relay
    recorder: RelayRecorder


@asynccontextmanager
async def line(
    url: str,
    types: Collection[str] = TYPES,
    *,
    patience: float = 30,
) -> AsyncIterator[Line]:
    """Give a relay from a provider with one customer to an address."""
    recorder = RelayRecorder()
    simulator = Simulator()
    simulator.customer("cus_1")
    async with (
        simulator.serving(),
        provider_api(simulator) as provider,
        new_http_client(patience) as client,
    ):
        source = ProviderEventFeed(provider, types)
        await source.begin()
        endpoint = Endpoint(client, url, Secret(SECRET))
        yield Line(
            simulator,
            Relay(source, endpoint, recorder, policy=QUICK),
            recorder,
        )


def ids(simulator: Simulator, *types: str, after: int = 0) -> list[str]:
    """Return the ids of the provider's events, oldest first."""
    return [event.id for event in simulator.events(*types)[after:]]


async def test_new_events_reach_the_service_and_change_the_tenant(conninfo: str) -> None:
    async with (
        served_service(conninfo) as base,
        line(base + WEBHOOK_PATH, REQUIRED_TYPES) as (simulator, relay, recorder),
        new_http_client() as client,
        running(relay),
    ):
        reader = ServiceReader(client, base, operator=Secret(OPERATOR_TOKEN))
        assert reader.operator is not None
        await reader.operator.tenants.put("acme", name="Acme", owner_email="owner@acme.example")
        simulator.subscribe("cus_1", "price_pro", metadata={"orgId": "acme"})
        await recorder.until_delivered(2)
        assert [attempt.event.facts.id for attempt in recorder.attempts] == ids(
            simulator, *REQUIRED_TYPES
        )
        assert {
            (attempt.response.status, attempt.response.text) for attempt in recorder.attempts
        } == {(200, "OK")}
        newest = recorder.attempts[-1].event.facts
        assert (newest.org_id, newest.customer_id) == ("acme", "cus_1")
        tenant = (await reader.tenant_view("acme")).tenant
        assert tenant is not None
        assert (tenant.plan, tenant.subscription_status) == ("pro", "active")


async def test_event_arrives_byte_for_byte() -> None:
    receiver = Receiver()
    async with (
        serving(receiver),
        line(receiver.url) as (simulator, relay, recorder),
        running(relay),
    ):
        simulator.customer(
            "cus_ü", name="Süßwaren \U0001f36c 株式会社", metadata={"note": '\u2028"\\'}
        )
        await recorder.until_delivered(1)
        async with (
            provider_api(simulator) as provider,
            aclosing(provider.events_since(0, None)) as listed,
        ):
            assert receiver.bodies == [await anext(listed)]


@pytest.mark.thorough
async def test_events_of_several_pages_arrive_in_order_and_once() -> None:
    receiver = Receiver()
    async with (
        serving(receiver),
        line(receiver.url, {"customer.updated", "price.created"}) as (simulator, relay, recorder),
    ):
        made = [simulator.price(f"price_{number}").id for number in range(130)]
        await simulator.advance(seconds=1)
        made += [simulator.price(f"price_later_{number}").id for number in range(130)]
        async with running(relay):
            await recorder.until_delivered(len(made))
            # another of the same second, after the list was read
            made.append(simulator.price("price_last").id)
            await recorder.until_delivered(len(made))
        assert [event["data"]["object"]["id"] for event in receiver.events] == made


async def test_memory_is_bounded() -> None:
    simulator = Simulator()
    async with simulator.serving(), provider_api(simulator) as provider:
        source = ProviderEventFeed(provider, TYPES)
        await source.begin()
        for number in range(4):
            await simulator.advance(seconds=OVERLAP + 1)
            simulator.price(f"price_{number}")
            assert [event.facts.type for event in await source.fetch()] == ["price.created"]
        assert len(source._seen) == 1


async def test_service_gets_all_events_in_order_and_once_after_an_outage() -> None:
    receiver, port = Receiver(), free_port()
    async with line(f"http://127.0.0.1:{port}/") as (simulator, relay, recorder), running(relay):
        simulator.price("price_early")
        await recorder.until(lambda recorder: len(recorder.notices) == 1)
        for number in range(20):
            simulator.price(f"price_{number}")
        async with serving(receiver, port):
            await recorder.until_delivered(10)
        async with serving(receiver, port):
            await recorder.until_delivered(21)
            simulator.price("price_late")
            await recorder.until_delivered(22)
        assert receiver.ids == ids(simulator, "price.created", after=3)
        assert relay.outcomes[RelayOutcome.DELIVERED] == relay.received
        assert "does not accept connections" in recorder.notices[0]
        assert "accepts connections again" in recorder.notices[1]


async def test_provider_outage_is_reported_once_and_loses_no_event() -> None:
    receiver = Receiver()
    recorder, port = RelayRecorder(), free_port()
    simulator = Simulator(url=f"http://127.0.0.1:{port}")
    async with serving(receiver), new_http_client() as client, provider_api(simulator) as provider:
        source = ProviderEventFeed(provider, TYPES)
        async with simulator.serving(port):
            await source.begin()
            relay = Relay(
                source, Endpoint(client, receiver.url, Secret(SECRET)), recorder, policy=QUICK
            )
            simulator.price("price_before")
        async with running(relay):
            await recorder.until(lambda recorder: len(recorder.notices) == 1)
            simulator.price("price_meanwhile")
            async with simulator.serving(port):
                await recorder.until_delivered(2)
        assert receiver.ids == ids(simulator, after=3)
        assert len(recorder.notices) == 2
        assert "out of reach" in recorder.notices[0]


async def test_rejected_event_is_reported_with_its_text_and_skipped() -> None:
    receiver = Receiver()
    receiver.statuses.extend([422, 200])
    receiver.text = "price: is\nunknown \x1b[31m " + "x" * 100_000
    async with (
        serving(receiver),
        line(receiver.url) as (simulator, relay, recorder),
        running(relay),
    ):
        simulator.price("price_refused")
        simulator.price("price_taken")
        await recorder.until_delivered(1)
    first, second = recorder.attempts
    assert (first.outcome, first.response.status, first.number) == (RelayOutcome.REFUSED, 422, 1)
    assert first.response.text.startswith("price: is\nunknown")
    assert len(first.response.text) < 3000
    assert second.outcome is RelayOutcome.DELIVERED
    assert (relay.received, relay.outcomes) == (
        2,
        {RelayOutcome.REFUSED: 1, RelayOutcome.DELIVERED: 1},
    )


async def test_event_is_retried_and_given_up_without_blocking_others() -> None:
    receiver = Receiver()
    receiver.statuses.extend([500, 200, 503, 429, 500])
    async with (
        serving(receiver),
        line(receiver.url) as (simulator, relay, recorder),
        running(relay),
    ):
        for name in ("price_second_try", "price_given_up", "price_at_once"):
            simulator.price(name)
        await recorder.until_delivered(2)
    outcomes = [
        (attempt.outcome, attempt.response.status, attempt.number) for attempt in recorder.attempts
    ]
    assert outcomes == [
        (RelayOutcome.RETRYING, 500, 1),
        (RelayOutcome.DELIVERED, 200, 2),
        (RelayOutcome.RETRYING, 503, 1),
        (RelayOutcome.RETRYING, 429, 2),
        (RelayOutcome.GIVEN_UP, 500, 3),
        (RelayOutcome.DELIVERED, 200, 1),
    ]
    assert (relay.received, relay.outcomes) == (
        3,
        {RelayOutcome.GIVEN_UP: 1, RelayOutcome.DELIVERED: 2},
    )


async def test_endpoint_that_never_answers_is_given_up() -> None:
    receiver = Receiver()
    receiver.open.clear()
    async with (
        serving(receiver),
        line(receiver.url, patience=0.05) as (simulator, relay, recorder),
        running(relay),
    ):
        simulator.price("price_unheard")
        await recorder.until(lambda recorder: len(recorder.of(RelayOutcome.GIVEN_UP)) == 1)
        receiver.open.set()
    assert {(attempt.response.status, attempt.response.text) for attempt in recorder.attempts} == {
        (None, "ReadTimeout")
    }


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ({"invoice.payment_succeeded"}, {"invoice.payment_succeeded"}),
        ({"invoice.paid", "invoice.created"}, {"invoice.paid", "invoice.created"}),
    ],
)
async def test_only_wanted_types_are_relayed(types: set[str], expected: set[str]) -> None:
    receiver = Receiver()
    async with (
        serving(receiver),
        line(receiver.url, types) as (simulator, relay, recorder),
        running(relay),
    ):
        simulator.subscribe("cus_1", "price_pro")
        await recorder.until_delivered(len(expected))
        simulator.price("price_last")
        simulator.subscribe("cus_1", "price_pro")
        await recorder.until_delivered(2 * len(expected))
    assert {event["type"] for event in receiver.events} == expected


async def test_rejected_key_ends_the_relay() -> None:
    simulator = Simulator()
    async with (
        simulator.serving(),
        provider_api(simulator, "sk_test_of_somebody_else") as provider,
        new_http_client() as client,
    ):
        source = ProviderEventFeed(provider, TYPES)
        with pytest.raises(ProviderRefusedError):
            await source.begin()
        relay = Relay(
            source,
            Endpoint(client, "http://127.0.0.1:1/", Secret(SECRET)),
            RelayRecorder(),
            policy=QUICK,
        )
        with pytest.raises(ProviderRefusedError):
            await relay.run()


async def test_unreachable_provider_at_the_start_is_an_error() -> None:
    with socket.socket() as held:  # no server listens on its port, and no other test can take it
        held.bind(("127.0.0.1", 0))
        simulator = Simulator(url=f"http://127.0.0.1:{held.getsockname()[1]}")
        async with provider_api(simulator) as provider:
            with pytest.raises(ProviderUnavailableError):
                await ProviderEventFeed(provider, TYPES).begin()


class Listing:
    """A provider's list of events, to which tests can add."""

    def __init__(self) -> None:
        self.url = ""
        self.asked = 0
        self.events: list[dict[str, Any]] = []

    def add(self, event_id: str, created: int) -> None:
        self.events.append(
            {"id": event_id, "type": "price.created", "created": created, "data": {"object": {}}}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert not (await receive()).get("more_body")
        self.asked += 1
        query = dict(parse_qsl(scope["query_string"].decode()))
        since = int(query.get("created[gte]", 0))
        listed = sorted(self.events, key=lambda event: -event["created"])
        body = {
            "object": "list",
            "data": [each for each in listed if each["created"] >= since],
            "has_more": False,
        }
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


@asynccontextmanager
async def listing() -> AsyncIterator[tuple[Listing, ProviderEventFeed]]:
    async with (
        serving(Listing()) as provider,
        aclosing(ProviderApi(Secret("sk_test_x"), provider.url)) as api,
    ):
        yield provider, ProviderEventFeed(api, TYPES)


async def test_late_listed_event_is_found() -> None:
    async with listing() as (provider, source):
        provider.add("evt_1", 1000)
        await source.begin()
        provider.add("evt_3", 1010)
        assert [event.facts.id for event in await source.fetch()] == ["evt_3"]
        provider.add("evt_2", 1005)
        assert [event.facts.id for event in await source.fetch()] == ["evt_2"]
        assert await source.fetch() == []
