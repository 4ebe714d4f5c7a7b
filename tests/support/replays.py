"""Replay of ledgers, and tenants with a damaged ledger or state."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tenantry.billing.replay import ReplayService, Selection, TenantReplay
from tenantry.domain.billing.state import BillingPolicy
from tests.support import events
from tests.support.billing import Provider, Subscriber, rows
from tests.support.catalogs import CATALOG
from tests.support.events import NOW
from tests.support.patience import patient_database

POLICY: Final = BillingPolicy(catalog=CATALOG)
HOUR: Final = 3600
LATER: Final = datetime.fromtimestamp(NOW, UTC) + timedelta(days=1)
ALL: Final = Selection()


@asynccontextmanager
async def replaying(conninfo: str, policy: BillingPolicy = POLICY) -> AsyncIterator[ReplayService]:
    """The service of replays, a day after the events of the tests."""
    database = patient_database(conninfo, pool_size=1)
    await database.open()
    try:
        yield ReplayService(database, policy, lambda: LATER)
    finally:
        await database.close()


async def replay(
    conninfo: str,
    selection: Selection = ALL,
    *,
    dry_run: bool = False,
    policy: BillingPolicy = POLICY,
) -> dict[str, TenantReplay]:
    """What a replay says of each tenant."""
    async with replaying(conninfo, policy) as service:
        chunks = [chunk async for chunk in service.run(selection, dry_run=dry_run)]
    return {checked.tenant_id: checked for chunk in chunks for checked in chunk.checked}


async def replay_one(provider: Provider, subscriber: Subscriber, **options: Any) -> TenantReplay:
    """What a replay says of one tenant; ``options`` are those of `replay`."""
    checked = await replay(provider.service.conninfo, Selection((subscriber.id,)), **options)
    return checked[subscriber.id]


async def with_history(provider: Provider) -> Subscriber:
    """A tenant whose renewal failed after an upgrade, with a late event and a tie."""
    subscriber = await provider.subscriber()
    await provider.send(
        events.updated(**subscriber.names, status="trialing", created=NOW - 9 * HOUR),
        events.failed(customer=subscriber.customer, created=NOW),
        events.updated(
            **subscriber.names,
            price="price_business",
            created=NOW - HOUR,
            previous={"cancel_at_period_end": True},
        ),
        events.updated(**subscriber.names, cancel=True, price="price_business", created=NOW - HOUR),
    )
    return subscriber


async def corrupt(provider: Provider, subscriber: Subscriber, assignment: str) -> None:
    """Set columns of a tenant to what its ledger does not say."""
    statement = f"UPDATE tenants SET {assignment} WHERE id = %s"  # noqa: S608  # the test's own words
    await rows(provider.service.conninfo, statement, subscriber.id)


def with_fold(**facts: str) -> str:
    """The assignment of facts to the one fold, as JSON by path, such as ``state__plan``."""
    folds = "folds::jsonb"
    for path, value in facts.items():
        keys = path.replace("__", ",")
        folds = f"""jsonb_set({folds}, '{{"",{keys}}}', '{value}')"""
    return f"folds = {folds}::json"


def fields(checked: TenantReplay) -> set[str]:
    """The fields in which what is stored differs."""
    return {field.field for field in checked.differences}
