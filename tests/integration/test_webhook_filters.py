"""Events that the settings exclude, thin events, and future-dated events."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from tenantry.billing.ledger_queries_store import ReplaceableEntries, replaceable_entries
from tenantry.billing.replay import ReprocessedChunk, ReprocessedEvent, Selection
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.domain.billing.state import BillingPolicy
from tests.support import events
from tests.support.billing import Provider
from tests.support.emptying import SharedDatabase
from tests.support.events import NOW
from tests.support.metrics import Shown
from tests.support.patience import patient_database
from tests.support.replays import POLICY, replaying
from tests.support.service import Service, running_service

EVER: Final = datetime.min.replace(tzinfo=UTC)
LISTED: Final = "acct_listed"
OTHER: Final = "acct_other"


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    """The service, for one connected account and live mode alone."""
    async with running_service(
        shared_database.conninfo, PROVIDER_ACCOUNTS=f" {LISTED}, acct_2", PROVIDER_LIVEMODE="live"
    ) as service:
        yield service


@pytest.fixture
def provider(emptied_service: Service) -> Provider:
    return Provider(emptied_service)


def live(event: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**event, "livemode": True, **fields}


async def counted(provider: Provider, name: str, **labels: str) -> float:
    return Shown((await provider.service.client.get("/metrics")).text).value(name, **labels)


async def read_again(provider: Provider, policy: BillingPolicy) -> list[ReprocessedChunk]:
    async with replaying(provider.service.conninfo, policy) as service:
        return [part async for part in service.reprocess(Selection(), dry_run=False)]


async def test_an_event_of_a_connected_account_is_ignored_and_counted(provider: Provider) -> None:
    subscriber = await provider.subscriber(linked=False)
    before = await counted(provider, "tenantry_webhook_anomalies_total", kind="connected_account")
    await provider.send(
        live(events.updated(**subscriber.names, event_id="evt_1"), account=OTHER),
        live(events.completed(org=subscriber.id, customer=subscriber.customer), account=OTHER),
        live(events.deleted(**subscriber.names), account=OTHER),
    )
    stored = await provider.stored("evt_1") or {}
    assert (stored["outcome"], stored["tenant_id"], stored["account"]) == ("ignored", None, OTHER)
    assert stored["reason"] == f"Ignored: connected account {OTHER} is not in PROVIDER_ACCOUNTS."
    assert await provider.state(subscriber) == ("free", "none")
    assert (await provider.tenant(subscriber))["stripeCustomerId"] is None
    assert (
        await counted(provider, "tenantry_webhook_anomalies_total", kind="connected_account")
        == before + 3
    )


@pytest.mark.parametrize(
    "fields", [{"account": LISTED}, {"account": "acct_2"}, {"account": None}, {}]
)
async def test_an_event_of_a_listed_account_or_of_our_own_counts(
    provider: Provider, fields: dict[str, Any]
) -> None:
    subscriber = await provider.subscriber()
    await provider.send(live(events.updated(**subscriber.names), **fields))
    assert await provider.state(subscriber) == ("pro", "active")


async def test_an_event_of_the_other_mode_is_ignored_and_counted(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    before = await counted(provider, "tenantry_webhook_anomalies_total", kind="ignored_livemode")
    await provider.send(events.updated(**subscriber.names, event_id="evt_1"))
    stored = await provider.stored("evt_1") or {}
    assert (stored["outcome"], stored["reason"]) == (
        "ignored",
        "Ignored: test mode, and PROVIDER_LIVEMODE is live.",
    )
    assert await provider.state(subscriber) == ("free", "none")
    assert (
        await counted(provider, "tenantry_webhook_anomalies_total", kind="ignored_livemode")
        == before + 1
    )


async def test_an_event_that_does_not_say_its_mode_counts(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names)
    del event["livemode"]
    await provider.send(event)
    assert await provider.state(subscriber) == ("pro", "active")


async def test_for_one_tenant_the_excluded_events_of_others_are_not_read(
    provider: Provider,
) -> None:
    named, by_customer, other = [await provider.subscriber() for _ in range(3)]
    await provider.send(
        *(events.updated(**other.names, event_id=f"evt_other_{number}") for number in range(5)),
        *(events.updated(**named.names, event_id=f"evt_named_{number}") for number in range(3)),
        events.updated(**{**by_customer.names, "org": None}, event_id="evt_customer"),
    )
    conninfo = provider.service.conninfo
    read = dict[str, list[str]]()
    async with patient_database(conninfo, pool_size=1) as database:
        for subscriber in (named, by_customer):
            wanted = ReplaceableEntries((EVER, -1), (subscriber.id,), EVER)
            async with database.transaction(ACROSS_TENANTS) as connection:
                entries = await replaceable_entries(connection, wanted, 100)
            read[subscriber.id] = [entry.event.id for entry in entries]
    assert read == {
        named.id: [f"evt_named_{number}" for number in range(3)],
        by_customer.id: ["evt_customer"],
    }


async def test_once_an_account_is_listed_its_events_take_their_place(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    event = live(events.updated(**subscriber.names, event_id="evt_1"), account=OTHER)
    await provider.send(event, event)
    assert await read_again(
        provider, msgspec.structs.replace(POLICY, accounts=frozenset({LISTED}))
    ) == [ReprocessedChunk(())]
    listed = msgspec.structs.replace(POLICY, accounts=frozenset({OTHER}))
    taken = ReprocessedEvent("evt_1", event["type"], subscriber.id, "applied")
    assert await read_again(provider, listed) == [ReprocessedChunk((taken,))]
    assert await provider.state(subscriber) == ("pro", "active")


async def test_once_a_mode_counts_its_events_take_their_place(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**subscriber.names, event_id="evt_1"))
    [part] = await read_again(provider, POLICY)
    assert [one.outcome for one in part.events] == ["applied"]
    assert await provider.state(subscriber) == ("pro", "active")


async def test_a_delivery_after_the_account_is_listed_takes_the_place(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    event = live(events.updated(**subscriber.names, event_id="evt_1"), account=OTHER)
    await provider.send(event)
    async with running_service(provider.service.conninfo, PROVIDER_ACCOUNTS=OTHER) as listed:
        again = Provider(listed)
        await again.send(event)
        assert (await again.stored("evt_1") or {})["outcome"] == "applied"


async def test_a_thin_event_is_answered_and_recorded_as_ignored(provider: Provider) -> None:
    answer = await provider.post(events.thin(event_id="evt_1") | {"livemode": True})
    assert (answer.status_code, answer.text) == (200, "OK")
    stored = await provider.stored("evt_1") or {}
    assert (stored["type"], stored["outcome"], stored["created"]) == (
        "v1.billing.meter.error_report_triggered",
        "ignored",
        NOW,
    )
    assert (
        stored["reason"]
        == "Ignored: a thin (v2) event has no object. Have the provider send snapshot events."
    )


async def test_an_event_dated_more_than_an_hour_ahead_is_marked_and_counts(
    provider: Provider,
) -> None:
    subscriber = await provider.subscriber()
    ahead = int((provider.service.clock() + timedelta(hours=1, minutes=1)).timestamp())
    await provider.send(live(events.updated(**subscriber.names, event_id="evt_1", created=ahead)))
    assert (await provider.stored("evt_1") or {})["anomalies"] == ["future_dated"]
    assert await provider.state(subscriber) == ("pro", "active")
