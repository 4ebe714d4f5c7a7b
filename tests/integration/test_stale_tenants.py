"""Stale tenants, whose paid period is over without a newer event: which count, and where they are
reported.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pytest

from tenantry.billing import reconcile_store as store
from tenantry.billing.stale_tenants import count_stale_tenants
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tests.support import events
from tests.support.billing import Provider, Subscriber, rows
from tests.support.events import MONTH, NOW
from tests.support.patience import patient_database
from tests.support.service import Service

CountStale = Callable[[], Awaitable[int]]

HOUR: Final = 3600
PATIENCE: Final = timedelta(hours=24)
LONG_AGO: Final = NOW - 25 * HOUR


@pytest.fixture
def provider(emptied_service: Service) -> Provider:
    return Provider(emptied_service)


@pytest.fixture
async def database(emptied: str) -> AsyncIterator[Database]:
    database = patient_database(emptied, pool_size=1)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
def count_stale(database: Database, emptied_service: Service) -> CountStale:
    return partial(count_stale_tenants, database, PATIENCE, emptied_service.clock)


async def subscriber(
    provider: Provider, *, period_end: int | None = LONG_AGO, **fields: Any
) -> Subscriber:
    """A tenant whose paid period ends then."""
    made = await provider.subscriber()
    await provider.send(
        events.updated(**made.names, created=LONG_AGO - MONTH, period_end=period_end, **fields)
    )
    return made


@pytest.mark.parametrize(
    "status", ["active", "trialing", "past_due", "unpaid", "paused", "incomplete"]
)
async def test_a_tenant_whose_period_ended_without_a_newer_event_is_stale(
    provider: Provider, count_stale: CountStale, status: str
) -> None:
    await subscriber(provider, status=status)
    assert await count_stale() == 1


@pytest.mark.parametrize("period_end", [NOW + MONTH, NOW - 23 * HOUR, None])
async def test_a_tenant_in_its_period_or_just_after_it_is_not_stale(
    provider: Provider, count_stale: CountStale, period_end: int | None
) -> None:
    await subscriber(provider, period_end=period_end)
    assert await count_stale() == 0


@pytest.mark.parametrize("status", ["canceled", "incomplete_expired"])
async def test_a_tenant_with_an_ended_subscription_is_not_stale(
    provider: Provider, count_stale: CountStale, status: str
) -> None:
    await subscriber(provider, status=status)
    assert await count_stale() == 0


async def test_a_renewed_tenant_is_not_stale(provider: Provider, count_stale: CountStale) -> None:
    made = await subscriber(provider)
    await provider.send(events.updated(**made.names, created=NOW, period_end=NOW + MONTH))
    assert await count_stale() == 0


async def test_a_canceled_tenant_is_not_stale(provider: Provider, count_stale: CountStale) -> None:
    made = await subscriber(provider)
    await provider.send(events.deleted(**made.names, created=NOW))
    assert await count_stale() == 0


async def test_a_deleted_tenant_is_not_stale(provider: Provider, count_stale: CountStale) -> None:
    made = await subscriber(provider)
    await provider.service.operator.delete(f"/api/v1/tenants/{made.id}")
    assert await count_stale() == 0


async def test_a_tenant_without_a_subscription_is_not_stale(
    provider: Provider, count_stale: CountStale
) -> None:
    made = await provider.subscriber()
    await rows(
        provider.service.conninfo, "UPDATE tenants SET plan = 'business' WHERE id = %s", made.id
    )
    assert await count_stale() == 0


async def test_the_next_check_replaces_the_stored_number(
    provider: Provider, count_stale: CountStale, database: Database
) -> None:
    made = [await subscriber(provider) for _ in range(2)]
    await count_stale()
    async with database.transaction(ACROSS_TENANTS) as connection:
        assert await store.read_findings(connection) == {"stale_tenants": 2}
    for each in made:
        await provider.send(events.deleted(**each.names, created=NOW))
    await count_stale()
    async with database.transaction(ACROSS_TENANTS) as connection:
        assert await store.read_findings(connection) == {"stale_tenants": 0}


async def test_the_log_names_the_stalest_tenants(
    provider: Provider, count_stale: CountStale, caplog: pytest.LogCaptureFixture
) -> None:
    made = [await subscriber(provider, period_end=LONG_AGO - age * HOUR) for age in (1, 3, 2)]
    with caplog.at_level(logging.WARNING, "tenantry.billing.stale_tenants"):
        await count_stale()
    named = ", ".join(made[place].id for place in (1, 2, 0))
    assert caplog.messages == [
        f"tenants whose period ended more than 24 h ago without an event since: 3 ({named})"
    ]
