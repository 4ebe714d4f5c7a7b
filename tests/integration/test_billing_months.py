"""A quota by the billing month: the fold in the database, and consuming over the end of a month."""

import os
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import settings

from tenantry.auth.entitlements_store import billing_now
from tenantry.billing.ingest import WebhookService
from tenantry.db.connection import of_tenant
from tenantry.db.outbox import Outbox
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.entitlements import NO_BILLING, period_at
from tenantry.domain.features import Feature
from tests.support import events, figures
from tests.support.billing import add_tenants
from tests.support.billing_month_oracle import BillingDays
from tests.support.catalogs import COUNTED_BY_BILLING_MONTH, PLANS, catalog_file
from tests.support.facts import BY_BILLING_MONTH
from tests.support.patience import patient_database
from tests.support.postgres import PostgresServer
from tests.support.service import Organization, Service, refusal, running_service
from tests.support.signing import deliver

HISTORIES: Final = int(os.environ.get("TENANTRY_TEST_HISTORIES", 3 * settings().max_examples))
FEATURE: Final = Feature("exports", "metered", period="billing_month")
EXPORTS: Final = "/api/v1/entitlements/exports"
CATALOG: Final = COUNTED_BY_BILLING_MONTH + PLANS.replace(
    'id = "pro"', 'id = "pro"\nfeatures = {exports = 10}'
).replace('id = "free"', 'id = "free"\nfeatures = {exports = 5}')
ANCHOR: Final = datetime(2026, 1, 31, 10, 30, tzinfo=UTC)


def of_tenant_named(name: str, event: BillingEvent) -> ReceivedEvent:
    """The event as one of this tenant's."""
    own = msgspec.structs.replace(
        event,
        id=f"{name}_{event.id}",
        org_id=name,
        customer_id=f"cus_{name}",
        subscription_id=f"{name}_{event.subscription_id}",
    )
    return ReceivedEvent(own, datetime(2026, 11, 20, tzinfo=UTC))


@pytest.mark.parametrize("policy", BY_BILLING_MONTH, ids=lambda policy: policy.subscriptions)
async def test_use_counts_in_the_month_of_the_oracle_whatever_arrives_late(
    conninfo: str, policy: BillingPolicy, record_property: figures.RecordProperty
) -> None:
    histories = {}
    for seed in range(HISTORIES):
        histories[f"t_{seed}"] = BillingDays(random.Random(seed))  # noqa: S311
    await add_tenants(conninfo, {name: f"cus_{name}" for name in histories})
    database = patient_database(conninfo, pool_size=2)
    await database.open()
    ingest = WebhookService([database.lane()], policy, Outbox(), lambda: ANCHOR)
    compared, wrong = 0, list[str]()
    try:
        arriving = {name: each.delivered() for name, each in histories.items()}
        for turn in range(max(map(len, arriving.values()))):
            batch = [
                of_tenant_named(name, stream[turn])
                for name, stream in arriving.items()
                if turn < len(stream)
            ]
            assert not [each for each in await ingest.apply(batch) if isinstance(each, Exception)]
        for name, history in histories.items():
            async with database.transaction(of_tenant(name)) as connection:
                for second in history.seconds():
                    now = datetime.fromtimestamp(second, UTC)
                    billing = (await billing_now(connection, [name], now)).get(name, NO_BILLING)
                    compared += 1
                    if period_at(FEATURE, now, billing) != history.month(second):
                        wrong.append(f"{name} at {now}: {billing}")
    finally:
        await ingest.close()
        await database.close()
    figures.record(
        record_property,
        "Billing months in the database",
        {"comparisons": compared},
        {"tenantry": len(wrong)},
    )
    assert not wrong, wrong[:5]


@pytest.fixture
async def service(postgres: PostgresServer) -> AsyncIterator[Service]:
    with postgres.database() as conninfo:
        async with running_service(conninfo, TENANTRY_PLANS=catalog_file(CATALOG)) as service:
            yield service


async def subscribe(
    service: Service, org: Organization, anchor: datetime, price: str = "price_pro"
) -> None:
    """Deliver what the provider sends of a subscription whose anchor is this."""
    created = int(service.clock.now.timestamp())
    event = events.updated(
        event_id=f"evt_{created}",
        org=org.id,
        customer="cus_1",
        price=price,
        created=created,
        period_end=created + 300 * 86_400,
    )
    event["data"]["object"]["billing_cycle_anchor"] = int(anchor.timestamp())
    assert (await deliver(service.client, event, at=created)).status_code == 200


async def consume(service: Service, org: Organization, amount: int) -> dict[str, Any]:
    owner = service.user("first", org=org.id, role="owner")
    answer = await owner.post(f"{EXPORTS}/consume", {"amount": amount})
    assert answer.status_code == 200, answer.text
    consumed: dict[str, Any] = answer.json()
    assert (await owner.get(EXPORTS)).json()["resetsAt"] == consumed["resetsAt"]
    return consumed


async def test_quota_begins_anew_at_the_second_of_the_billing_day(service: Service) -> None:
    service.clock.now = ANCHOR
    org = await service.organization()
    await subscribe(service, org, ANCHOR)
    first = await consume(service, org, 10)
    assert first == {"used": 10, "remaining": 0, "resetsAt": "2026-02-28T10:30:00Z"}
    service.clock.now = datetime(2026, 2, 28, 10, 29, 59, tzinfo=UTC)
    owner = service.user("first", org=org.id, role="owner")
    refused = await owner.post(f"{EXPORTS}/consume", {"amount": 1})
    assert refusal(refused) == (403, "quota_exceeded")
    assert "until 2026-02-28T10:30:00Z" in refused.json()["detail"]
    service.clock.now = datetime(2026, 2, 28, 10, 30, tzinfo=UTC)
    second = await consume(service, org, 4)
    assert second == {"used": 4, "remaining": 6, "resetsAt": "2026-03-31T10:30:00Z"}


async def test_switch_to_a_year_and_back_gives_no_quota_within_the_month(service: Service) -> None:
    service.clock.now = ANCHOR
    org = await service.organization()
    await subscribe(service, org, ANCHOR)
    await consume(service, org, 7)
    for price in ("price_pro_yearly", "price_pro"):
        service.clock.now += timedelta(days=5)
        await subscribe(service, org, service.clock.now, price)
        kept = await consume(service, org, 1)
        assert (kept["used"], kept["resetsAt"]) == (
            8 if price == "price_pro_yearly" else 9,
            "2026-02-28T10:30:00Z",
        )
    service.clock.now = datetime(2026, 3, 1, tzinfo=UTC)
    rest = await consume(service, org, 1)
    assert (rest["used"], rest["resetsAt"]) == (1, "2026-03-10T10:30:00Z")


async def test_calendar_month_counts_until_a_subscription_gives_access(service: Service) -> None:
    service.clock.now = ANCHOR
    org = await service.organization()
    free = await consume(service, org, 2)
    assert free == {"used": 2, "remaining": 3, "resetsAt": "2026-02-01T00:00:00Z"}
    await subscribe(service, org, ANCHOR)
    paid = await consume(service, org, 2)
    assert paid == {"used": 2, "remaining": 8, "resetsAt": "2026-02-28T10:30:00Z"}
