"""Reading the billing ledger: a tenant's events for its principals, raw bodies and explanations for
the operator.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Final, Self

import msgspec

from tenantry.billing import ledger_queries_store as store
from tenantry.billing.accounts_store import read_accounts
from tenantry.billing.grants import grants_in_force
from tenantry.billing.ledger_queries_store import EventFilter, EventSubject, LedgerRecord
from tenantry.billing.ledger_store import customers_of
from tenantry.billing.replay import FieldComparison, compare
from tenantry.common.clock import from_epoch
from tenantry.common.encoding import doc
from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.numbered_pages import BY_ARRIVAL, NumberedPage, PageRequest, only_page
from tenantry.db.pagination import (
    Page,
    Position,
    decode_cursor,
    to_page,
)
from tenantry.db.tenants_store import find_tenant
from tenantry.domain.access import AccessEnding, endings
from tenantry.domain.billing.events import Outcome
from tenantry.domain.billing.ledger import BillingAccount
from tenantry.domain.billing.ledger_fold import FoldedLedger, LedgerFold
from tenantry.domain.billing.state import BillingPolicy, BillingState
from tenantry.domain.billing.subscription_choice import RankedSubscription, choice
from tenantry.domain.billing.subscription_rank import chosen_state
from tenantry.domain.errors import NotFoundError
from tenantry.domain.grants import Grant, grant_of
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.scopes import covers
from tenantry.domain.tenants import (
    EndsWithPeriod,
    PeriodEnd,
    PlanId,
    SubscriptionStatus,
    Tenant,
    is_tenant_id,
    to_tenant,
)

PAYER_SCOPE: Final = "billing:write"
"""The pages of invoices show the payer's data, as payloads do."""


class BillingFields(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a tenant that events write."""

    plan: PlanId
    subscription_status: SubscriptionStatus
    current_period_end: PeriodEnd
    cancel_at_period_end: EndsWithPeriod


class BillingEventView(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of the tenant's ledger: its outcome and reason, the tenant before and after, and
    anomalies.
    """

    id: Annotated[
        str,
        doc("The provider's event id; tenantry's own for its own types.", "evt_1SQk7xLm3Rk2pXw7"),
    ]
    type: Annotated[
        str,
        doc(
            "The provider's event type, `tenantry.subscription.snapshot` for a snapshot of the provider's API, "
            "`tenantry.access.ended` for access that ended by time, or `tenantry.grant.set` and "
            "`tenantry.grant.ended` for the operator's grants.",
            "customer.subscription.updated",
        ),
    ]
    created: Annotated[
        datetime,
        doc(
            "When the provider created the event; events are ordered by it.", "2026-11-01T00:00:02Z"
        ),
    ]
    received_at: Annotated[datetime, doc("When tenantry received it.", "2026-11-01T00:00:04Z")]
    livemode: Annotated[
        bool | None,
        doc(
            "Whether the event is of the provider's live mode; null if the event does not say.",
            example=True,
        ),
    ]
    outcome: Annotated[Outcome, doc("The effect of the event on arrival.", "applied")]
    reason: Annotated[
        str,
        doc(
            "The reason for the outcome.",
            "The subscription is active: price price_pro means plan pro.",
        ),
    ]
    before: Annotated[
        BillingFields | None,
        doc("The tenant's billing fields before the event; null if it is not part of the order."),
    ]
    after: Annotated[BillingFields | None, doc("The tenant's billing fields after the event.")]
    anomalies: Annotated[
        list[str],
        doc("Unexpected facts about the event, such as `unknown_price`; usually empty.", []),
    ]


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
        page = to_page(rows, limit, _position)
        return Page([view(row) for row in page.data], page.next_cursor)

    async def numbered_page(
        self, principal: RequestPrincipal, wanted: EventFilter, request: PageRequest
    ) -> NumberedPage[BillingEventView]:
        """Return a page of the events that match a filter; an event is found by its whole id among
        all. Raises `InvalidCursorError`.
        """
        org_id = principal.org_id
        async with self.database.transaction(of_tenant(org_id)) as connection:
            exact = await _find_exactly(connection, org_id, wanted)
            if exact is not None:
                return only_page([view(exact)])
            return await store.read_numbered(connection, org_id, wanted, request, view)

    async def newest_arrival(self, principal: RequestPrincipal) -> int:
        """Return the arrival number of the latest event; 0 if there is none."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await store.newest_arrival(connection, principal.org_id)

    async def get_body(self, principal: RequestPrincipal, event_id: str) -> bytes | None:
        """Return the raw body of an event; None if the tenant has no such event or its body was
        removed.
        """
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await store.find_body_of_tenant(connection, principal.org_id, event_id)

    async def get_event(self, principal: RequestPrincipal, event_id: str) -> BillingEventView:
        """Return one entry. Raises `NotFoundError`."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            row = await store.find_entry(connection, principal.org_id, event_id)
        if row is None:
            raise NotFoundError("billing event")
        return view(row)

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


def _position(row: LedgerRecord) -> Position:
    return Position(row.created, str(row.arrival))


def view(row: LedgerRecord) -> BillingEventView:
    """Return an entry as the API shows it."""
    return msgspec.convert(row, BillingEventView, from_attributes=True, strict=False)


async def raw_body(database: Database, event_id: str) -> bytes:
    """Return the raw body of an event of any tenant. Raises `NotFoundError`."""
    async with database.transaction(ACROSS_TENANTS) as connection:
        exists, body = (
            await store.find_body(connection, event_id) if event_id.isprintable() else (False, None)
        )
    if not exists:
        raise NotFoundError(f"event: {event_id}")
    if body is None:
        raise NotFoundError(
            f"body: {event_id} is a snapshot, older than RAW_BODY_DAYS, or excluded by RAW_BODIES"
        )
    return body


class StateView(BillingFields, frozen=True):
    """A tenant's whole billing state: the fields of the API, and those that only the fold needs."""

    provider_status: str | None
    subscription_id: str | None
    subscription_created: datetime | None


class SubscriptionView(msgspec.Struct, frozen=True, rename="camel"):
    """One subscription of a tenant, with the reason why it counts for the tenant or does not."""

    id: str
    plan: str
    status: str
    seats: int | None
    current_period_end: datetime | None
    cancel_at_period_end: bool
    cancel_at: datetime | None
    past_due_since: datetime | None
    ended_at: datetime | None
    reason: str

    @classmethod
    def of(cls, state: BillingState, reason: str) -> Self:
        """Show the state of a subscription."""
        details = state.details
        return cls(
            state.subscription_id or "",
            state.plan,
            state.subscription_status,
            state.seats,
            from_epoch(state.current_period_end),
            state.cancel_at_period_end,
            from_epoch(details.cancel_at),
            from_epoch(state.past_due_since),
            from_epoch(details.ended_at),
            reason,
        )


class EndingView(msgspec.Struct, frozen=True, rename="camel"):
    """What ends by time of a tenant's access, in words, with the names of the ``grants`` that end
    then; the plan whose limits count afterwards, and why.
    """

    at: datetime
    ends: str
    grants: tuple[str, ...]
    plan: str
    reason: str

    @classmethod
    def of(cls, ending: AccessEnding, grants: Iterable[Grant]) -> Self:
        """Show an ending of a tenant with these grants."""
        names = tuple(grant.name for grant in grants if grant.until == ending.at)
        return cls(ending.at, ending.words, names, ending.after.plan, ending.after.reason)


class BillingExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """A tenant and its history: its ledger entries as the API shows them, oldest first.

    ``endings`` is what ends by time, in order. ``earlier`` is the number of entries left out.
    ``subscriptions`` has the one that counts first; it is empty unless each has its own state.
    ``differences`` are the stored fields that differ from the fold of all ``events``; ``parked`` is
    the number of parked events that can be applied.
    """

    tenant: Tenant
    grants: tuple[Grant, ...]
    endings: tuple[EndingView, ...]
    customers: tuple[str, ...]
    suspended: bool
    ended: bool
    earlier: int
    entries: tuple[BillingEventView, ...]
    state: StateView
    subscriptions: tuple[SubscriptionView, ...]
    events: int
    differences: tuple[FieldComparison, ...]
    parked: int


async def explain(
    database: Database, policy: BillingPolicy, tenant_id: str, limit: int, now: datetime
) -> BillingExplanation:
    """Return the newest ``limit`` entries of a tenant, and its state at ``now``. Raises
    `NotFoundError`.
    """
    if not is_tenant_id(tenant_id):
        raise NotFoundError(f"tenant: {tenant_id}")
    async with database.transaction(of_tenant(tenant_id), is_snapshot=True) as connection:
        found = await find_tenant(connection, tenant_id)
        if found is None:
            raise NotFoundError(f"tenant: {tenant_id}")
        [account] = await read_accounts(connection, [tenant_id], policy)
        newest_first = await store.read_entries(connection, tenant_id, limit, None)
        records = newest_first[limit - 1 :: -1]
        folded, in_order = await _fold(
            connection, account, policy, {record.id: record for record in records}
        )
        async with connection.within(ACROSS_TENANTS):  # parked events have no tenant
            parked = await store.parked_for(connection, [tenant_id])
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
            endings=tuple(
                EndingView.of(ending, grants)
                for ending in endings(found.record.access, now.timestamp())
            ),
            customers=tuple(await customers_of(connection, tenant_id)),
            suspended=found.suspended,
            ended=found.deleted,
            earlier=await store.count_entries(connection, tenant_id) - len(records),
            entries=tuple(map(view, _in_places(records, in_order))),
            state=shown,
            subscriptions=tuple(chosen),
            events=folded.events,
            differences=tuple(field for field in compared if field.differs),
            parked=parked.get(tenant_id, 0),
        )


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
    return (
        f"{ranked.reason} Its metadata name another tenant since {moved_at:%Y-%m-%d %H:%M:%S} UTC."
    )


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
