"""Reading the billing ledger: a tenant's events for its principals, raw bodies and explanations for
the operator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Final

import msgspec

from tenantry.billing import ledger_queries_store as store
from tenantry.billing.batch_store import read_accounts
from tenantry.billing.grants import grants_in_force
from tenantry.billing.ledger_queries_store import EventFilter, EventSubject, LedgerRecord
from tenantry.billing.ledger_store import customers_of
from tenantry.billing.replay import compare
from tenantry.common.clock import Clock, from_epoch
from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.numbered_pages import NumberedPage, PageRequest, only_page
from tenantry.db.pagination import BY_ARRIVAL, Page, decode_cursor, to_page
from tenantry.db.tenants_store import TenantRow, find_tenant, get_tenant
from tenantry.domain.access import endings
from tenantry.domain.billing.explanation import (
    BillingEventView,
    BillingExplanation,
    BillingFields,
    EndingView,
    StateView,
    SubscriptionView,
)
from tenantry.domain.billing.ledger import BillingAccount
from tenantry.domain.billing.ledger_fold import FoldedLedger, LedgerFold
from tenantry.domain.billing.state import BillingPolicy, BillingState
from tenantry.domain.billing.subscription_choice import RankedSubscription, choice
from tenantry.domain.billing.subscription_rank import chosen_state
from tenantry.domain.errors import NotFoundError
from tenantry.domain.grants import Grant, GrantTerms, grant_of
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.scopes import covers
from tenantry.domain.tenants import (
    is_tenant_id,
    to_tenant,
)

PAYER_SCOPE: Final = "billing:write"
"""The pages of invoices show the payer's data, as payloads do."""


class BillingOutline(msgspec.Struct, frozen=True):
    """What decides a tenant's state beside its subscriptions and grants.

    ``subscription_id`` is that of the state with `SubscriptionRule.ANY`; ``parked`` is the number
    of parked events that can be applied.
    """

    customers: tuple[str, ...]
    endings: tuple[EndingView, ...]
    subscription_id: str | None
    parked: int


class HistoryState(BillingFields, frozen=True):
    """The fields of a tenant that events write, with its seats and the end of its subscription."""

    seats: int | None = None
    ends_at: datetime | None = None

    @property
    def has_end(self) -> bool:
        """Whether the subscription will end."""
        return self.cancel_at_period_end or self.ends_at is not None


class HistoryEntry(BillingEventView, frozen=True):
    """An entry as pages tell it to a tenant's users.

    ``amount`` is what remained to be paid of its invoice, or all of a paid one, or that of its
    refund or dispute, in the smallest unit of ``currency``.
    """

    subscription_id: str | None
    before: HistoryState | None
    after: HistoryState | None
    amount: int | None
    currency: str | None
    grant: GrantTerms | None


@dataclass(frozen=True)
class LedgerQueries:
    database: Database

    async def list_events(
        self, principal: RequestPrincipal, limit: int, cursor: str | None
    ) -> Page[BillingEventView]:
        """Return a page of the ledger, the newest event first. Raises `InvalidCursorError`."""
        after = None if cursor is None else BY_ARRIVAL.values(decode_cursor(cursor))
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            rows = await store.read_entries(connection, principal.org_id, limit, after)
        page = to_page(rows, limit, lambda row: BY_ARRIVAL.position(row.created, row.arrival))
        return Page([view(row) for row in page.data], page.next_cursor)

    async def numbered_page(
        self, principal: RequestPrincipal, wanted: EventFilter, request: PageRequest
    ) -> NumberedPage[HistoryEntry]:
        """Return a page of the events that match a filter; an event is found by its whole id among
        all. Raises `InvalidCursorError`.
        """
        org_id = principal.org_id
        async with self.database.transaction(of_tenant(org_id)) as connection:
            exact = await _find_exactly(connection, org_id, wanted)
            if exact is not None:
                return only_page([history_entry(exact)])
            return await store.read_numbered(connection, org_id, wanted, request, history_entry)

    async def newest_arrival(self, principal: RequestPrincipal) -> int:
        """Return the arrival number of the latest event; 0 if there is none."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await store.newest_arrival(connection, principal.org_id)

    async def get_event(self, principal: RequestPrincipal, event_id: str) -> BillingEventView:
        """Return one entry as the API shows it. Raises `NotFoundError`."""
        return view(await self._record(principal, event_id))

    async def get_history_entry(self, principal: RequestPrincipal, event_id: str) -> HistoryEntry:
        """Return one entry as pages show it. Raises `NotFoundError`."""
        return history_entry(await self._record(principal, event_id))

    async def _record(self, principal: RequestPrincipal, event_id: str) -> LedgerRecord:
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            row = await store.find_entry(connection, principal.org_id, event_id)
        if row is None:
            raise NotFoundError("billing event")
        return row

    async def get_subject(self, principal: RequestPrincipal, event_id: str) -> EventSubject:
        """Return what an event is about; the page of its invoice only for principals who may pay.
        Raises `NotFoundError`.
        """
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            subject = await store.find_subject(connection, principal.org_id, event_id)
        if subject is None:
            raise NotFoundError("billing event")
        if covers(principal.scopes, PAYER_SCOPE) and is_link(subject.invoice_url):
            return subject
        return msgspec.structs.replace(subject, invoice_url=None)


async def _find_exactly(
    connection: Connection, tenant_id: str, wanted: EventFilter
) -> LedgerRecord | None:
    """Return the event whose whole id a filter searches for, if the filter matches it."""
    if wanted.search is None:
        return None
    record = await store.find_entry(connection, tenant_id, wanted.search)
    if record is None or wanted.event_type not in (None, record.type):
        return None
    return record if wanted.outcome in (None, record.outcome) else None


def is_link(url: str | None) -> bool:
    """Whether an address of the provider is one that a page may link to."""
    return (url or "").startswith(("https://", "http://"))


def view(row: LedgerRecord) -> BillingEventView:
    """Return an entry as the API shows it."""
    return msgspec.convert(row, BillingEventView, from_attributes=True, strict=False)


def history_entry(row: LedgerRecord) -> HistoryEntry:
    """Return an entry as pages tell it to a tenant's users."""
    return msgspec.convert(row, HistoryEntry, from_attributes=True, strict=False)


@dataclass(frozen=True)
class OperatorLedger:
    """The ledger of all tenants, for the operator."""

    database: Database
    policy: BillingPolicy
    clock: Clock

    async def get_body(self, event_id: str) -> bytes:
        """Return what the provider sent for an event of any tenant. Raises `NotFoundError` without
        such an event, or its body.
        """
        if not event_id.isprintable():
            raise NotFoundError("event")
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            exists, body = await store.find_body(connection, event_id)
        if not exists:
            raise NotFoundError(f"event: {event_id}")
        if body is None:
            raise NotFoundError(
                f"body: {event_id} is a snapshot, older than RAW_BODY_DAYS, or excluded by RAW_BODIES"
            )
        return body

    async def explain(self, tenant_id: str, limit: int) -> BillingExplanation:
        """Return the newest ``limit`` entries of a tenant, also of an ended one, and its state now.
        All its events are folded. Raises `NotFoundError`.
        """
        if not is_tenant_id(tenant_id):
            raise NotFoundError(f"tenant: {tenant_id}")
        scope = of_tenant(tenant_id)
        async with self.database.transaction(scope, is_snapshot=True) as connection:
            found = await find_tenant(connection, tenant_id)
            if found is None:
                raise NotFoundError(f"tenant: {tenant_id}")
            return await _explained(connection, self.policy, found, limit, self.clock())

    async def outline(self, tenant_id: str) -> BillingOutline:
        """Return what decides a tenant's state, without a look at its events. Raises
        `NotFoundError`.
        """
        now = self.clock()
        async with self.database.transaction(of_tenant(tenant_id), is_snapshot=True) as connection:
            found = await get_tenant(connection, tenant_id)
            [account] = await read_accounts(connection, [tenant_id], self.policy)
            grants = tuple(map(grant_of, grants_in_force(account, now)))
            return BillingOutline(
                customers=tuple(await customers_of(connection, tenant_id)),
                endings=_endings(found, grants, now),
                subscription_id=account.state.subscription_id,
                parked=await _count_parked(connection, tenant_id),
            )


async def _explained(
    connection: Connection,
    policy: BillingPolicy,
    found: TenantRow,
    limit: int,
    now: datetime,
) -> BillingExplanation:
    tenant_id = found.record.id
    [account] = await read_accounts(connection, [tenant_id], policy)
    newest_first = await store.read_entries(connection, tenant_id, limit, None)
    records = newest_first[limit - 1 :: -1]
    folded, in_order = await _fold(
        connection, account, policy, {record.id: record for record in records}
    )
    compared = compare(account, folded.account, policy)
    tenant = to_tenant(found.record, policy.catalog, now)
    grants = tuple(map(grant_of, grants_in_force(folded.account, now)))
    state, chosen = _choose(account, policy, now)
    # the plan of a grant is the tenant's, and not that of the subscription's fold
    shown = msgspec.structs.replace(
        msgspec.convert(state, StateView, from_attributes=True, strict=False), plan=tenant.plan
    )
    return BillingExplanation(
        tenant=tenant,
        grants=grants,
        endings=_endings(found, grants, now),
        customers=tuple(await customers_of(connection, tenant_id)),
        suspended=found.suspended,
        ended=found.deleted,
        earlier=await store.count_entries(connection, tenant_id) - len(records),
        entries=tuple(map(view, _in_places(records, in_order))),
        state=shown,
        subscriptions=tuple(chosen),
        events=folded.events,
        differences=tuple(field for field in compared if field.differs),
        parked=await _count_parked(connection, tenant_id),
    )


def _endings(found: TenantRow, grants: Sequence[Grant], now: datetime) -> tuple[EndingView, ...]:
    coming = endings(found.record.access, now.timestamp())
    return tuple(EndingView.of(ending, grants) for ending in coming)


async def _count_parked(connection: Connection, tenant_id: str) -> int:
    """Count the parked events that can be applied to a tenant; they have none yet."""
    async with connection.within(ACROSS_TENANTS):
        parked = await store.parked_for(connection, [tenant_id])
    return parked.get(tenant_id, 0)


def _choose(
    account: BillingAccount, policy: BillingPolicy, now: datetime
) -> tuple[BillingState, list[SubscriptionView]]:
    """Return a tenant's state, and its subscriptions if each has its own state."""
    if not policy.is_each or not account.has_status:
        return account.state, []
    states, grants = account.states(), account.grants()
    ranked = choice(states, policy, now.timestamp(), grants)
    shown = [SubscriptionView.of(each.state, _reason(account, each)) for each in ranked]
    return chosen_state(states, grants, policy), shown


def _in_places(
    records: Sequence[LedgerRecord], folded: Sequence[LedgerRecord]
) -> list[LedgerRecord]:
    """Return records with those that were ``folded`` in the order of the fold; others keep their
    places.
    """
    ids, following = {record.id for record in folded}, iter(folded)
    return [next(following) if record.id in ids else record for record in records]


def _reason(account: BillingAccount, ranked: RankedSubscription) -> str:
    moved_at = from_epoch(account.moved_at.get(ranked.state.subscription_id or ""))
    if moved_at is None:
        return ranked.reason
    return f"{ranked.reason} Its metadata name another organization since {moved_at:%Y-%m-%d %H:%M:%S} UTC."


async def _fold(
    connection: Connection,
    account: BillingAccount,
    policy: BillingPolicy,
    records: Mapping[str, LedgerRecord],
) -> tuple[FoldedLedger, list[LedgerRecord]]:
    """Fold the tenant's events; return also these records of them in their order."""
    ledger, order = LedgerFold(account, policy), list[LedgerRecord]()
    async with store.folded_events(connection, [account.tenant_id]) as events:
        async for _, event in events:
            order += [records[folded.id] for folded, _ in ledger.add(event) if folded.id in records]
    result, last = ledger.end()
    order += [records[folded.id] for folded, _ in last if folded.id in records]
    # each fold has its own order within a second
    return result, sorted(order, key=attrgetter("created"))
