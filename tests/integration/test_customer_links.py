"""Links of customers that the operator removes and moves: the ledger's events follow the
customer.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tenantry.billing.customer_links import CustomerLinks, give_up_customer
from tenantry.db.outbox import Outbox
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.billing.customer_links import CustomerMove
from tenantry.domain.errors import CustomerTakenError, NotFoundError, TenantDeletedError
from tenantry.jobs.retention import RetentionService
from tests.support import events
from tests.support.billing import Provider, Subscriber, rows, until_blocked
from tests.support.events import NOW
from tests.support.patience import patient_database
from tests.support.replays import POLICY, replay_one
from tests.support.reversals import charge_refunded, refunded
from tests.support.service import Service

HOUR = 3600
DAY = timedelta(days=1)
AT = datetime.fromtimestamp(NOW, UTC)
LOCK_NAME = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
LOCK_TENANT = "SELECT FROM tenants WHERE id = %s FOR NO KEY UPDATE"


@pytest.fixture
def provider(service: Service) -> Provider:
    return Provider(service)


@asynccontextmanager
async def operator(provider: Provider) -> AsyncIterator[CustomerLinks]:
    database = patient_database(provider.service.conninfo, pool_size=1)
    async with database:
        outbox = Outbox(asks_provider=True)
        yield CustomerLinks(database, POLICY, outbox, lambda: AT)


async def customer_of(provider: Provider, subscriber: Subscriber) -> str | None:
    customer: str | None = (await provider.tenant(subscriber))["stripeCustomerId"]
    return customer


async def mailed(provider: Provider, subscriber: Subscriber) -> list[str]:
    return [made["cause"] for made in await provider.notifications(subscriber)]


async def customers_in_trail(
    provider: Provider, subscriber: Subscriber
) -> list[tuple[list[str], list[str]]]:
    """The changes of a tenant's customers in the audit trail, oldest first."""
    export = (await provider.service.operator.get(f"/api/v1/tenants/{subscriber.id}/export")).json()
    entries = [entry for entry in export["auditEvents"] if "customers" in (entry["after"] or {})]
    return [(entry["before"]["customers"], entry["after"]["customers"]) for entry in entries]


async def refunds_of(provider: Provider, subscriber: Subscriber) -> list[dict[str, Any]]:
    answer = await provider.service.operator.get(
        "/api/v1/operator/events", orgId=subscriber.id, types="billing.refunded"
    )
    return [event["data"] for event in answer.json()["data"]]


async def asked_about(provider: Provider) -> set[str]:
    """The tenants about which a job asks the provider."""
    query = (
        "SELECT args->>'tenant_id' AS id FROM procrastinate_jobs WHERE task_name = 'ask_provider'"
    )
    return {row["id"] for row in await rows(provider.service.conninfo, query)}


async def test_moved_customer_takes_its_invoices_along(provider: Provider) -> None:
    former, present = await provider.subscriber(), await provider.subscriber(linked=False)
    failure = events.failed(customer=former.customer)
    await provider.send(failure)
    async with operator(provider) as links:
        moved = await links.move(BY_OPERATOR, former.customer, present.id)
    assert moved == CustomerMove(former.customer, former.id, present.id)
    assert await provider.state(former) == ("free", "none")
    assert await provider.state(present) == ("free", "past_due")
    assert await customer_of(provider, former) is None
    assert await customer_of(provider, present) == former.customer
    assert list(await provider.ledger(former)) == []
    assert (await provider.ledger(present))[failure["id"]]["outcome"] == "applied"
    for subscriber in (former, present):
        assert (await replay_one(provider, subscriber)).is_right
    assert await customers_in_trail(provider, former) == [([former.customer], [])]
    assert await customers_in_trail(provider, present) == [([], [former.customer])]
    assert {former.id, present.id} <= await asked_about(provider)


async def test_owner_who_has_been_mailed_of_a_failure_is_the_only_one(provider: Provider) -> None:
    former, present = await provider.subscriber(), await provider.subscriber(linked=False)
    failure = events.failed(customer=former.customer)
    await provider.send(failure)
    async with operator(provider) as links:
        await links.move(BY_OPERATOR, former.customer, present.id)
    assert (await mailed(provider, former), await mailed(provider, present)) == (
        [failure["id"]],
        [],
    )


async def test_later_invoices_go_to_the_new_tenant(provider: Provider) -> None:
    former, present = await provider.subscriber(), await provider.subscriber(linked=False)
    async with operator(provider) as links:
        await links.move(BY_OPERATOR, former.customer, present.id)
    await provider.send(events.failed(customer=former.customer))
    assert (await provider.state(former), await provider.state(present)) == (
        ("free", "none"),
        ("free", "past_due"),
    )


async def test_invoice_that_waits_while_its_customer_moves_goes_to_the_new_tenant(
    provider: Provider,
) -> None:
    former, present = await provider.subscriber(), await provider.subscriber(linked=False)
    conninfo = provider.service.conninfo
    async with await psycopg.AsyncConnection.connect(conninfo) as moving:
        await moving.execute(LOCK_TENANT, (former.id,))
        sending = asyncio.create_task(provider.send(events.failed(customer=former.customer)))
        await until_blocked(conninfo)
        await moving.execute(
            "UPDATE customers SET tenant_id = %s WHERE id = %s", (present.id, former.customer)
        )
    await sending
    assert (await provider.state(former), await provider.state(present)) == (
        ("free", "none"),
        ("free", "past_due"),
    )


async def test_subscription_whose_metadata_names_a_tenant_stays_with_it(provider: Provider) -> None:
    former, present = await provider.subscriber(), await provider.subscriber(linked=False)
    await provider.send(events.updated(**former.names))
    async with operator(provider) as links:
        await links.move(BY_OPERATOR, former.customer, present.id)
    assert (await provider.state(former), await provider.state(present)) == (
        ("pro", "active"),
        ("free", "none"),
    )


async def test_unlinked_customers_invoices_wait_for_the_next_link(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    failure = events.failed(customer=subscriber.customer)
    await provider.send(failure)
    async with operator(provider) as links:
        assert await links.unlink(BY_OPERATOR, subscriber.customer) == CustomerMove(
            subscriber.customer, subscriber.id, None
        )
        assert await provider.state(subscriber) == ("free", "none")
        stored = await provider.stored(failure["id"])
        assert stored is not None
        assert (stored["tenant_id"], stored["outcome"]) == (None, "parked")
        await links.link(BY_OPERATOR, subscriber.customer, subscriber.id)
    assert await provider.state(subscriber) == ("free", "past_due")
    assert await mailed(provider, subscriber) == [failure["id"]]


async def test_refunds_of_an_unlinked_customer_stay_published_once(provider: Provider) -> None:
    subscriber, other = await provider.subscriber(), await provider.subscriber(linked=False)
    charge = "ch_relinked"
    await provider.send(
        charge_refunded(1000, customer=subscriber.customer, charge=charge, intent=None)
    )
    async with operator(provider) as links:
        await links.unlink(BY_OPERATOR, subscriber.customer)
        await provider.send(refunded(refund_id="re_relinked", charge=charge, intent=None))
        await links.link(BY_OPERATOR, subscriber.customer, subscriber.id)
        await links.move(BY_OPERATOR, subscriber.customer, other.id)
    published = await refunds_of(provider, subscriber) + await refunds_of(provider, other)
    assert [(each["id"], each["amount"]) for each in published] == [(None, 1000)]


async def test_tenant_keeps_what_its_other_customers_did(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    second = f"{subscriber.customer}_second"
    async with operator(provider) as links:
        await links.link(BY_OPERATOR, second, subscriber.id)
        assert await customer_of(provider, subscriber) == second
        await provider.send(
            events.failed(customer=subscriber.customer), events.failed(customer=second)
        )
        await links.unlink(BY_OPERATOR, second)
    assert await provider.state(subscriber) == ("free", "past_due")
    assert await customer_of(provider, subscriber) == subscriber.customer
    assert len(await provider.ledger(subscriber)) == 1


async def test_link_of_another_tenant_is_not_taken(provider: Provider) -> None:
    former, present = await provider.subscriber(), await provider.subscriber(linked=False)
    async with operator(provider) as links:
        with pytest.raises(CustomerTakenError, match=former.id):
            await links.link(BY_OPERATOR, former.customer, present.id)
    assert await customer_of(provider, former) == former.customer


async def test_customer_of_an_ended_tenant_can_be_linked(provider: Provider) -> None:
    former, present = await provider.subscriber(), await provider.subscriber(linked=False)
    await provider.send(events.failed(customer=former.customer))
    await provider.service.operator.delete(f"/api/v1/tenants/{former.id}")
    async with operator(provider) as links:
        await links.link(BY_OPERATOR, former.customer, present.id)
    assert await provider.state(present) == ("free", "past_due")


async def test_changes_that_cannot_be_made_change_nothing(provider: Provider) -> None:
    subscriber, ended = await provider.subscriber(), await provider.subscriber(linked=False)
    await provider.service.operator.delete(f"/api/v1/tenants/{ended.id}")
    async with operator(provider) as links:
        with pytest.raises(NotFoundError):
            await links.move(BY_OPERATOR, subscriber.customer, "nobody")
        with pytest.raises(TenantDeletedError):
            await links.move(BY_OPERATOR, subscriber.customer, ended.id)
        with pytest.raises(NotFoundError):
            await links.unlink(BY_OPERATOR, "cus_of_nobody")
        same = await links.move(BY_OPERATOR, subscriber.customer, subscriber.id)
    assert (same.moved_from, same.moved_to) == (subscriber.id, subscriber.id)
    assert await customer_of(provider, subscriber) == subscriber.customer
    assert await customers_in_trail(provider, subscriber) == []


async def test_null_customer_removes_the_links_of_a_tenant(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.failed(customer=subscriber.customer))
    await provider.arrives(subscriber)  # without the field nothing changes
    assert await customer_of(provider, subscriber) == subscriber.customer
    await provider.arrives(subscriber, stripeCustomerId=None)
    assert await customer_of(provider, subscriber) is None
    assert await provider.state(subscriber) == ("free", "none")
    other = await provider.subscriber(linked=False)
    await provider.arrives(other, stripeCustomerId=subscriber.customer)
    assert await provider.state(other) == ("free", "past_due")


async def test_unlinked_customers_invoices_wait_for_thirty_days_from_then(
    provider: Provider,
) -> None:
    subscriber = await provider.subscriber()
    failure = events.failed(customer=subscriber.customer)
    await provider.send(failure)
    conninfo = provider.service.conninfo
    await rows(
        conninfo,
        "UPDATE billing_events SET received_at = %s WHERE id = %s",
        AT - 90 * DAY,
        failure["id"],
    )
    async with operator(provider) as links:
        await links.unlink(BY_OPERATOR, subscriber.customer)
        await remove_expired(conninfo, AT + 29 * DAY)
        await links.link(BY_OPERATOR, subscriber.customer, subscriber.id)
        assert await provider.state(subscriber) == ("free", "past_due")
        await links.unlink(BY_OPERATOR, subscriber.customer)
        await remove_expired(conninfo, AT + 31 * DAY)
        await links.link(BY_OPERATOR, subscriber.customer, subscriber.id)
    assert await provider.state(subscriber) == ("free", "none")


async def test_unlinking_keeps_the_customer_of_the_record_if_it_stays(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    first, second, third = (
        subscriber.customer,
        f"{subscriber.customer}_2",
        f"{subscriber.customer}_3",
    )
    async with operator(provider) as links:
        await links.link(BY_OPERATOR, second, subscriber.id)
        await links.link(BY_OPERATOR, third, subscriber.id)
        await provider.arrives(subscriber, stripeCustomerId=first)
        await links.unlink(BY_OPERATOR, third)
    assert await customer_of(provider, subscriber) == first


async def test_null_customer_removes_no_link_that_has_moved_meanwhile(provider: Provider) -> None:
    former, present = await provider.subscriber(), await provider.subscriber(linked=False)
    conninfo, name = provider.service.conninfo, f"customer {former.customer}"
    async with await psycopg.AsyncConnection.connect(conninfo) as moving:
        await moving.execute(LOCK_NAME, (name,))
        setting = asyncio.create_task(provider.arrives(former, stripeCustomerId=None))
        await until_blocked(conninfo)
        await moving.execute(
            "UPDATE customers SET tenant_id = %s WHERE id = %s", (present.id, former.customer)
        )
    await setting
    linked = await rows(conninfo, "SELECT tenant_id FROM customers WHERE id = %s", former.customer)
    assert [row["tenant_id"] for row in linked] == [present.id]


async def test_null_customer_of_a_new_tenant_is_no_fault(provider: Provider) -> None:
    new = provider.unlinked()
    await provider.arrives(new, stripeCustomerId=None)
    assert await customer_of(provider, new) is None


async def test_account_that_the_other_mode_wrote_stays_marked(provider: Provider) -> None:
    former, present = await provider.subscriber(), await provider.subscriber(linked=False)
    await provider.send(events.updated(**present.names))
    conninfo = provider.service.conninfo
    await rows(conninfo, "UPDATE tenants SET folded_by = 'each' WHERE id = %s", present.id)
    async with operator(provider) as links:
        await links.move(BY_OPERATOR, former.customer, present.id)
    [tenant] = await rows(conninfo, "SELECT folded_by FROM tenants WHERE id = %s", present.id)
    assert tenant["folded_by"] != "any"


async def test_customer_with_a_hundred_events_moves_under_load(provider: Provider) -> None:
    """Moves to and fro while invoices arrive: none is lost, and both tenants are what their ledgers
    say.
    """
    one, other = await provider.subscriber(), await provider.subscriber(linked=False)
    history = [
        made for number in range(50) for made in invoice(one.customer, NOW - 10 * HOUR + number)
    ]
    await provider.deliver_together(history)
    arriving = [made for number in range(40) for made in invoice(one.customer, NOW - HOUR + number)]
    async with operator(provider) as links:
        sending = asyncio.create_task(send_all(provider, arriving))
        for tenant in itertools.cycle((other, one)):
            await links.move(BY_OPERATOR, one.customer, tenant.id)
            if sending.done() and tenant is other:
                break
        await sending
    found = await rows(
        provider.service.conninfo,
        "SELECT tenant_id, outcome, count(*) AS number FROM billing_events WHERE customer_id = %s GROUP BY 1, 2",
        one.customer,
    )
    assert {row["tenant_id"] for row in found} == {other.id}
    assert sum(row["number"] for row in found) == len(history) + len(arriving)
    assert await provider.state(one) == ("free", "none")
    assert await provider.ledger(one) == {}
    for subscriber in (one, other):
        assert (await replay_one(provider, subscriber)).is_right


async def test_a_move_that_a_deadlock_ends_is_made_again(provider: Provider) -> None:
    """The deadlock is made: the move has one name and wants the tenant, another transaction the
    reverse.
    """
    former, present = await provider.subscriber(), await provider.subscriber(linked=False)
    conninfo, connect = provider.service.conninfo, psycopg.AsyncConnection.connect
    async with await connect(conninfo) as pausing, await connect(conninfo) as opposing:
        # so that PostgreSQL aborts the move, not this transaction
        await opposing.execute("SET deadlock_timeout = '1h'")
        await pausing.execute(LOCK_NAME, (f"customer {former.customer}",))
        async with operator(provider) as links:
            moving = asyncio.create_task(links.move(BY_OPERATOR, former.customer, present.id))
            await until_blocked(conninfo)
            await opposing.execute(LOCK_TENANT, (present.id,))
            wanting = asyncio.create_task(opposing.execute(LOCK_NAME, (f"tenant {present.id}",)))
            await until_blocked(conninfo, 2)
            await pausing.rollback()
            await wanting
            await opposing.rollback()
            assert (await moving).moved_to == present.id
    assert await customer_of(provider, present) == former.customer


async def remove_expired(conninfo: str, now: datetime) -> None:
    async with patient_database(conninfo, pool_size=1) as database:
        await RetentionService(database, 3650 * DAY, lambda: now).run()


def invoice(customer: str, created: int) -> list[dict[str, Any]]:
    """A payment that fails, and then succeeds."""
    fields: dict[str, Any] = {
        "customer": customer,
        "created": created,
        "invoice_id": f"in_{customer}_{created}",
    }
    return [events.failed(**fields), events.succeeded(**fields)]


async def send_all(provider: Provider, arriving: list[dict[str, Any]]) -> None:
    for start in range(0, len(arriving), 10):
        await provider.deliver_together(arriving[start : start + 10])


async def test_given_up_customer_is_used_again(provider: Provider) -> None:
    """By a newer event, and by each way to link it."""
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**subscriber.names, created=NOW - HOUR))
    update = events.updated(**subscriber.names, created=NOW + 1)
    in_use = "SELECT id FROM customers WHERE tenant_id = %s AND gone_by IS NULL"
    async with operator(provider) as links:
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "event": lambda: provider.send(update),
            "link": lambda: links.link(BY_OPERATOR, subscriber.customer, subscriber.id),
            "put": lambda: provider.arrives(subscriber, stripeCustomerId=subscriber.customer),
        }
        for way, use_again in ways.items():
            now = AT if way == "event" else AT + DAY
            asked = await give_up_customer(
                links.database, POLICY, subscriber.id, subscriber.customer, now, None
            )
            assert (asked, await customer_of(provider, subscriber)) == (None, None), way
            await use_again()
            assert await customer_of(provider, subscriber) == subscriber.customer, way
            found = await rows(provider.service.conninfo, in_use, subscriber.id)
            assert found == [{"id": subscriber.customer}], way
