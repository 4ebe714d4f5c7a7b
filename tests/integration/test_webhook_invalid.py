"""Invalid events: a valid delivery with the same id replaces them, and replay applies them once
they decode.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tenantry.billing.batch_store import pack
from tenantry.billing.replay import ReprocessedChunk, ReprocessedEvent, Selection
from tenantry.domain.billing.events import Outcome
from tenantry.domain.billing.state import BillingPolicy
from tests.integration.test_webhook_races import Instance, arrival, held_back, instance
from tests.support import events
from tests.support.billing import Provider, rows, until_blocked
from tests.support.events import NOW
from tests.support.replays import ALL, POLICY, replay, replaying
from tests.support.service import Service


@pytest.fixture
def provider(emptied_service: Service) -> Provider:
    return Provider(emptied_service)


def broken(event: dict[str, Any]) -> dict[str, Any]:
    """The event as it would be without its status, which its handler needs."""
    thing = {**event["data"]["object"], "status": None}
    return {**event, "data": {**event["data"], "object": thing}}


async def bodies(provider: Provider) -> int:
    [row] = await rows(provider.service.conninfo, "SELECT count(*) AS number FROM billing_bodies")
    return int(row["number"])


async def read_again(
    provider: Provider,
    selection: Selection = ALL,
    *,
    dry_run: bool = False,
    policy: BillingPolicy = POLICY,
) -> list[ReprocessedChunk]:
    async with replaying(provider.service.conninfo, policy) as service:
        return [part async for part in service.reprocess(selection, dry_run=dry_run)]


async def test_a_valid_event_takes_the_place_of_an_invalid_one(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names, event_id="evt_1")
    await provider.send(broken(event))
    assert (await provider.stored("evt_1") or {})["outcome"] == "invalid"
    assert await provider.state(subscriber) == ("free", "none")
    await provider.send(event)
    stored = await provider.stored("evt_1") or {}
    assert (stored["outcome"], stored["anomalies"], stored["body"]) == (
        "applied",
        None,
        events.body(event),
    )
    assert await provider.state(subscriber) == ("pro", "active")
    assert await bodies(provider) == 1


async def test_an_invalid_event_after_a_valid_one_is_a_duplicate(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names, event_id="evt_1")
    await provider.send(event, broken(event))
    assert (await provider.stored("evt_1") or {})["outcome"] == "applied"
    assert await provider.state(subscriber) == ("pro", "active")


async def test_a_second_valid_event_of_an_id_is_a_duplicate(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    for price in ("price_pro", "price_business"):
        await provider.send(events.updated(**subscriber.names, price=price, event_id="evt_1"))
    assert await provider.state(subscriber) == ("pro", "active")


async def test_an_invalid_event_after_an_invalid_one_is_a_duplicate(provider: Provider) -> None:
    event = events.updated(event_id="evt_1")
    await provider.send(broken(event))
    first = await provider.stored("evt_1")
    await provider.send(broken(event) | {"pending_webhooks": 2})
    assert await provider.stored("evt_1") == first


async def test_a_failed_payment_that_was_invalid_first_is_mailed_once(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    event = events.failed(customer=subscriber.customer, event_id="evt_1")
    invalid = {**event, "data": {"object": {**event["data"]["object"], "customer": 7}}}
    await provider.send(invalid, event, event, invalid)
    assert len(await provider.notifications(subscriber)) == 1


async def test_a_parked_event_takes_the_place_of_an_invalid_one(provider: Provider) -> None:
    unlinked = provider.unlinked()
    event = events.updated(**unlinked.names, event_id="evt_1")
    await provider.send(broken(event), event)
    assert (await provider.stored("evt_1") or {})["outcome"] == "parked"
    await provider.arrives(unlinked)
    assert await provider.state(unlinked) == ("pro", "active")


# Two of them at once


@pytest.fixture
async def one(emptied_service: Service) -> AsyncIterator[Instance]:
    async with instance(emptied_service.conninfo) as made:
        yield made


@pytest.fixture
async def two(emptied_service: Service) -> AsyncIterator[Instance]:
    async with instance(emptied_service.conninfo) as made:
        yield made


@pytest.mark.parametrize("invalid_first", [True, False])
async def test_of_one_id_in_one_batch_the_valid_event_counts(
    provider: Provider, one: Instance, invalid_first: bool
) -> None:
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names, event_id="evt_1")
    batch = [broken(event), event] if invalid_first else [event, broken(event)]
    found = await one.receive_together([arrival(each) for each in batch])
    assert found == ([None, Outcome.APPLIED] if invalid_first else [Outcome.APPLIED, None])
    assert await provider.state(subscriber) == ("pro", "active")
    assert (await provider.stored("evt_1") or {})["body"] == events.body(event)


async def test_a_batch_with_a_replaced_event_twice_and_others(
    provider: Provider, one: Instance
) -> None:
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names, event_id="evt_1", created=NOW)
    later = events.updated(
        **subscriber.names, event_id="evt_2", price="price_business", created=NOW + 1
    )
    await provider.send(broken(event))
    found = await one.receive_together(
        [arrival(each) for each in (later, broken(event), event, event)]
    )
    assert found == [Outcome.APPLIED, None, Outcome.LATE, None]
    assert await provider.state(subscriber) == ("business", "active")


async def waiting_inserts(conninfo: str) -> None:
    """Make inserts of events wait while the ledger is `held_back`."""
    await rows(
        conninfo,
        "CREATE OR REPLACE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(hashtext(TG_ARGV[0])); RETURN NEW; END $$",
    )
    await rows(
        conninfo,
        "CREATE OR REPLACE TRIGGER wait AFTER INSERT ON billing_events "
        "FOR EACH ROW EXECUTE FUNCTION wait(billing_events)",
    )


@pytest.mark.parametrize("kinds", ["valid valid", "invalid valid", "valid invalid"])
@pytest.mark.parametrize("known", [True, False])
async def test_two_processes_that_meet_on_one_id_apply_it_once(
    provider: Provider, one: Instance, two: Instance, kinds: str, known: bool
) -> None:
    conninfo = provider.service.conninfo
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names, event_id="evt_1")
    if known:
        await provider.send(broken(event))
    await waiting_inserts(conninfo)
    sent = [event if kind == "valid" else broken(event) for kind in kinds.split()]
    async with held_back(conninfo, "billing_events"):
        first = asyncio.create_task(one.receive(sent[0]))
        if kinds != "invalid valid" or not known:  # an invalid one that is known inserts nothing
            await until_blocked(conninfo)
        second = asyncio.create_task(two.receive(sent[1]))
        # nor does one that meets an uncommitted replacement
        if kinds != "valid invalid" or not known:
            await until_blocked(conninfo, 1 if kinds == "invalid valid" and known else 2)
    outcomes = [await first, await second]
    assert outcomes.count(Outcome.APPLIED) == 1
    assert await provider.state(subscriber) == ("pro", "active")
    assert (await provider.stored("evt_1") or {})["outcome"] == "applied"


# Reading again what the ledger holds


async def as_of_an_older_release(provider: Provider, event: dict[str, Any], **more: object) -> None:
    """The ledger has an event as invalid that this release can read; ``more`` is in its body
    too.
    """
    await provider.send(broken(event))
    body = pack(events.body({**event, **more}))
    await rows(
        provider.service.conninfo,
        "UPDATE billing_bodies SET body = %s WHERE arrival = (SELECT arrival FROM billing_events WHERE id = %s)",
        body,
        event["id"],
    )


async def test_an_event_that_is_valid_by_now_takes_its_place_in_a_replay(
    provider: Provider,
) -> None:
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names, event_id="evt_1", created=NOW)
    await as_of_an_older_release(provider, event)
    await provider.send(
        events.updated(
            **subscriber.names, event_id="evt_2", price="price_business", created=NOW + 1
        )
    )
    before = await provider.stored("evt_1") or {}
    found = ReprocessedEvent("evt_1", "customer.subscription.updated", subscriber.id)
    assert await read_again(provider, dry_run=True) == [ReprocessedChunk((found,))]
    assert await provider.stored("evt_1") == before
    done = msgspec.structs.replace(found, outcome="late")
    assert await read_again(provider) == [ReprocessedChunk((done,))]
    after = await provider.stored("evt_1") or {}
    assert (after["outcome"], after["tenant_id"], after["anomalies"]) == (
        "late",
        subscriber.id,
        None,
    )
    for kept in ("arrival", "received_at", "body"):
        assert after[kept] == before[kept]
    assert await provider.state(subscriber) == ("business", "active")
    assert await read_again(provider) == []
    assert (await replay(provider.service.conninfo))[subscriber.id].is_right


async def test_of_the_invalid_events_the_newest_are_read_again_for_one_tenant(
    provider: Provider,
) -> None:
    subscriber = await provider.subscriber()
    names = subscriber.names
    for number in range(3):
        event = events.updated(**names, event_id=f"evt_{number}")
        await as_of_an_older_release(provider, event)
        await rows(
            provider.service.conninfo,
            "UPDATE billing_events SET received_at = received_at + %s * interval '1 minute' WHERE id = %s",
            number,
            f"evt_{number}",
        )
    for most, expected in (
        (1, ["evt_2"]),
        (2, ["evt_1", "evt_2"]),
        (9, ["evt_0", "evt_1", "evt_2"]),
    ):
        selection = Selection((subscriber.id,), most_invalid=most)
        found = await read_again(provider, selection, dry_run=True)
        assert [event.id for part in found for event in part.events] == expected


async def test_reading_again_mails_nothing(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    event = events.failed(customer=subscriber.customer, event_id="evt_1")
    await provider.send({**event, "data": {"object": {"customer": 7}}})
    await rows(
        provider.service.conninfo, "UPDATE billing_bodies SET body = %s", pack(events.body(event))
    )
    [part] = await read_again(provider)
    assert [one.outcome for one in part.events] == ["applied"]
    assert await provider.state(subscriber) == ("free", "past_due")
    assert await provider.notifications(subscriber) == []


async def test_an_event_whose_body_is_gone_stays_invalid_and_is_counted(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names, event_id="evt_1")
    await provider.send(broken(event))
    await rows(provider.service.conninfo, "DELETE FROM billing_bodies")
    assert await read_again(provider) == [ReprocessedChunk((), 1)]
    assert (await provider.stored("evt_1") or {})["outcome"] == "invalid"
    await provider.send(event)
    assert await provider.state(subscriber) == ("pro", "active")


@pytest.mark.parametrize("account", [7, "a" * 256])
async def test_a_body_that_this_release_does_not_take_ends_no_replay(
    provider: Provider, account: object
) -> None:
    first, second = [
        events.updated(**(await provider.subscriber()).names, event_id=f"evt_{n}") for n in range(2)
    ]
    await as_of_an_older_release(provider, first, account=account)
    await as_of_an_older_release(provider, second)
    [part] = await read_again(provider)
    assert ([one.id for one in part.events], part.unreadable) == (["evt_1"], 1)


async def test_only_the_events_of_selected_tenants_are_read_again(provider: Provider) -> None:
    acme, globex = await provider.subscriber(), await provider.subscriber()
    for number, subscriber in enumerate((acme, globex)):
        await as_of_an_older_release(
            provider, events.updated(**subscriber.names, event_id=f"evt_{number}")
        )
    [part] = await read_again(provider, Selection((globex.id,)))
    assert [one.tenant_id for one in part.events] == [globex.id]
    assert await provider.state(acme) == ("free", "none")
    assert await provider.state(globex) == ("pro", "active")


@pytest.mark.thorough
async def test_more_entries_than_are_read_at_once(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    for number in range(205):
        await as_of_an_older_release(
            provider,
            events.updated(**subscriber.names, event_id=f"evt_{number}", created=NOW + number),
        )
    parts = await read_again(provider)
    assert sum(len(part.events) for part in parts) == 205
    assert (await replay(provider.service.conninfo))[subscriber.id].events == 205
