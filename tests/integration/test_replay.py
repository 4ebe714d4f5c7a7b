"""Replay: tenants are folded again from the ledger; differences are found and repaired, without
side effects.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
import pytest

from tenantry.billing import ledger_queries_store, ledger_store
from tenantry.billing.replay import TENANTS_PER_CHUNK, Selection
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import NotFoundError
from tests.support import events
from tests.support.billing import Provider, Subscriber, rows, until_blocked
from tests.support.catalogs import CATALOG
from tests.support.events import MONTH, NOW
from tests.support.replays import (
    ALL,
    HOUR,
    LATER,
    corrupt,
    fields,
    replay,
    replay_one,
    replaying,
    with_fold,
    with_history,
)
from tests.support.service import Service


@pytest.fixture
def provider(service: Service) -> Provider:
    return Provider(service)


async def tenant_row(provider: Provider, subscriber: Subscriber) -> dict[str, Any]:
    [row] = await rows(
        provider.service.conninfo, "SELECT * FROM tenants WHERE id = %s", subscriber.id
    )
    return row


async def test_an_empty_database_has_nothing_to_fold(emptied: str) -> None:
    assert await replay(emptied) == {}


async def test_an_undamaged_tenant_is_right(provider: Provider) -> None:
    subscriber = await with_history(provider)
    checked = await replay_one(provider, subscriber)
    assert (checked.events, checked.is_right, checked.repaired) == (4, True, False)


@pytest.mark.parametrize("status", ["canceled", "incomplete_expired"])
async def test_a_tenant_whose_subscription_is_over_is_right(
    provider: Provider, status: str
) -> None:
    subscriber = await provider.subscriber()
    await provider.send(
        events.updated(**subscriber.names, status=status, price="price_pro", created=NOW),
        events.failed(customer=subscriber.customer, created=NOW + HOUR),
    )
    checked = await replay_one(provider, subscriber)
    assert (checked.events, checked.differences) == (2, ())


async def test_a_tenant_without_events_is_right(provider: Provider) -> None:
    checked = await replay_one(provider, await provider.subscriber())
    assert (checked.events, checked.is_right) == (0, True)


CORRUPTIONS: Final = {
    "plan": ("plan = 'free'", {"plan"}),
    "status": ("subscription_status = 'active'", {"subscriptionStatus"}),
    "period end": ("current_period_end = 1", {"currentPeriodEnd"}),
    "a period end that is no time": ("current_period_end = 1767268800000000", {"currentPeriodEnd"}),
    "no period end": ("current_period_end = NULL", {"currentPeriodEnd"}),
    "cancel flag": ("cancel_at_period_end = NOT cancel_at_period_end", {"cancelAtPeriodEnd"}),
    "provider status": (with_fold(state__provider_status='"unpaid"'), {"providerStatus"}),
    "subscription": (with_fold(state__subscription_id='"sub_other"'), {"subscriptionId"}),
    "age of the subscription": (
        with_fold(state__subscription_created="null"),
        {"subscriptionCreated"},
    ),
    "newest second": (with_fold(tip_created=str(NOW - 1)), {"tipCreated"}),
    "plan of the fold": (with_fold(state__plan='"pro"'), {"state.plan"}),
    "checkpoint": (with_fold(tip_state__plan='"pro"'), {"tipState.plan"}),
    "several": (
        f"plan = 'pro', {with_fold(tip_created='5', state__subscription_id='null')}",
        {"plan", "tipCreated", "subscriptionId"},
    ),
}


async def test_damage_is_found_and_repaired(provider: Provider) -> None:
    subscriber = await with_history(provider)
    before = await tenant_row(provider, subscriber)
    for name, (assignment, found) in CORRUPTIONS.items():
        await corrupt(provider, subscriber, assignment)
        checked = await replay_one(provider, subscriber)
        assert (fields(checked), checked.repaired) == (found, True), name
        after = await tenant_row(provider, subscriber)
        assert {**after, "updated_at": before["updated_at"]} == before, name
        assert (await replay_one(provider, subscriber)).is_right, name


async def test_folds_that_are_none_are_repaired(provider: Provider) -> None:
    subscriber = await with_history(provider)
    before = await tenant_row(provider, subscriber)
    for stored in ("NULL", "'7'", '\'{"": {"state": 7}}\''):
        await corrupt(provider, subscriber, f"folds = {stored}")
        assert (await replay_one(provider, subscriber)).repaired, stored
        assert await tenant_row(provider, subscriber) == before, stored


async def test_a_fold_of_no_events_is_removed(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    fold = """'{"": {"state": {}, "tip_created": 5}}'"""
    await corrupt(provider, subscriber, f"folded_by = 'any', folds = {fold}")
    assert (await replay_one(provider, subscriber)).repaired
    assert (await tenant_row(provider, subscriber))["folds"] == {}


async def test_damaged_folds_are_folded_again_with_the_next_event(provider: Provider) -> None:
    subscriber = await with_history(provider)
    await corrupt(provider, subscriber, "folds = '[]'")
    await provider.send(events.deleted(**subscriber.names, created=NOW + 5))
    assert await provider.state(subscriber) == ("free", "canceled")
    assert (await replay_one(provider, subscriber)).is_right


async def test_the_difference_says_what_is_stored_and_what_the_events_say(
    provider: Provider,
) -> None:
    subscriber = await with_history(provider)
    await corrupt(provider, subscriber, "plan = 'free', current_period_end = NULL")
    plan, period_end = (await replay_one(provider, subscriber, dry_run=True)).differences
    assert (plan.stored, plan.folded) == ("free", "business")
    assert (period_end.stored, period_end.folded) == (
        None,
        datetime.fromtimestamp(NOW + MONTH, UTC),
    )


@pytest.mark.parametrize(
    ("assignment", "changed"), [("plan = 'free'", True), (with_fold(tip_created="5"), False)]
)
async def test_the_record_is_updated_now_only_where_it_shows(
    provider: Provider, assignment: str, changed: bool
) -> None:
    subscriber = await with_history(provider)
    before = await tenant_row(provider, subscriber)
    await corrupt(provider, subscriber, assignment)
    await replay_one(provider, subscriber)
    after = await tenant_row(provider, subscriber)
    assert after["updated_at"] == (LATER if changed else before["updated_at"])


async def test_a_dry_run_changes_nothing(provider: Provider) -> None:
    subscriber = await with_history(provider)
    await corrupt(provider, subscriber, "plan = 'free'")
    before = await tenant_row(provider, subscriber)
    checked = await replay_one(provider, subscriber, dry_run=True)
    assert (fields(checked), checked.repaired) == ({"plan"}, False)
    assert await tenant_row(provider, subscriber) == before


async def test_a_dry_run_waits_for_no_lock(provider: Provider) -> None:
    subscriber = await with_history(provider)
    async with await psycopg.AsyncConnection.connect(provider.service.conninfo) as other:
        await other.execute(
            "SELECT 1 FROM tenants WHERE id = %s FOR NO KEY UPDATE", (subscriber.id,)
        )
        assert (await replay_one(provider, subscriber, dry_run=True)).is_right


@pytest.mark.parametrize(
    ("surgery", "found"),
    [
        (
            "DELETE FROM billing_events WHERE tenant_id = %s AND type = 'invoice.payment_failed'",
            "subscriptionStatus",
        ),
        (
            """
            UPDATE billing_events SET document = document::jsonb || '{"price_id": "price_pro"}'
             WHERE tenant_id = %s
            """,
            "plan",
        ),
    ],
)
async def test_a_ledger_that_was_changed_shows(
    provider: Provider, surgery: str, found: str
) -> None:
    subscriber = await with_history(provider)
    await rows(provider.service.conninfo, surgery, subscriber.id)
    assert found in fields(await replay_one(provider, subscriber, dry_run=True))


async def test_tenants_get_their_plan_after_the_catalog_is_fixed(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**subscriber.names, price="price_business"))
    without = BillingPolicy(
        catalog=type(CATALOG)(tuple(plan for plan in CATALOG.plans if plan.id != "business"))
    )
    await replay_one(provider, subscriber, policy=without)
    assert await provider.state(subscriber) == ("free", "active")
    checked = await replay_one(provider, subscriber)
    assert fields(checked) == {"plan", "seats"}
    assert await provider.state(subscriber) == ("business", "active")


async def test_a_grant_is_folded_too(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    terms = {"plan": "pro", "reason": "a contract"}
    await provider.service.operator.put(f"/api/v1/tenants/{subscriber.id}/grants/contract", terms)
    await provider.send(events.failed(customer=subscriber.customer))
    await corrupt(provider, subscriber, "plan = 'free'")
    assert (await replay_one(provider, subscriber)).repaired
    assert await provider.state(subscriber) == ("pro", "past_due")


async def test_a_lost_grant_is_found_by_its_name_and_repaired(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    path = f"/api/v1/tenants/{subscriber.id}/grants"
    terms = {"plan": "pro", "reason": "a contract"}
    await provider.service.operator.put(f"{path}/contract", terms)
    await corrupt(provider, subscriber, "folds = '{}', access = NULL")
    checked = await replay_one(provider, subscriber)
    assert {"access", "grant:contract"} <= fields(checked)
    [grant] = (await provider.service.operator.get(path)).json()["data"]
    assert (grant["name"], grant["plan"]) == ("contract", "pro")
    assert (await replay_one(provider, subscriber)).is_right


async def test_an_ended_tenant_is_folded_too(provider: Provider) -> None:
    subscriber = await with_history(provider)
    await provider.service.operator.delete(f"/api/v1/tenants/{subscriber.id}")
    await corrupt(provider, subscriber, "plan = 'free'")
    assert (await replay_one(provider, subscriber)).repaired


async def test_a_replay_sends_no_mail_and_adds_no_job(provider: Provider) -> None:
    subscriber = await with_history(provider)
    conninfo = provider.service.conninfo
    counts = "SELECT (SELECT count(*) FROM notifications) AS mails, (SELECT count(*) FROM procrastinate_jobs) AS jobs"
    before = await rows(conninfo, counts)
    await corrupt(provider, subscriber, "subscription_status = 'active', folds = NULL")
    assert (await replay_one(provider, subscriber)).repaired
    assert await rows(conninfo, counts) == before


async def test_the_ledger_stays_as_it_is(provider: Provider) -> None:
    subscriber = await with_history(provider)
    before = await provider.ledger(subscriber)
    await corrupt(provider, subscriber, "plan = 'free'")
    await replay_one(provider, subscriber)
    assert await provider.ledger(subscriber) == before


# Which tenants


async def test_only_tenants_that_are_named_are_folded(provider: Provider) -> None:
    named, other = await with_history(provider), await with_history(provider)
    await corrupt(provider, other, "plan = 'free'")
    await replay_one(provider, named)
    assert await provider.state(other) == ("free", "past_due")


@pytest.mark.parametrize("name", ["missing", "not an id", "nul\0"])
async def test_a_tenant_that_does_not_exist_is_named(provider: Provider, name: str) -> None:
    subscriber = await provider.subscriber()
    async with replaying(provider.service.conninfo) as service:
        assert await service.count(Selection((subscriber.id,))) == 1
        with pytest.raises(NotFoundError, match=name):
            await service.count(Selection((subscriber.id, name)))


async def test_only_tenants_with_news_are_folded(emptied_service: Service) -> None:
    provider = Provider(emptied_service)
    early, late = await with_history(provider), await with_history(provider)
    emptied_service.clock.advance(hours=2)
    since = emptied_service.clock.now
    await provider.send(events.succeeded(customer=late.customer, created=NOW - 20 * HOUR))
    await provider.subscriber()
    assert (await replay(emptied_service.conninfo, Selection(since=since))).keys() == {late.id}
    assert (await replay(emptied_service.conninfo, Selection((early.id,), since))) == {}


async def test_all_tenants_are_folded_a_chunk_at_a_time(emptied: str) -> None:
    most = 2 * TENANTS_PER_CHUNK + 1
    await rows(
        emptied,
        "INSERT INTO tenants (id, name, owner_id, owner_email, plan) "
        "SELECT 'org_' || n, 'x', 'x', 'x', CASE WHEN n %% 100 = 0 THEN 'pro' ELSE 'free' END "
        "FROM generate_series(1, %s::int) AS n",
        most,
    )
    async with replaying(emptied) as service:
        assert await service.count(ALL) == most
        chunks = [chunk async for chunk in service.run(ALL, dry_run=False)]
    assert [chunk.tenants for chunk in chunks] == [TENANTS_PER_CHUNK, TENANTS_PER_CHUNK, 1]
    repaired = {
        checked.tenant_id for chunk in chunks for checked in chunk.checked if checked.repaired
    }
    assert repaired == {"org_100", "org_200", "org_300", "org_400"}
    assert all(checked.is_right for checked in (await replay(emptied)).values())


async def test_a_history_of_many_fetches_is_folded_in_full(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    count = 2 * ledger_queries_store.ROWS_PER_FETCH + 7
    await rows(
        provider.service.conninfo,
        "INSERT INTO billing_events (id, arrival, type, created, received_at, tenant_id, outcome) "
        "SELECT %s || n, n, CASE n %% 2 WHEN 0 THEN 'invoice.payment_failed' ELSE 'invoice.payment_succeeded' END, "
        "%s + n / 3, now(), %s, 'applied' FROM generate_series(1, %s::int) AS n",
        f"evt_{subscriber.id}_",
        NOW,
        subscriber.id,
        count,
    )
    checked = await replay_one(provider, subscriber)
    assert (checked.events, checked.repaired) == (count, True)
    folds = (await tenant_row(provider, subscriber))["folds"]
    assert folds[""]["tip_created"] == NOW + count // 3


async def test_histories_are_read_in_the_order_of_the_index(conninfo: str) -> None:
    folded = {**ledger_store.FOLD_TYPES, "tenants": ["acme", "beta"], "since": -1}
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute(ledger_queries_store.BY_INDEX)
        for statement, parameters in (
            (ledger_queries_store.FOLDED_EVENTS, folded),
            (ledger_queries_store.WITH_RECENT_EVENTS, (["acme", "beta"], LATER)),
        ):
            cursor = await connection.execute(f"EXPLAIN {statement}".encode(), parameters)
            plan = "\n".join(row[0] for row in await cursor.fetchall())
            assert "billing_events_of_tenant" in plan
            assert "Sort" not in plan
            assert "Bitmap" not in plan


MANY_TENANTS: Final = """
WITH added AS (
       INSERT INTO tenants (id, name, owner_id, owner_email, folded_by, folds)
       SELECT 'org_' || n, '', '', '', 'each', json_build_object('sub_' || n, json_build_object())
         FROM generate_series(1, 3000) AS n
    RETURNING id)
INSERT INTO subscription_tenants (subscription_id, tenant_id)
SELECT 'sub_' || substr(id, 5), id FROM added
"""


async def test_shared_subscriptions_of_a_tenant_are_found_without_reading_all_tenants(
    emptied: str,
) -> None:
    async with await psycopg.AsyncConnection.connect(emptied) as connection:
        await connection.execute(MANY_TENANTS)
        await connection.execute("INSERT INTO subscription_tenants VALUES ('sub_1', 'org_2')")
        await connection.execute("ANALYZE tenants, subscription_tenants")
        shared = ledger_store.SHARED_SUBSCRIPTIONS
        for tenants, expected in ((["org_2"], [("sub_1",)]), (["org_3"], []), (None, [("sub_1",)])):
            cursor = await connection.execute(shared.encode(), {"tenants": tenants})
            assert await cursor.fetchall() == expected
        cursor = await connection.execute(f"EXPLAIN {shared}".encode(), {"tenants": ["org_2"]})
        plan = "\n".join(row[0] for row in await cursor.fetchall())
    assert ("tenants_pkey" in plan, "Seq Scan" in plan) == (True, False), plan


# Parked events


async def parked(provider: Provider, event: dict[str, Any]) -> None:
    """An event that is in the ledger as one that waits."""
    await provider.send(event)
    await rows(
        provider.service.conninfo,
        "UPDATE billing_events SET outcome = 'parked', tenant_id = NULL WHERE id = %s",
        event["id"],
    )


async def test_events_that_wait_although_their_tenant_is_known_take_their_place(
    provider: Provider,
) -> None:
    subscriber = await provider.subscriber()
    upgrade = events.updated(**subscriber.names)
    failure = events.failed(customer=subscriber.customer, created=NOW + 1)
    await parked(provider, upgrade)
    await parked(provider, failure)
    await corrupt(provider, subscriber, "plan = 'free', subscription_status = 'none', folds = NULL")
    mails = await provider.notifications(subscriber)
    found = await replay_one(provider, subscriber, dry_run=True)
    assert (found.parked, found.repaired) == (2, False)
    done = await replay_one(provider, subscriber)
    assert (done.parked, done.repaired) == (2, True)
    assert await provider.state(subscriber) == ("pro", "past_due")
    assert set(await provider.ledger(subscriber)) == {upgrade["id"], failure["id"]}
    assert await provider.notifications(subscriber) == mails
    assert (await replay_one(provider, subscriber)).is_right


async def test_a_failure_that_waited_is_not_mailed(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    failure = events.failed(customer=subscriber.customer, created=NOW + 10 * MONTH)
    await parked(provider, failure)
    await corrupt(provider, subscriber, "subscription_status = 'none', folds = NULL")
    await rows(
        provider.service.conninfo, "DELETE FROM notifications WHERE cause = %s", failure["id"]
    )
    assert (await replay_one(provider, subscriber)).parked == 1
    assert await provider.state(subscriber) == ("free", "past_due")
    assert await provider.notifications(subscriber) == []


async def test_events_without_a_tenant_stay_parked(emptied_service: Service) -> None:
    provider = Provider(emptied_service)
    await provider.subscriber()
    unlinked = provider.unlinked()
    await provider.send(events.updated(**unlinked.names))
    checked = await replay(provider.service.conninfo)
    assert unlinked.id not in checked
    assert not any(one.parked for one in checked.values())


# While others are at work


async def test_concurrent_replays_repair_once(provider: Provider) -> None:
    subscriber = await with_history(provider)
    conninfo = provider.service.conninfo
    await corrupt(provider, subscriber, "plan = 'free'")
    async with await psycopg.AsyncConnection.connect(conninfo) as other:
        await other.execute(
            "SELECT 1 FROM tenants WHERE id = %s FOR NO KEY UPDATE", (subscriber.id,)
        )
        both = [asyncio.create_task(replay_one(provider, subscriber)) for _ in range(2)]
        await until_blocked(conninfo, 2)
    checked = [await one for one in both]
    assert sorted(one.repaired for one in checked) == [False, True]
    assert sorted(one.is_right for one in checked) == [False, True]
    assert await provider.state(subscriber) == ("business", "past_due")


async def test_an_event_that_comes_before_the_repair_counts(provider: Provider) -> None:
    subscriber = await with_history(provider)
    conninfo = provider.service.conninfo
    await corrupt(provider, subscriber, "plan = 'free'")
    async with await psycopg.AsyncConnection.connect(conninfo) as other:
        await other.execute(
            "SELECT 1 FROM tenants WHERE id = %s FOR NO KEY UPDATE", (subscriber.id,)
        )
        sending = asyncio.create_task(
            provider.send(events.deleted(**subscriber.names, created=NOW + 5))
        )
        await until_blocked(conninfo)
        repairing = asyncio.create_task(replay_one(provider, subscriber))
        await until_blocked(conninfo, 2)
    await asyncio.gather(sending, repairing)
    assert await provider.state(subscriber) == ("free", "canceled")
    assert (await replay_one(provider, subscriber)).is_right


async def test_a_tenant_removed_before_the_repair_is_skipped(provider: Provider) -> None:
    subscriber = await with_history(provider)
    conninfo = provider.service.conninfo
    await corrupt(provider, subscriber, "plan = 'free'")
    async with await psycopg.AsyncConnection.connect(conninfo) as other:
        await other.execute(
            "SELECT 1 FROM tenants WHERE id = %s FOR NO KEY UPDATE", (subscriber.id,)
        )
        repairing = asyncio.create_task(replay_one(provider, subscriber))
        await until_blocked(conninfo)
        await other.execute("DELETE FROM tenants WHERE id = %s", (subscriber.id,))
    checked = await repairing
    assert (checked.is_right, checked.repaired) == (True, False)


async def test_replays_during_live_events_end_where_the_events_do(emptied_service: Service) -> None:
    provider = Provider(emptied_service)
    subscribers = [await provider.subscriber() for _ in range(6)]
    sent = [
        event
        for subscriber in subscribers
        for number in range(3)
        for event in (
            events.updated(**subscriber.names, status="trialing", created=NOW - number * 50),
            events.failed(customer=subscriber.customer, created=NOW + number * 10),
            events.succeeded(customer=subscriber.customer, created=NOW + number * 10 + 5),
        )
    ]
    sent.sort(key=lambda event: event["id"][::-1])

    async def send() -> None:
        for start in range(0, len(sent), 9):
            for subscriber in subscribers[:: 1 + start % 3]:
                await corrupt(
                    provider, subscriber, "plan = 'business', subscription_status = 'unpaid'"
                )
            assert set(await provider.send_together(sent[start : start + 9])) == {200}

    async def repair(sending: asyncio.Task[None]) -> int:
        runs = 0
        while not sending.done():
            await replay(emptied_service.conninfo)
            runs += 1
        return runs

    sending = asyncio.create_task(send())
    assert all(await asyncio.gather(repair(sending), repair(sending)))
    await sending
    await replay(emptied_service.conninfo)
    assert all(checked.is_right for checked in (await replay(emptied_service.conninfo)).values())
    assert {await provider.state(subscriber) for subscriber in subscribers} == {("pro", "trialing")}
