"""Races of connections and service instances on the same tenants and customers."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import psycopg
import pytest
from msgspec import UNSET, UnsetType

from tenantry.accounts.tenants import TenantService
from tenantry.billing.ingest import WebhookService
from tenantry.db.outbox import Outbox
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.billing.events import Outcome
from tenantry.domain.billing.ledger import ReceivedEvent
from tenantry.domain.tenants import TenantInput
from tenantry.integrations.stripe.decode import decode_event
from tests.support import events
from tests.support.billing import rows, until_blocked
from tests.support.emptying import SharedDatabase
from tests.support.events import NOW
from tests.support.facts import ANY
from tests.support.patience import patient_database

MOMENT = datetime.fromtimestamp(NOW, UTC)


class Instance(NamedTuple):
    """One process's worth of the service, without its HTTP."""

    webhooks: WebhookService
    tenants: TenantService

    async def receive(self, event: dict[str, Any]) -> Outcome | None:
        entry = await self.webhooks.receive(arrival(event))
        return entry.outcome if entry else None

    async def receive_together(self, arrivals: Sequence[ReceivedEvent]) -> list[Outcome | None]:
        answers = await self.webhooks.apply(arrivals)
        return [
            answer.outcome if answer else None
            for answer in answers
            if not isinstance(answer, Exception)
        ]

    async def put(self, tenant_id: str, customer: str | UnsetType = UNSET) -> None:
        await self.tenants.put(
            BY_OPERATOR, tenant_id, TenantInput(tenant_id, "owner@x.example", "usr", customer)
        )


def arrival(event: dict[str, Any]) -> ReceivedEvent:
    body = events.body(event)
    return ReceivedEvent(
        decode_event(body, arrived=NOW, make_up_id=lambda: "evt_made_up"), MOMENT, body
    )


@asynccontextmanager
async def instance(conninfo: str) -> AsyncIterator[Instance]:
    database = patient_database(conninfo, pool_size=8)
    await database.open()
    outbox = Outbox()
    webhooks = WebhookService([database.lane()], ANY, outbox, lambda: MOMENT)
    yield Instance(webhooks, TenantService(database, ANY, outbox, lambda: MOMENT))
    await webhooks.close()
    await database.close()


@pytest.fixture(scope="module")
async def waiting(shared_database: SharedDatabase) -> None:
    """Make inserts into a table wait, in their transactions, while the table is `held_back`."""
    await rows(
        shared_database.conninfo,
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(hashtext(TG_ARGV[0])); RETURN NEW; END $$",
    )
    for table in ("tenants", "customers", "billing_events"):
        trigger = f"CREATE TRIGGER wait AFTER INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION wait({table})"
        await rows(shared_database.conninfo, trigger)


@pytest.fixture
def conninfo(waiting: None, emptied: str) -> str:
    """The file's database, whose tables can be held back."""
    return emptied


@pytest.fixture
async def one(conninfo: str) -> AsyncIterator[Instance]:
    async with instance(conninfo) as made:
        yield made


@pytest.fixture
async def two(conninfo: str) -> AsyncIterator[Instance]:
    async with instance(conninfo) as made:
        yield made


@asynccontextmanager
async def held_back(conninfo: str, table: str) -> AsyncIterator[None]:
    """Inserts into a table wait, in their transactions, until the block ends."""
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (table,))
        yield


async def status(conninfo: str, tenant_id: str) -> str | None:
    found = await rows(conninfo, "SELECT subscription_status FROM tenants WHERE id = %s", tenant_id)
    return found[0]["subscription_status"] if found else None


async def deadlocks(conninfo: str) -> int:
    await rows(conninfo, "SELECT pg_stat_force_next_flush()")
    found = await rows(
        conninfo, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    return int(found[0]["deadlocks"])


async def outcomes(conninfo: str) -> set[str]:
    return {
        row["outcome"]
        for row in await rows(conninfo, "SELECT DISTINCT outcome FROM billing_events")
    }


async def test_an_event_that_comes_while_its_tenant_is_made_is_applied(
    conninfo: str, one: Instance
) -> None:
    async with held_back(conninfo, "tenants"):
        making = asyncio.create_task(one.put("acme"))
        await until_blocked(conninfo)
        receiving = asyncio.create_task(one.receive(events.updated(customer=None)))
        await until_blocked(conninfo, 2)
    await making
    assert await receiving is Outcome.APPLIED


async def test_a_tenant_that_is_made_while_its_event_is_parked_gets_it(
    conninfo: str, one: Instance
) -> None:
    async with held_back(conninfo, "billing_events"):
        receiving = asyncio.create_task(one.receive(events.updated(customer=None)))
        await until_blocked(conninfo)
        making = asyncio.create_task(one.put("acme"))
        await until_blocked(conninfo, 2)
    assert await receiving is Outcome.PARKED
    await making
    assert await status(conninfo, "acme") == "active"


async def test_an_invoice_that_comes_while_its_customer_is_linked_is_applied(
    conninfo: str, one: Instance, two: Instance
) -> None:
    await one.put("acme")
    async with held_back(conninfo, "customers"):
        linking = asyncio.create_task(one.receive(events.completed(customer="cus_1")))
        await until_blocked(conninfo)
        receiving = asyncio.create_task(two.receive(events.failed(customer="cus_1")))
        await until_blocked(conninfo, 2)
    assert await linking is Outcome.APPLIED
    assert await receiving is Outcome.APPLIED
    assert await status(conninfo, "acme") == "past_due"


async def test_a_customer_that_is_linked_while_its_invoice_is_parked_gets_it(
    conninfo: str, one: Instance, two: Instance
) -> None:
    await one.put("acme")
    async with held_back(conninfo, "billing_events"):
        receiving = asyncio.create_task(one.receive(events.failed(customer="cus_1")))
        await until_blocked(conninfo)
        linking = asyncio.create_task(two.put("acme", "cus_1"))
        await until_blocked(conninfo, 2)
    assert await receiving is Outcome.PARKED
    await linking
    assert await status(conninfo, "acme") == "past_due"


async def test_an_invoice_that_comes_while_its_subscription_begins_is_applied(
    conninfo: str, one: Instance, two: Instance
) -> None:
    await one.put("acme", "cus_acme")
    async with held_back(conninfo, "billing_events"):
        beginning = asyncio.create_task(one.receive(events.updated()))
        await until_blocked(conninfo)
        receiving = asyncio.create_task(two.receive(_failed_without_customer()))
        await until_blocked(conninfo, 2)
    assert [await beginning, await receiving] == [Outcome.APPLIED, Outcome.APPLIED]
    assert await status(conninfo, "acme") == "past_due"


async def test_a_subscription_that_begins_while_its_invoice_is_parked_gets_it(
    conninfo: str, one: Instance, two: Instance
) -> None:
    await one.put("acme", "cus_acme")
    async with held_back(conninfo, "billing_events"):
        receiving = asyncio.create_task(one.receive(_failed_without_customer()))
        await until_blocked(conninfo)
        beginning = asyncio.create_task(two.receive(events.updated()))
        await until_blocked(conninfo, 2)
    assert [await receiving, await beginning] == [Outcome.PARKED, Outcome.APPLIED]
    assert await status(conninfo, "acme") == "past_due"


def _failed_without_customer() -> dict[str, Any]:
    return events.failed(customer=None, subscription_id="sub_acme", created=NOW + 1)


async def test_the_first_of_two_links_of_a_customer_is_kept(
    conninfo: str, one: Instance, two: Instance
) -> None:
    await one.put("first")
    await one.put("second")
    async with held_back(conninfo, "customers"):
        first = asyncio.create_task(one.receive(events.completed(org="first", customer="cus_1")))
        await until_blocked(conninfo)
        second = asyncio.create_task(two.receive(events.completed(org="second", customer="cus_1")))
        await until_blocked(conninfo, 2)
    assert (await first, await second) == (Outcome.APPLIED, Outcome.NO_CHANGE)
    assert await rows(conninfo, "SELECT tenant_id FROM customers") == [{"tenant_id": "first"}]


async def test_an_older_event_at_another_process_revives_no_canceled_tenant(
    conninfo: str, one: Instance, two: Instance
) -> None:
    await one.put("acme")
    # once its subscription is known, nothing but the row of the tenant is locked
    await one.receive(events.updated(created=NOW - 120))
    async with held_back(conninfo, "billing_events"):
        newer = asyncio.create_task(one.receive(events.deleted(created=NOW)))
        await until_blocked(conninfo)
        older = asyncio.create_task(two.receive(events.updated(created=NOW - 60)))
        await until_blocked(conninfo, 2)
    assert [await newer, await older] == [Outcome.APPLIED, Outcome.LATE]
    assert await status(conninfo, "acme") == "canceled"


async def test_the_same_event_at_two_instances_counts_once(
    conninfo: str, one: Instance, two: Instance
) -> None:
    await one.put("acme", "cus_1")
    failure = events.failed(customer="cus_1")
    async with held_back(conninfo, "billing_events"):
        first = asyncio.create_task(one.receive(failure))
        await until_blocked(conninfo)
        second = asyncio.create_task(two.receive(failure))
        await until_blocked(conninfo, 2)
    assert (await first, await second) == (Outcome.APPLIED, None)
    assert len(await rows(conninfo, "SELECT 1 FROM notifications")) == 1


async def test_duplicate_unknown_event_at_two_instances_is_parked_once(
    conninfo: str, one: Instance, two: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenantry.db.database")
    event = events.event("charge.captured", {})
    async with held_back(conninfo, "billing_events"):
        first = asyncio.create_task(one.receive(event))
        await until_blocked(conninfo)
        second = asyncio.create_task(two.receive(event))
        await until_blocked(conninfo, 2)
    assert (await first, await second) == (Outcome.IGNORED, None)
    [message] = caplog.messages
    assert message.startswith("retrying after a conflict of transactions: an event of the batch")


async def test_names_are_locked_in_one_order(conninfo: str, one: Instance, two: Instance) -> None:
    """Each links a customer whose invoice the other parks."""
    for tenant_id in ("a", "b"):
        await one.put(tenant_id)
    async with held_back(conninfo, "customers"):
        first = asyncio.create_task(
            one.receive_together(
                [
                    arrival(events.completed(org="a", customer="cus_2")),
                    arrival(events.failed(customer="cus_1")),
                ]
            )
        )
        await until_blocked(conninfo)
        second = asyncio.create_task(
            two.receive_together(
                [
                    arrival(events.completed(org="b", customer="cus_1")),
                    arrival(events.failed(customer="cus_2")),
                ]
            )
        )
        await until_blocked(conninfo, 2)
    assert await first == [Outcome.APPLIED, Outcome.PARKED]
    assert await second == [Outcome.APPLIED, Outcome.APPLIED]
    assert (await status(conninfo, "a"), await status(conninfo, "b")) == ("past_due", "past_due")
    assert await deadlocks(conninfo) == 0


@pytest.mark.parametrize("seed", range(2))
async def test_concurrent_batches_lose_nothing_and_do_not_deadlock(
    conninfo: str, one: Instance, two: Instance, seed: int
) -> None:
    """Two instances, tenants that are made and linked meanwhile, and events that come in opposite
    orders, twice.
    """
    count = 20
    chance = random.Random(seed)  # noqa: S311  # no secret is made of it
    names = [f"org_{number:02}" for number in range(count)]
    customers = [f"cus_{number:02}" for number in chance.sample(range(count), count)]
    sent = []
    for tenant_id, customer in zip(names, customers, strict=True):
        sent += [
            events.updated(org=tenant_id, customer=customer, status="trialing"),
            events.failed(customer=customer, created=NOW + 10, invoice_id=f"in_{customer}"),
            events.completed(org=tenant_id, customer=customer, created=NOW + 20),
            events.updated(org=tenant_id, customer=customer, created=NOW + 30, status="past_due"),
        ]
    chance.shuffle(sent)
    work = [one.receive(event) for event in sent] + [two.receive(event) for event in reversed(sent)]
    for number, (tenant_id, customer) in enumerate(zip(names, customers, strict=True)):
        work.append((one, two)[number % 2].put(tenant_id))
        work.append((two, one)[number % 2].put(tenant_id, customer if number % 3 else UNSET))
    chance.shuffle(work)
    await asyncio.gather(*work)
    assert await deadlocks(conninfo) == 0
    assert await rows(conninfo, "SELECT count(*) FROM billing_events") == [{"count": len(sent)}]
    assert not await outcomes(conninfo) & {"parked", "invalid", "ignored"}
    states = await rows(
        conninfo, "SELECT DISTINCT plan, subscription_status, cancel_at_period_end FROM tenants"
    )
    assert states == [
        {"plan": "pro", "subscription_status": "past_due", "cancel_at_period_end": False}
    ]
    linked = await rows(conninfo, "SELECT tenant_id, id FROM customers ORDER BY tenant_id")
    assert [(row["tenant_id"], row["id"]) for row in linked] == list(
        zip(names, customers, strict=True)
    )


async def test_duplicates_in_one_batch_count_once(conninfo: str, one: Instance) -> None:
    await one.put("acme", "cus_1")
    failure, other = (
        events.failed(customer="cus_1"),
        events.failed(customer="cus_1", created=NOW + 1),
    )
    batch = [arrival(event) for event in (failure, other, failure, failure, other)]
    assert await one.receive_together(batch) == [
        Outcome.APPLIED,
        Outcome.NO_CHANGE,
        None,
        None,
        None,
    ]
    assert len(await rows(conninfo, "SELECT 1 FROM notifications")) == 2


async def test_a_batch_reads_the_history_of_every_tenant_that_may_get_a_waiting_invoice(
    conninfo: str, one: Instance
) -> None:
    """Two tenants claim one customer at once; its old invoice belongs before what the winner has
    had since.
    """
    for tenant_id in ("first", "second"):
        await one.put(tenant_id)
        await one.receive(events.updated(org=tenant_id, customer=None, created=NOW))
    await one.receive(events.failed(customer="cus_1", created=NOW - 50))
    claims = [
        arrival(events.completed(org=org, customer="cus_1", created=NOW + 1))
        for org in ("first", "second")
    ]
    assert await one.receive_together(claims) == [Outcome.APPLIED, Outcome.NO_CHANGE]
    assert await status(conninfo, "first") == "active"
    assert await status(conninfo, "second") == "active"


async def test_an_invoice_before_its_link_in_one_batch_is_applied(
    conninfo: str, one: Instance
) -> None:
    await one.put("acme")
    parked = events.failed(customer="cus_1", created=NOW - 5)
    await one.receive(parked)
    batch = [events.failed(customer="cus_1"), parked, events.completed(customer="cus_1")]
    assert await one.receive_together([arrival(event) for event in batch]) == [
        Outcome.NO_CHANGE,
        None,
        Outcome.APPLIED,
    ]
    assert await outcomes(conninfo) == {"applied", "no_change"}
    assert len(await rows(conninfo, "SELECT 1 FROM notifications")) == 2
