"""Explaining a tenant's billing state: its ledger in the order of the fold."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby

import msgspec

from tenantry.billing import replay_store as store
from tenantry.billing.ledger_queries import BillingEventView, BillingFields, view
from tenantry.billing.ledger_queries_store import LedgerRecord, read_entries
from tenantry.billing.ledger_store import customers_of
from tenantry.billing.replay import FieldComparison, compare
from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.tenants_store import find_tenant
from tenantry.domain.billing.ledger import BillingAccount
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.billing.timeline import Fold, Folded, ReplayDepth
from tenantry.domain.errors import NotFoundError
from tenantry.domain.tenants import Tenant, is_tenant_id


class StateView(BillingFields, frozen=True):
    """A tenant's whole billing state: the fields of the API, and those that only the fold needs."""

    provider_status: str | None
    subscription_id: str | None
    subscription_created: datetime | None


class BillingExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """A tenant and its history: its ledger entries as the API shows them, oldest first.

    ``earlier`` is the number of entries left out. ``differences`` are the stored fields that differ from the fold of
    all ``events``; ``parked`` is the number of parked events that can be applied.
    """

    tenant: Tenant
    base_plan: str
    customers: tuple[str, ...]
    suspended: bool
    ended: bool
    earlier: int
    entries: tuple[BillingEventView, ...]
    state: StateView
    events: int
    differences: tuple[FieldComparison, ...]
    parked: int


async def explain(database: Database, policy: BillingPolicy, tenant_id: str, limit: int) -> BillingExplanation:
    """Return the newest ``limit`` entries of a tenant, and its state. Raises `NotFoundError`."""
    if not is_tenant_id(tenant_id):
        raise NotFoundError(f"tenant: {tenant_id}")
    async with database.transaction(of_tenant(tenant_id), is_snapshot=True) as connection:
        found = await find_tenant(connection, tenant_id)
        if found is None:
            raise NotFoundError(f"tenant: {tenant_id}")
        [account] = await store.read_accounts(connection, [tenant_id])
        newest_first = await read_entries(connection, tenant_id, limit, None)
        records = newest_first[limit - 1 :: -1]
        folded, ranks = await _fold(connection, account, policy, {record.id for record in records})
        async with connection.within(ACROSS_TENANTS):  # parked events have no tenant
            parked = await store.parked_for(connection, [tenant_id])
        return BillingExplanation(
            tenant=found.record,
            base_plan=account.base_plan,
            customers=tuple(await customers_of(connection, tenant_id)),
            suspended=found.suspended,
            ended=found.deleted,
            earlier=await store.count_entries(connection, tenant_id) - len(records),
            entries=tuple(view(record) for record in _in_order_of_fold(records, ranks)),
            state=msgspec.convert(account.state, StateView, from_attributes=True, strict=False),
            events=folded.events,
            differences=tuple(field for field in compare(account, folded) if field.differs),
            parked=parked.get(tenant_id, 0),
        )


async def _fold(
    connection: Connection, account: BillingAccount, policy: BillingPolicy, wanted: set[str]
) -> tuple[Folded, dict[str, int]]:
    """Fold the tenant's events; return also the places of the wanted ones in their order."""
    fold, order = Fold(account.checkpoint(ReplayDepth.BEGINNING), policy), list[str]()
    async with store.folded_events(connection, [account.tenant_id]) as events:
        async for _, event in events:
            order += [folded.id for folded, _ in fold.add(event) if folded.id in wanted]
    result, last = fold.end()
    order += [folded.id for folded, _ in last if folded.id in wanted]
    return result, {event_id: rank for rank, event_id in enumerate(order)}


def _in_order_of_fold(records: Sequence[LedgerRecord], ranks: dict[str, int]) -> Iterator[LedgerRecord]:
    """Sort entries of each second in the order of the fold; entries that were not folded keep their places."""
    for _, second in groupby(records, key=lambda record: record.created):
        together = list(second)
        folded = iter(sorted((one for one in together if one.id in ranks), key=lambda one: ranks[one.id]))
        yield from (next(folded) if record.id in ranks else record for record in together)
