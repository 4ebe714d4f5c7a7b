"""Late events in the database: folded from the shortest sufficient history."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from tenantry.billing import ledger_store as billing
from tenantry.billing.ingest import WebhookService
from tenantry.billing.replay import ReplayService, Selection
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.billing.ledger import ReceivedEvent, ReplayNeed
from tenantry.domain.billing.state import WHOLE_TENANT, BillingPolicy
from tenantry.integrations.stripe.decode import decode_event
from tests.support import events
from tests.support.billing import Provider, add_tenants, rows
from tests.support.events import NOW
from tests.support.facts import ANY, EACH
from tests.support.patience import patient_database
from tests.support.service import Service

MOMENT = datetime.fromtimestamp(NOW, UTC)


@pytest.fixture
async def conninfo(emptied: str) -> str:
    """The connection string of the file's database, which holds the tenant acme alone."""
    await add_tenants(emptied, {"acme": "cus_1"})
    return emptied


def arrival(event: dict[str, Any]) -> ReceivedEvent:
    body = events.body(event)
    return ReceivedEvent(
        decode_event(body, arrived=NOW, make_up_id=lambda: "evt_made_up"), MOMENT, body
    )


def history(chance: random.Random) -> list[dict[str, Any]]:
    """Events of two subscriptions in some twenty seconds, several in one second now and then."""
    made = []
    for number in range(60):
        common: dict[str, Any] = {"created": NOW - 40 + chance.randrange(20), "customer": "cus_1"}
        subscription: dict[str, Any] = {
            "org": "acme",
            "subscription_id": f"sub_{chance.randrange(2)}",
        }
        kind = chance.choice(("updated", "updated", "updated", "deleted", "failed", "succeeded"))
        if kind == "updated":
            status = chance.choice(("active", "past_due", "trialing", "unpaid"))
            made.append(
                events.updated(**common, **subscription, status=status, period_end=NOW + number)
            )
        elif kind == "deleted":
            made.append(events.deleted(**common, **subscription))
        else:
            make = events.failed if kind == "failed" else events.succeeded
            made.append(make(**common, invoice_id=f"in_{chance.randrange(8)}"))
    return made


async def receive(
    database: Database, conninfo: str, policy: BillingPolicy, stream: Sequence[dict[str, Any]]
) -> None:
    webhooks = WebhookService([database.lane()], policy, Outbox(), lambda: MOMENT)
    for event in stream:
        await webhooks.receive(arrival(event))


async def folded_right(database: Database, policy: BillingPolicy, tenant_id: str) -> bool:
    """Whether the tenant is what the fold of its whole ledger gives."""
    replay = ReplayService(database, policy, lambda: MOMENT)
    checked = [
        each
        async for chunk in replay.run(Selection((tenant_id,)), dry_run=True)
        for each in chunk.checked
    ]
    return [each.is_right for each in checked] == [True]


@pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])
@pytest.mark.parametrize("seed", range(2))
async def test_events_in_any_order_lead_to_what_the_fold_of_all_leads_to(
    conninfo: str, policy: BillingPolicy, seed: int
) -> None:
    database = patient_database(conninfo, pool_size=2)
    await database.open()
    stream = history(random.Random(seed))  # noqa: S311  # no secret is made of it
    await receive(database, conninfo, policy, stream)
    assert await folded_right(database, policy, "acme")
    await database.close()


def seats(number: int, before: int) -> dict[str, Any]:
    """A change of the number of seats."""
    former, event = events.subscription(customer="cus_1"), events.updated(customer="cus_1")
    former["items"]["data"][0]["quantity"] = before
    event["data"]["object"]["items"]["data"][0]["quantity"] = number
    event["data"]["previous_attributes"] = {"quantity": before, "items": former["items"]}
    return event


@pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])
async def test_replaced_quantities_in_the_ledger_order_the_events_of_one_second(
    conninfo: str, policy: BillingPolicy
) -> None:
    async with patient_database(conninfo, pool_size=2) as database:
        await receive(database, conninfo, policy, [seats(5, 4), seats(4, 3), seats(3, 2)])
        assert await rows(conninfo, "SELECT seats FROM tenants") == [{"seats": 5}]
        assert await folded_right(database, policy, "acme")


@pytest.mark.parametrize(
    ("former", "present"), [(ANY, EACH), (EACH, ANY)], ids=["to each", "to any"]
)
async def test_next_event_after_a_change_of_the_setting_folds_the_whole_ledger(
    conninfo: str, former: BillingPolicy, present: BillingPolicy
) -> None:
    async with patient_database(conninfo, pool_size=2) as database:
        names: dict[str, Any] = {"org": "acme", "customer": "cus_1"}
        one, other = ({**names, "subscription_id": f"sub_{name}"} for name in "ab")
        await receive(database, conninfo, former, [events.updated(**one, created=NOW - 90)])
        await receive(
            database, conninfo, present, [events.failed(customer="cus_1", created=NOW - 80)]
        )
        await receive(
            database,
            conninfo,
            present,
            [events.updated(**other, created=NOW - 70, status="canceled")],
        )
        assert await folded_right(database, present, "acme")


HISTORY = (
    "INSERT INTO billing_events (id, arrival, type, created, received_at, org_id, tenant_id, subscription_id, "
    "customer_id, outcome, document) "
    "SELECT 'evt_' || n, n, %s, %s, now(), 'acme', 'acme', 'sub_1', 'cus_1', 'applied', "
    """'{"status":"active"}' """
    "FROM generate_series(1, 5000) n RETURNING id"
)
FULL_STATE_TYPE = "customer.subscription.updated"
WHOLE = ("acme", WHOLE_TENANT)


async def seconds_read(conninfo: str, second: int, until: int | None = None) -> list[int]:
    """The seconds of the events that are read to place a late one."""
    database = patient_database(conninfo, pool_size=1)
    await database.open()
    async with database.transaction(ACROSS_TENANTS) as connection:
        history = await billing.read_events(
            connection, {WHOLE: ReplayNeed(second, late=True, until=until)}, ANY
        )
    await database.close()
    return [event.created for event in history[WHOLE]]


async def test_a_late_event_reads_back_to_the_last_that_says_everything_and_no_further(
    conninfo: str,
) -> None:
    every_tenth = f"CASE n % 10 WHEN 0 THEN '{FULL_STATE_TYPE}' ELSE 'invoice.payment_failed' END"
    await rows(conninfo, HISTORY.replace("%s", every_tenth, 1).replace("%s", "n", 1))
    assert await seconds_read(conninfo, 4985) == list(range(4980, 5001))
    # it does not say since when
    await rows(
        conninfo, """UPDATE billing_events SET document = '{"status":"past_due"}' RETURNING id"""
    )
    assert await seconds_read(conninfo, 4985) == list(range(1, 5001))


async def test_a_superseded_event_reads_on_to_the_next_that_says_everything_and_no_further(
    conninfo: str,
) -> None:
    every_tenth = f"CASE n % 10 WHEN 0 THEN '{FULL_STATE_TYPE}' ELSE 'invoice.payment_failed' END"
    await rows(conninfo, HISTORY.replace("%s", every_tenth, 1).replace("%s", "n", 1))
    assert await seconds_read(conninfo, 105, until=110) == list(range(100, 121))
    assert await seconds_read(conninfo, 4995, until=5000) == list(range(4990, 5001))
    # not alone
    await rows(conninfo, "UPDATE billing_events SET created = 119 WHERE created = 120 RETURNING id")
    assert max(await seconds_read(conninfo, 105, until=110)) == 130


async def test_late_events_are_folded_as_if_they_had_come_in_order(conninfo: str) -> None:
    sent = [
        events.updated(org="acme", customer="cus_1", created=NOW - 100 + second, status=status)
        for second, status in enumerate(
            ("trialing", "active", "past_due", "active", "unpaid", "active", "past_due")
        )
    ]
    async with patient_database(conninfo, pool_size=2) as database:
        for position in (6, 5, 0, 3, 1, 4, 2):
            await receive(database, conninfo, ANY, [sent[position]])
        assert await folded_right(database, ANY, "acme")
    stored = await rows(conninfo, "SELECT subscription_status FROM tenants WHERE id = 'acme'")
    assert stored == [{"subscription_status": "past_due"}]


async def test_an_event_that_shares_its_second_is_no_beginning(conninfo: str) -> None:
    await rows(
        conninfo, HISTORY.replace("%s", f"'{FULL_STATE_TYPE}'", 1).replace("%s", "(n + 2) / 2", 1)
    )
    assert min(await seconds_read(conninfo, 10)) == 1


async def test_a_late_event_reads_its_history_once_where_statistics_say_that_the_ledger_is_empty(
    conninfo: str,
) -> None:
    history = HISTORY.replace("%s", f"'{FULL_STATE_TYPE}'", 1).replace("%s", "(n + 2) / 2", 1)
    for statement in (history, "DELETE FROM billing_events", "ANALYZE billing_events", history):
        await rows(conninfo, statement)
    assert len(await seconds_read(conninfo, 2501)) == 5000


@pytest.mark.thorough
@pytest.mark.parametrize(
    "previous", [None, {"status": "trialing"}], ids=["saying nothing", "saying what they replaced"]
)
async def test_very_many_events_of_one_second_are_all_taken(
    emptied_service: Service, previous: dict[str, Any] | None
) -> None:
    provider = Provider(emptied_service)
    subscriber = await provider.subscriber()
    flood = [
        events.updated(**subscriber.names, created=NOW, period_end=NOW + number, previous=previous)
        for number in range(600)
    ]
    await provider.deliver_together(flood)
    database = patient_database(emptied_service.conninfo, pool_size=1)
    await database.open()
    assert await folded_right(database, ANY, subscriber.id)
    await database.close()
