"""Why a tenant's billing state is what it is: its ledger in the order of the fold."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby

import msgspec

from tenantry.billing import ledger_store as billing
from tenantry.billing import replay_store as replay
from tenantry.billing.ledger_store import LedgerRecord
from tenantry.billing.reads import BillingEventView, BillingFields, view
from tenantry.billing.replay import Field, compare
from tenantry.common.clock import from_epoch
from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.tenants_store import find_tenant
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import Account
from tenantry.domain.billing.refold import Refold, Refolded
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.billing.timeline import ReplayDepth
from tenantry.domain.errors import NotFoundError
from tenantry.domain.tenants import Tenant, is_tenant_id


class StateView(BillingFields, frozen=True):
    """A tenant's whole billing state: what the API shows, and what the fold keeps beside it."""

    provider_status: str | None
    subscription_id: str | None
    subscription_created: datetime | None


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """A tenant and how it came to be so: its entries as the API gives them, oldest first.

    ``earlier`` entries are left out. ``differences`` are where the present state is not what the fold of all its
    ``events`` gives; ``parked`` events wait although the tenant is known.
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
    differences: tuple[Field, ...]
    parked: int


class ExplainService:
    """Reads a tenant's history, and folds it again."""

    def __init__(self, database: Database, policy: BillingPolicy) -> None:
        self._database = database
        self._policy = policy

    async def explain(self, tenant_id: str, limit: int) -> Explanation:
        """The newest ``limit`` entries of a tenant, and its state. Raises `NotFoundError`."""
        if not is_tenant_id(tenant_id):
            raise NotFoundError(f"tenant: {tenant_id}")
        async with self._database.transaction(of_tenant(tenant_id), is_snapshot=True) as connection:
            found = await find_tenant(connection, tenant_id)
            if found is None:
                raise NotFoundError(f"tenant: {tenant_id}")
            [account] = await replay.read_accounts(connection, [tenant_id])
            newest_first = await billing.read_entries(connection, tenant_id, limit, None)
            records = newest_first[limit - 1 :: -1]
            refolded, ranks = await self._fold(connection, account, {record.id for record in records})
            async with connection.within(ACROSS_TENANTS):  # no tenant's yet
                parked = await replay.parked_for(connection, [tenant_id])
            return Explanation(
                tenant=found.record,
                base_plan=account.base_plan,
                customers=tuple(await billing.customers_of(connection, tenant_id)),
                suspended=found.suspended,
                ended=found.deleted,
                earlier=await replay.count_entries(connection, tenant_id) - len(records),
                entries=tuple(view(record) for record in _in_order_of_fold(records, ranks)),
                state=_state(account),
                events=refolded.events,
                differences=tuple(field for field in compare(account, refolded) if field.differs),
                parked=parked.get(tenant_id, 0),
            )

    async def _fold(
        self, connection: Connection, account: Account, wanted: set[str]
    ) -> tuple[Refolded, dict[str, int]]:
        """What the tenant's events lead to, and the places of the wanted ones in their order."""
        fold = Refold(account.checkpoint(ReplayDepth.BEGINNING), self._policy)
        ranks: dict[str, int] = {}

        def rank(ordered: Sequence[BillingEvent]) -> None:
            for event in ordered:
                if event.id in wanted:
                    ranks[event.id] = len(ranks)

        async with replay.folded_events(connection, [account.tenant_id]) as events:
            async for _, event in events:
                rank(fold.take(event))
        refolded, last = fold.end()
        rank(last)
        return refolded, ranks


def _in_order_of_fold(records: Sequence[LedgerRecord], ranks: dict[str, int]) -> Iterator[LedgerRecord]:
    """Entries sorted by ``created`` and arrival, with those that were folded in the order of the fold.

    The others, which the order says nothing of, keep their places.
    """
    for _, second in groupby(records, key=lambda record: record.created):
        together = list(second)
        folded = iter(sorted((one for one in together if one.id in ranks), key=lambda one: ranks[one.id]))
        yield from (next(folded) if record.id in ranks else record for record in together)


def _state(account: Account) -> StateView:
    state = account.state
    return StateView(
        plan=state.plan,
        subscription_status=state.subscription_status,
        current_period_end=from_epoch(state.current_period_end),
        cancel_at_period_end=state.cancel_at_period_end,
        provider_status=state.provider_status,
        subscription_id=state.subscription_id,
        subscription_created=from_epoch(state.subscription_created),
    )
