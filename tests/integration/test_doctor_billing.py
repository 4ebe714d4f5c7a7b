"""The checks of billing: their findings in the ledger and the tenants' records, and the
remedies.
"""

import itertools
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest

from tenantry.billing import batch_store as billing
from tenantry.billing import reconcile_store as reconcile
from tenantry.cli.doctor.database_checks import check_database
from tenantry.db.database import Lane, for_writes
from tenantry.db.failover_detection import FailoverDetector
from tenantry.domain.billing.events import SNAPSHOT, Anomaly, BillingEvent, Outcome
from tenantry.domain.billing.ledger import LedgerEntry, ReceivedEvent
from tenantry.domain.plans import Catalog, Limits, Plan
from tenantry.installation import checks_store as store
from tenantry.installation.findings import Finding, Level
from tenantry.settings import Settings
from tests.support import events
from tests.support.billing import Provider, Subscriber, rows
from tests.support.events import NOW
from tests.support.findings import checked_settings, levels, only
from tests.support.postgres import PostgresServer
from tests.support.reversals import charge_refunded, disputed, refunded
from tests.support.service import TENANTS, Service, running_service

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
LIVE_KEY: Final = "sk_live_OnlyForTests"
TEST_KEY: Final = "sk_test_OnlyForTests"


@pytest.fixture
def provider(emptied_service: Service) -> Provider:
    return Provider(emptied_service)


async def check(
    provider: Provider, settings: Settings | None = None, *, later: timedelta = HOUR
) -> list[Finding]:
    """The findings about billing, an hour after the events."""
    service = provider.service
    settings = settings or checked_settings(livemode=False)
    findings = await check_database(service.conninfo, settings, service.clock() + later)
    subjects = ("billing ledger", "tenants", "TRUSTED_PROXIES")
    return [finding for finding in findings if finding.subject in subjects]


async def add_entries(
    conninfo: str,
    entries: Sequence[tuple[BillingEvent, Sequence[Anomaly]]],
    received_at: datetime | None = None,
) -> None:
    """Write entries into the ledger."""
    lane = Lane(FailoverDetector(for_writes(conninfo)))
    async with lane.use(autocommit=True) as connection:
        arrived = received_at or datetime.fromtimestamp(NOW, UTC)
        calls = billing.insert_entries(
            [
                LedgerEntry(
                    ReceivedEvent(event, arrived),
                    event.org_id,
                    Outcome.APPLIED,
                    "because",
                    anomalies=tuple(unexpected),
                )
                for event, unexpected in entries
            ]
        )
        await billing.write(connection, calls, commit=False)
    await lane.close()


async def repaired(provider: Provider, *tenants: str, received_at: datetime | None = None) -> None:
    """Record that a comparison found drift of these tenants."""
    entries = [
        (
            BillingEvent(id=f"snapshot_{tenant}", type=SNAPSHOT, created=NOW, org_id=tenant),
            [Anomaly.DRIFT],
        )
        for tenant in tenants
    ]
    await add_entries(provider.service.conninfo, entries, received_at)


_later: Final = itertools.count(1 << 40)


async def answered(
    provider: Provider, subscriber: Subscriber, created: int, *, before: bool = False
) -> None:
    """Record a snapshot of a tenant, taken after all its events had arrived or ``before`` any."""
    arrival = -next(_later) if before else next(_later)
    event = BillingEvent(
        id=f"snapshot_{arrival}",
        type=SNAPSHOT,
        created=created,
        org_id=subscriber.id,
        arrival=arrival,
    )
    await add_entries(provider.service.conninfo, [(event, [])])


async def send_ambiguous(provider: Provider, subscriber: Subscriber) -> None:
    """Two events of one second in an ambiguous order."""
    await provider.send(
        events.updated(**subscriber.names, status="active"),
        events.updated(**subscriber.names, status="past_due"),
    )


def catalog(**prices: Sequence[str]) -> Catalog:
    """A catalog of plans with these prices."""
    return Catalog(
        tuple(Plan(name, name, tuple(listed), Limits()) for name, listed in prices.items())
    )


def message(findings: Sequence[Finding]) -> str:
    return only(findings, Level.WARNING).message


def remedy(findings: Sequence[Finding]) -> str:
    return only(findings, Level.WARNING).remedy or ""


async def test_billing_in_order(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(
        events.updated(**subscriber.names),
        events.failed(customer=subscriber.customer, created=NOW + 1),
        events.succeeded(customer=subscriber.customer, created=NOW + 2),
        events.completed(org=subscriber.id, customer=subscriber.customer, created=NOW + 3),
        events.event("charge.captured", {}),
    )
    findings = await check(provider)
    assert levels(findings) == {Level.OK}
    assert [finding.subject for finding in findings] == ["billing ledger", "tenants"]


# Events


async def test_parked_events_are_counted_and_what_they_wait_for_is_named(
    provider: Provider,
) -> None:
    unlinked = provider.unlinked()
    await provider.send(events.updated(**unlinked.names), events.failed(customer=unlinked.customer))
    findings = await check(provider)
    waited_for = f"customer {unlinked.customer}, tenant {unlinked.id}"
    assert message(findings).endswith(f"that is not known: 2 (they wait for {waited_for})")
    assert "tenantry admin list-parked-events" in remedy(findings)


async def test_an_event_that_waits_for_its_subscription_names_that(provider: Provider) -> None:
    """It has a customer too, which is linked: another tenant has taken over the subscription."""
    unlinked = provider.unlinked()
    await provider.send(events.failed(customer=unlinked.customer))
    statement = """UPDATE billing_events SET document = '{"reason": "Waits: subscription sub_1 is not known yet."}'"""
    await rows(provider.service.conninfo, statement)
    assert message(await check(provider)).endswith(
        "that is not known: 1 (they wait for subscription sub_1)"
    )


async def test_malformed_events_are_counted(provider: Provider) -> None:
    unusable = events.updated()
    unusable["data"]["object"]["status"] = 5
    await provider.send(unusable)
    assert message(await check(provider)).endswith("whose object lacks what its type needs: 1")


async def test_events_that_name_no_tenant_are_counted(provider: Provider) -> None:
    await provider.send(events.completed(org=None), events.updated(org=None, customer=None))
    findings = await check(provider)
    assert message(findings).endswith("that name no tenant: 2")
    assert "metadata.orgId" in remedy(findings)


async def test_subscriptions_without_a_price_are_counted(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**subscriber.names, price=None))
    assert message(await check(provider)).endswith("without a price: 1 (plan free)")


async def test_prices_that_no_plan_has_are_named(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    for number, price in enumerate(["price_gone", "price_rare", "price_gone"]):
        await provider.send(events.updated(**subscriber.names, price=price, created=NOW + number))
    findings = await check(provider)
    assert message(findings).endswith(
        "that no plan has: 2 (price_gone, price_rare); events: 3 (plan free)"
    )
    assert "tenantry admin replay-events" in remedy(findings)


async def test_a_price_that_a_plan_has_by_now_is_no_longer_named(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**subscriber.names, price="price_gold"))
    assert "price_gold" in message(await check(provider))
    repaired = catalog(free=(), gold=("price_gold",))
    assert levels(await check(provider, checked_settings(repaired, livemode=False))) == {Level.OK}


async def test_many_prices_that_no_plan_has_are_counted(provider: Provider) -> None:
    entries = [
        (
            BillingEvent(id=f"evt_{number}", type="x", created=1, price_id=f"p_{number:02}"),
            [Anomaly.UNKNOWN_PRICE],
        )
        for number in range(store.MOST_LISTED + 3)
    ]
    await add_entries(provider.service.conninfo, entries)
    assert " p_19 and 3 more); events: 23 " in message(await check(provider))


async def test_a_customer_claimed_by_a_second_tenant_is_named(provider: Provider) -> None:
    first, second = await provider.subscriber(), await provider.subscriber()
    await provider.send(events.updated(**{**second.names, "customer": first.customer}))
    assert message(await check(provider)).endswith(
        f"a customer of another: 1 ({first.customer} for {second.id})"
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Anomaly.SEVERAL_PLANS, "prices of several plans, in the last 30 days: 1 (acme)"),
        (Anomaly.TOO_MANY_SUBSCRIPTIONS, "50 subscriptions, in the last 30 days: 1 (acme)"),
    ],
)
async def test_tenants_whose_subscriptions_do_not_all_count_are_named(
    provider: Provider, kind: Anomaly, expected: str
) -> None:
    entries = [
        (BillingEvent(id=f"evt_{number}", type="x", created=NOW, org_id="acme"), [kind])
        for number in range(2)
    ]
    await add_entries(provider.service.conninfo, entries)
    assert message(await check(provider)).endswith(expected)


async def test_old_events_are_not_reported(provider: Provider) -> None:
    await provider.send(events.completed(org=None), events.updated(org="later", price="price_gone"))
    parked_alone = await check(provider, later=31 * DAY)
    assert message(parked_alone).endswith("that is not known: 1 (they wait for tenant later)")
    assert len(await check(provider, later=29 * DAY)) == len(parked_alone) + 2


# The provider's modes


@pytest.mark.parametrize(
    ("key", "ours", "theirs"),
    [(LIVE_KEY, "live", "test"), (TEST_KEY, "test", "live")],
    ids=["live", "test"],
)
async def test_events_of_the_other_mode_are_counted(
    conninfo: str, key: str, ours: str, theirs: str
) -> None:
    async with running_service(conninfo, PROVIDER_SECRET_KEY=key) as service:
        provider = Provider(service)
        subscriber = await provider.subscriber()
        for number, livemode in enumerate([True, False]):
            await provider.send(
                {**events.updated(**subscriber.names, created=NOW + number), "livemode": livemode}
            )
        findings = await check(provider, checked_settings(livemode=ours == "live"))
        assert f"events in the last 30 days of {theirs} mode" in message(findings)
        assert f"PROVIDER_SECRET_KEY is a key of {ours} mode: 1 " in message(findings)
        assert f"If {theirs} mode is intended, set its key" in remedy(findings)


async def test_once_the_right_key_is_set_its_events_are_fine(conninfo: str) -> None:
    async with running_service(conninfo, PROVIDER_SECRET_KEY=LIVE_KEY) as service:
        provider = Provider(service)
        subscriber = await provider.subscriber()
        await provider.send(events.updated(**subscriber.names))
        assert levels(await check(provider, checked_settings(livemode=True))) == {
            Level.OK,
            Level.WARNING,
        }
        assert levels(await check(provider, checked_settings(livemode=False))) == {Level.OK}


async def test_connected_accounts_that_are_not_listed_are_named(provider: Provider) -> None:
    for account in ("acct_1", "acct_2", "acct_1"):
        await provider.send(events.updated() | {"account": account})
    findings = await check(provider)
    assert message(findings).endswith("whose events are ignored: 2 (acct_1, acct_2)")
    assert "PROVIDER_ACCOUNTS" in remedy(findings)


async def test_events_dated_ahead_are_named(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    ahead = int((provider.service.clock() + 2 * HOUR).timestamp())
    await provider.send(events.updated(**subscriber.names, event_id="evt_1", created=ahead))
    findings = await check(provider)
    assert message(findings).endswith(f"after their arrival: 1 (evt_1 of {subscriber.id})")


async def test_an_invalid_event_is_not_reported_once_a_valid_one_has_replaced_it(
    provider: Provider,
) -> None:
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names, event_id="evt_1")
    thing = {**event["data"]["object"], "status": None}
    await provider.send({**event, "data": {"object": thing}})
    assert message(await check(provider)).endswith("whose object lacks what its type needs: 1")
    await provider.send(event)
    assert levels(await check(provider)) == {Level.OK}


# Ambiguous order


async def test_events_in_ambiguous_order_are_counted(provider: Provider) -> None:
    ambiguous = [await provider.subscriber() for _ in range(2)]
    for subscriber in ambiguous:
        await send_ambiguous(provider, subscriber)
    findings = await check(provider)
    named = ", ".join(sorted(subscriber.id for subscriber in ambiguous))
    assert message(findings).endswith(
        f"within their second: 2, resolved by the provider: 0; not resolved for {named}"
    )
    assert "tenantry reconcile --org" in remedy(findings)


async def test_without_a_provider_key_the_remedy_is_to_set_it(provider: Provider) -> None:
    await send_ambiguous(provider, await provider.subscriber())
    findings = await check(provider, checked_settings(livemode=False, PROVIDER_SECRET_KEY=""))
    assert remedy(findings).startswith("Set PROVIDER_SECRET_KEY")


async def test_ambiguous_events_of_a_deleted_tenant_are_not_reported(provider: Provider) -> None:
    ended = await provider.subscriber()
    await send_ambiguous(provider, ended)
    assert (await provider.service.operator.delete(f"{TENANTS}/{ended.id}")).status_code == 204
    assert levels(await check(provider)) == {Level.OK}


async def test_a_later_snapshot_resolves_the_ambiguity(provider: Provider) -> None:
    settled, unsettled = await provider.subscriber(), await provider.subscriber()
    for subscriber in (settled, unsettled):
        await send_ambiguous(provider, subscriber)
        await answered(provider, subscriber, NOW - 1)
        await answered(provider, subscriber, NOW + 1, before=True)
    await answered(provider, settled, NOW)
    assert message(await check(provider)).endswith(
        f"within their second: 2, resolved by the provider: 1; not resolved for {unsettled.id}"
    )
    await answered(provider, unsettled, NOW + 1)
    findings = await check(provider)
    assert levels(findings) == {Level.OK}
    assert findings[0].message.endswith("within their second: 2, all resolved by the provider")


# Tenants


async def test_tenants_that_had_drifted_are_named(provider: Provider) -> None:
    await repaired(provider, "org-a", "org-b")
    findings = await check(provider)
    assert message(findings).endswith("repaired in the last 30 days: 2 (org-a, org-b)")
    assert "webhook endpoint" in remedy(findings)
    assert levels(await check(provider, later=31 * DAY)) == {Level.OK}


async def test_twenty_of_many_drifted_tenants_are_named_the_last_first(provider: Provider) -> None:
    await repaired(provider, *(f"org-{number:02}" for number in range(store.MOST_LISTED + 5)))
    await repaired(provider, "org-z", received_at=datetime.fromtimestamp(NOW + 1, UTC))
    text = message(await check(provider))
    assert ": 26 (org-z, org-00, " in text
    assert text.endswith("org-18 and 6 more)")


REFUSE: Final = """
INSERT INTO rejections (id, org_id, kind, principal, mode, minute, code, needed, route, status, at, request_id,
                        counted)
VALUES ('rejection_' || gen_random_uuid(), %s, 'api_key', 'key_1', 'live', %s, %s, '', '', 403, %s, 'request', %s)
"""


async def test_tenants_with_many_refused_requests_are_named_with_the_reason(
    provider: Provider,
) -> None:
    latest = provider.service.clock()
    counts = [
        ("many", "insufficient_scope", 900, latest),
        ("many", "rate_limited", 150, latest),
        ("few", "rate_limited", 999, latest),
        ("earlier", "rate_limited", 5000, latest - 3 * HOUR),
    ]
    async with await psycopg.AsyncConnection.connect(provider.service.conninfo) as connection:
        for org_id, code, number, at in counts:
            await connection.execute(REFUSE, (org_id, at, code, at, number))
    assert message(await check(provider)) == (
        "tenants with 1000 or more refused requests in the last 3 hours: "
        "1 (many: 1050, most often insufficient_scope)"
    )


async def test_untrusted_senders_of_x_forwarded_for_are_named(provider: Provider) -> None:
    latest = provider.service.clock()
    rows = [
        ("address_not_allowed", "trusted_proxy", "10.0.0.9", 7, latest),
        ("address_not_allowed", "trusted_proxy", "10.0.0.8", 9, latest),
        ("address_not_allowed", "", "198.51.100.1", 9, latest),
        ("address_not_allowed", "trusted_proxy", "10.0.0.7", 9, latest - 3 * HOUR),
    ]
    async with await psycopg.AsyncConnection.connect(provider.service.conninfo) as connection:
        for code, needed, address, number, at in rows:
            await connection.execute(REFUSE, (f"org of {address}", at, code, at, number))
            await connection.execute(
                "UPDATE rejections SET needed = %s, address = %s WHERE needed = '' AND address IS NULL",
                (needed, address),
            )
    findings = await check(provider)
    assert message(findings).endswith("2 (10.0.0.8, 10.0.0.9)")
    assert "TRUSTED_PROXIES" in remedy(findings)


async def test_plans_that_have_left_the_catalog_are_named(provider: Provider) -> None:
    for _ in range(2):
        subscriber = await provider.subscriber()
        await provider.send(events.updated(**subscriber.names, price="price_business"))
    gone = await provider.subscriber()
    await provider.send(events.updated(**gone.names, price="price_business"))
    await provider.service.operator.delete(f"/api/v1/tenants/{gone.id}")
    smaller = catalog(free=(), pro=("price_pro",), other=("price_business",))
    findings = await check(provider, checked_settings(smaller, livemode=False))
    assert (
        message(findings)
        == "on plans that are not in the plan catalog: 1 (business: 2) (limits of free)"
    )
    assert "TENANTRY_PLANS" in remedy(findings)


async def test_stale_tenants_are_named(provider: Provider) -> None:
    silent, ended, renewed = [await provider.subscriber() for _ in range(3)]
    for subscriber in (silent, ended, renewed):
        await provider.send(events.updated(**subscriber.names, period_end=NOW))
    await provider.send(
        events.deleted(**ended.names, created=NOW + 1),
        events.updated(**renewed.names, created=NOW + 1, period_end=NOW + events.MONTH),
    )
    assert levels(await check(provider, later=24 * HOUR - timedelta(seconds=1))) == {Level.OK}
    findings = await check(provider, later=25 * HOUR)
    assert (
        message(findings)
        == f"no billing event more than 24 h after the end of their period: 1 ({silent.id})"
    )
    assert "tenantry reconcile --org" in remedy(findings)
    assert "webhook endpoint" in remedy(findings)


async def test_subscriptions_without_a_customer_are_named(provider: Provider) -> None:
    gone, ended, other, present = [await provider.subscriber() for _ in range(4)]
    for subscriber in (gone, ended, other):
        deleted = {"object": "customer", "id": subscriber.customer}
        await provider.send(
            events.updated(**subscriber.names, status="past_due"),
            events.event("customer.deleted", deleted, created=NOW + 1),
        )
    await provider.send(
        events.updated(**present.names),
        events.deleted(**ended.names, created=NOW + 2),
        events.completed(org=other.id, customer="cus_of_another", created=NOW + 2),
    )
    findings = await check(provider)
    assert message(findings).endswith(f"no customer at the provider any more: 1 ({gone.id})")
    assert "tenantry admin link" in remedy(findings)


async def test_the_time_until_a_tenant_is_stale_is_a_setting(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**subscriber.names, period_end=NOW))
    impatient = checked_settings(livemode=False, STALE_TENANT_HOURS="1")
    assert "more than 1 h" in message(await check(provider, impatient, later=2 * HOUR))


async def test_tenants_that_are_not_compared_are_named(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.subscriber(linked=False)
    settings = checked_settings(livemode=False, RECONCILE_HOURS="2")
    assert levels(await check(provider, settings, later=5 * HOUR)) == {Level.OK}
    findings = await check(provider, settings, later=7 * HOUR)
    assert (
        message(findings)
        == f"not compared with the provider for more than 6 h: 1 ({subscriber.id})"
    )
    assert "tenantry worker" in remedy(findings)


async def test_a_comparison_counts_from_when_it_was_made(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    compared = provider.service.clock() + 5 * HOUR
    await rows(
        provider.service.conninfo,
        "UPDATE tenants SET reconciled_at = %s WHERE id = %s",
        compared,
        subscriber.id,
    )
    settings = checked_settings(livemode=False, RECONCILE_HOURS="2")
    assert levels(await check(provider, settings, later=10 * HOUR)) == {Level.OK}
    assert "not compared" in message(await check(provider, settings, later=12 * HOUR))


# Refunds and disputes


async def test_a_dispute_is_reported_until_an_event_says_more(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(charge_refunded(1000, customer=subscriber.customer), disputed())
    [dispute, refund] = [each for each in await check(provider) if each.level is not Level.OK]
    assert (dispute.level, refund.level) == (Level.WARNING, Level.INFO)
    assert f"1 (dp_1 of {subscriber.id})" in dispute.message
    assert dispute.tenants == [subscriber.id]
    assert refund.message == "refunds in the last 30 days: 1"
    await provider.send(disputed("charge.dispute.updated", status="under_review", at=NOW + 1))
    assert Level.WARNING not in levels(await check(provider))


async def test_a_failed_refund_is_reported(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(
        charge_refunded(1000, customer=subscriber.customer),
        refunded("refund.failed", status="failed", at=NOW + 1),
    )
    assert f"refunds in the last 30 days that failed: 1 (re_1 of {subscriber.id})" in message(
        await check(provider)
    )


# How the rows are found

SINCE: Final = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW: Final = {"since": SINCE, "most": 20, "entries": None}
STATEMENTS: Final[list[tuple[str, dict[str, Any]]]] = [
    (store.ANOMALIES, {**WINDOW, "prices": ["price"], "accounts": ["account"], "livemode": None}),
    (store.AMBIGUITIES, {**WINDOW, "kind": "x", "snapshot": SNAPSHOT}),
    (reconcile.DRIFT_AND_AMBIGUITY, {"drift": "x", "ambiguous": ["y"]}),
]


@pytest.fixture(scope="module")
def empty(postgres: PostgresServer) -> Iterator[str]:
    """A database without rows."""
    with postgres.database() as conninfo:
        yield conninfo


async def plan_of(conninfo: str, statement: str, parameters: dict[str, Any] | None) -> str:
    lane = Lane(FailoverDetector(for_writes(conninfo)))
    async with lane.use() as connection:
        cursor = await connection.execute(f"EXPLAIN {statement}".encode(), parameters)
        plan = "\n".join(row[0] for row in await cursor.fetchall())
    await lane.close()
    return plan


@pytest.mark.parametrize(("statement", "parameters"), STATEMENTS)
async def test_anomalies_are_found_by_their_index(
    empty: str, statement: str, parameters: dict[str, Any]
) -> None:
    plan = await plan_of(empty, statement, parameters)
    assert "billing_events_with_anomalies" in plan
    assert "Seq Scan" not in plan
