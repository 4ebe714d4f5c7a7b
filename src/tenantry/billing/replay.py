"""Replay: fold ledgers again, compare the result with the stored state, and repair differences.
Sends no mail.
"""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Final

import msgspec

from tenantry.billing import ledger_queries_store as store
from tenantry.billing import ledger_store
from tenantry.billing.batch_store import read_accounts
from tenantry.billing.ingest import WebhookService, shown_outcome
from tenantry.billing.ledger_queries_store import ReplaceableEntries
from tenantry.billing.ledger_run import LedgerRun
from tenantry.billing.locked_ledger import LedgerTransaction
from tenantry.billing.locked_tenants import claim_tenant, lock_subscriptions, lock_tenant
from tenantry.billing.whole_ledgers import fold_ledgers
from tenantry.common.clock import EPOCH_MAX, Clock, from_epoch
from tenantry.common.encoding import camel_case
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.billing import customer_links
from tenantry.domain.billing.anomalies import rejection
from tenantry.domain.billing.events import NO_DETAILS, Fact
from tenantry.domain.billing.explanation import CHECKPOINT, FieldComparison
from tenantry.domain.billing.ledger import (
    AccountChange,
    BillingAccount,
    KnownTenants,
    ReceivedEvent,
)
from tenantry.domain.billing.ledger_fold import FoldedLedger
from tenantry.domain.billing.state import (
    BillingPolicy,
    BillingState,
    KnownSubscription,
    is_grant_key,
)
from tenantry.domain.billing.timeline import Folded
from tenantry.domain.errors import NotFoundError
from tenantry.domain.tenants import is_tenant_id
from tenantry.integrations.stripe.decode import NotAnEventError, decode_event

TENANTS_PER_CHUNK: Final = 200
_EVENTS_PER_CHUNK: Final = 100
_STATE: Final = "state."
"""Before the fields of a tenant's one fold that the record has too. They are shown only where the
record's are right.
"""
_TIMES: Final = frozenset(
    {
        "currentPeriodEnd",
        "subscriptionCreated",
        "tipCreated",
        "cancelAt",
        "endsAt",
        "reportedAt",
        "pastDueSince",
    }
)


class Selection(msgspec.Struct, frozen=True):
    """Selects tenants: all or these, and of them only those with an event received since a moment.

    And only those whose id is greater than ``after``. Of the invalid events, which name no tenant,
    at most about ``most_invalid`` are read again: the newest.
    """

    tenants: tuple[str, ...] | None = None
    since: datetime | None = None
    after: str = ""
    most_invalid: int | None = None


class TenantReplay(msgspec.Struct, frozen=True, rename="camel"):
    """The replay of a tenant: how many events were folded, the result, and whether it was written.

    ``parked`` is the number of parked events that can be applied because their tenant is known.
    """

    tenant_id: str
    events: int
    fields: tuple[FieldComparison, ...]
    parked: int = 0
    repaired: bool = False

    @property
    def differences(self) -> tuple[FieldComparison, ...]:
        return tuple(field for field in self.fields if field.differs)

    @property
    def is_right(self) -> bool:
        return not self.parked and not self.differences


class ReplayChunk(msgspec.Struct, frozen=True):
    """A part of a replay: how many tenants were looked at, the last one's id, and those of them
    that were folded.

    ``moved`` are the tenants that lose or get a subscription that several have, by id: in a last
    part.
    """

    tenants: int
    last: str
    checked: tuple[TenantReplay, ...]
    moved: tuple[str, ...] = ()


class ReprocessedEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event that was invalid or excluded, and is neither now. ``outcome`` is None in a dry
    run.
    """

    id: str
    type: str
    tenant_id: str | None
    outcome: str | None = None


class ReprocessedChunk(msgspec.Struct, frozen=True):
    """A part of a reprocessing: the events, and how many entries could not be read because their
    body is removed.
    """

    events: tuple[ReprocessedEvent, ...]
    unreadable: int = 0


class ReplayService:
    """Folds tenants' events again with the current plan catalog, and compares."""

    def __init__(self, database: Database, policy: BillingPolicy, clock: Clock) -> None:
        self._database = database
        self._policy = policy
        self._clock = clock

    async def count(self, selection: Selection) -> int:
        """Count the tenants that `run` looks at. Raises `NotFoundError` if a named tenant does not
        exist.
        """
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            if selection.tenants is None:
                return await store.count_tenants(connection, selection.after)
            named = set(selection.tenants)
            possible = [tenant_id for tenant_id in named if is_tenant_id(tenant_id)]
            missing = sorted(named - await store.known_tenants(connection, possible))
        if missing:
            raise NotFoundError(f"tenant: {', '.join(missing)}")
        return sum(tenant_id > selection.after for tenant_id in named)

    async def run(
        self, selection: Selection, *, dry_run: bool
    ) -> AsyncGenerator[ReplayChunk, None]:
        """Replay tenants in the order of their ids, a chunk at a time, and repair those that
        differ.

        With ``dry_run`` nothing is written, and no tenants are locked but those that share a
        subscription with the selected ones, one subscription at a time; without selected ones,
        these moves are left out. Each repair is a separate transaction that folds the ledger as it
        is by then, so events may arrive meanwhile.
        """
        replay = partial(self._replay, selection.since)
        run = LedgerRun(self._tenants(selection), replay, dry_run)
        last = selection.after
        async with aclosing(run.results()) as chunks:
            async for chunk in chunks:
                last = chunk.last
                yield chunk
        if dry_run and selection.tenants is None:
            return
        if moved := await self._settle_moves(selection.tenants, dry_run=dry_run):
            yield ReplayChunk(0, last, (), moved=tuple(sorted(moved)))

    def reprocess(
        self, selection: Selection, *, dry_run: bool
    ) -> AsyncGenerator[ReprocessedChunk, None]:
        """Decode again the events that were invalid, or excluded by the settings, and apply those
        that are neither now.

        An invalid event is decoded from its raw body if that is still stored; the facts of others
        are in the ledger. Events keep their arrival numbers. With ``dry_run`` nothing is written.
        With selected tenants, events without a body do not count, because they name no tenant.
        """
        source = self._replaceable(selection)
        return LedgerRun(source, partial(self._reprocess, selection), dry_run).results()

    @cached_property
    def _webhooks(self) -> WebhookService:
        """What applies events, on one connection of its own."""
        return WebhookService([self._database.lane()], self._policy, None, self._clock)

    async def _replaceable(self, selection: Selection) -> AsyncGenerator[list[ReceivedEvent], None]:
        """Yield the entries that a valid event of their id replaces, in the order of their arrival:
        those of the selected tenants, and invalid ones.
        """
        wanted = await self._wanted_entries(selection)
        while stored := await self._next_replaceable(wanted):
            yield stored
            last = stored[-1]
            wanted = msgspec.structs.replace(wanted, after=(last.received_at, last.event.arrival))

    async def _wanted_entries(self, selection: Selection) -> ReplaceableEntries:
        since = selection.since or datetime.min.replace(tzinfo=UTC)
        wanted = ReplaceableEntries((since, -1), selection.tenants, invalid_since=since)
        if selection.most_invalid is None:
            return wanted
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            newest = await store.newest_invalid_since(connection, since, selection.most_invalid)
        return msgspec.structs.replace(wanted, invalid_since=newest)

    async def _next_replaceable(self, wanted: ReplaceableEntries) -> list[ReceivedEvent]:
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            return await store.replaceable_entries(connection, wanted, _EVENTS_PER_CHUNK)

    async def _reprocess(
        self,
        selection: Selection,
        stored: Sequence[ReceivedEvent],
        /,
        *,
        dry_run: bool,
    ) -> ReprocessedChunk:
        decoded = [_decode_again(entry, self._policy) for entry in stored]
        readable = [one for one in decoded if one is not None]
        selected = await self._usable(readable, selection)
        found = await _apply_again(self._webhooks, selected, dry_run=dry_run)
        unreadable = len(stored) - len(readable) if selection.tenants is None else 0
        return ReprocessedChunk(found, unreadable)

    async def _usable(
        self, events: Sequence[ReceivedEvent], selection: Selection
    ) -> list[tuple[ReceivedEvent, str | None]]:
        """Return the events that can have an effect, each with its tenant, of the selected ones."""
        usable = [one for one in events if not rejection(one.event, self._policy)]
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            tenants = await ledger_store.tenants_of_customers(
                connection, (one.event for one in usable)
            )
        known = KnownTenants(tenants, {})
        placed = [(one, customer_links.tenant_of(one.event, known)) for one in usable]
        if selection.tenants is None:
            return placed
        return [(one, tenant_id) for one, tenant_id in placed if tenant_id in selection.tenants]

    async def _tenants(self, selection: Selection) -> AsyncGenerator[list[str], None]:
        """Yield the selected tenants by id."""
        after = selection.after
        while tenants := await self._next_tenants(selection.tenants, after):
            yield tenants
            after = tenants[-1]

    async def _next_tenants(self, named: Sequence[str] | None, after: str) -> list[str]:
        """Return the next tenants by id, or of those named."""
        if named is not None:
            later = {tenant_id for tenant_id in named if tenant_id > after}
            return sorted(later)[:TENANTS_PER_CHUNK]
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            return await store.tenants_after(connection, after, TENANTS_PER_CHUNK)

    async def _replay(
        self, since: datetime | None, tenants: Sequence[str], /, *, dry_run: bool
    ) -> ReplayChunk:
        checked = await self._check(tenants, since)
        if not dry_run:
            checked = [one if one.is_right else await self._repair(one) for one in checked]
        return ReplayChunk(len(tenants), tenants[-1], tuple(checked))

    async def _check(self, tenants: Sequence[str], since: datetime | None) -> list[TenantReplay]:
        async with self._database.transaction(ACROSS_TENANTS, is_snapshot=True) as connection:
            if since is not None:
                tenants = await store.tenants_with_news(connection, tenants, since)
            accounts = await read_accounts(connection, tenants, self._policy)
            parked = await store.parked_for(connection, tenants)
            folds = await fold_ledgers(connection, accounts, self._policy)
            return [
                self._compared(account, folded, parked)
                for account, folded in zip(accounts, folds, strict=True)
            ]

    async def _repair(self, found: TenantReplay) -> TenantReplay:
        """Fold a tenant again, write the differences, and apply the parked events."""
        folded = await self._repair_fold(found.tenant_id)
        if folded is None:  # the tenant was removed
            return msgspec.structs.replace(found, fields=(), parked=0)
        # after the fold, which may have made subscriptions known
        parked = await self._apply_parked(found.tenant_id)
        checked = msgspec.structs.replace(folded, parked=parked)
        return msgspec.structs.replace(checked, repaired=not checked.is_right)

    async def _repair_fold(self, tenant_id: str) -> TenantReplay | None:
        """Lock a tenant, fold it again, and write the differences; return None if it is gone."""
        async with (
            self._transaction() as transaction,
            lock_tenant(transaction, tenant_id) as ledger,
        ):
            account = ledger.account
            if account is None:
                return None
            folded = await ledger.fold_again(account)
            checked = self._compared(account, folded, {})
            if checked.differences:
                await ledger.repair(account, folded.account)
            return checked

    async def _apply_parked(self, tenant_id: str) -> int:
        """Apply the parked events of a tenant; return their number."""
        async with self._transaction() as transaction:
            connection = transaction.connection
            if not await store.parked_for(connection, [tenant_id]):
                return 0
            customers = await ledger_store.customers_of(connection, tenant_id)
            async with claim_tenant(transaction, tenant_id, customers) as ledger:
                parked = await store.parked_for(connection, [tenant_id])
                await ledger.apply_parked()
        return parked.get(tenant_id, 0)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[LedgerTransaction]:
        async with self._database.change(ACROSS_TENANTS) as connection:
            yield LedgerTransaction(connection, self._policy, self._clock())

    async def _settle_moves(self, tenants: Sequence[str] | None, *, dry_run: bool) -> set[str]:
        """Let subscriptions that several tenants have count for the tenant that they name, with its
        invoices. Return the tenants that this changes, or with ``dry_run`` would.
        """
        moved = set[str]()
        if not self._policy.is_each:
            return moved
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            shared = await ledger_store.shared_subscriptions(connection, tenants)
        for subscription_id in shared:
            async with (
                self._transaction() as transaction,
                lock_subscriptions(transaction, [subscription_id]) as ledger,
            ):
                changes = await ledger.settle(dry_run=dry_run)
            moved.update(
                change.account.tenant_id for change in changes if self._is_difference(change)
            )
        return moved

    def _is_difference(self, change: AccountChange) -> bool:
        fields = compare(change.before, change.account, self._policy)
        return any(field.differs for field in fields)

    def _compared(
        self, account: BillingAccount, folded: FoldedLedger, parked: Mapping[str, int]
    ) -> TenantReplay:
        fields = compare(account, folded.account, self._policy)
        return TenantReplay(
            account.tenant_id, folded.events, fields, parked.get(account.tenant_id, 0)
        )


def compare(
    account: BillingAccount, folded: BillingAccount, policy: BillingPolicy
) -> tuple[FieldComparison, ...]:
    stored, result = _fields(account, policy), _fields(folded, policy)
    compared = [
        FieldComparison(
            name, shown_fact(name, stored.get(name)), shown_fact(name, result.get(name))
        )
        for name in {**stored, **result}
    ]
    differing = {each.field for each in compared if each.differs}
    return tuple(each for each in compared if _is_shown(each, differing))


def _is_shown(compared: FieldComparison, differing: Collection[str]) -> bool:
    if not compared.field.startswith(_STATE):
        return True
    return compared.differs and compared.field.removeprefix(_STATE) not in differing


async def _apply_again(
    webhooks: WebhookService,
    selected: Sequence[tuple[ReceivedEvent, str | None]],
    *,
    dry_run: bool,
) -> tuple[ReprocessedEvent, ...]:
    """Apply events, each given with its tenant; with ``dry_run`` only return them."""
    outcomes: Sequence[str | None] = [None] * len(selected)
    if selected and not dry_run:
        results = await webhooks.apply([one for one, _ in selected])
        outcomes = [shown_outcome(result) for result in results]
    return tuple(
        ReprocessedEvent(one.event.id, one.event.type, tenant_id, outcome)
        for (one, tenant_id), outcome in zip(selected, outcomes, strict=True)
    )


def _decode_again(stored: ReceivedEvent, policy: BillingPolicy) -> ReceivedEvent | None:
    """Decode an entry of the ledger as this release does; None if that needs a body that is removed
    or malformed.
    """
    event = stored.event
    if event.problem is not None:
        if stored.body is None:
            return None
        try:
            decoded = decode_event(
                stored.body,
                arrived=int(stored.received_at.timestamp()),
                make_up_id=lambda: stored.event.id,
                reference_links=policy.checkout_reference_links,
            )
        except NotAnEventError:  # an older release accepted it
            return None
        event = msgspec.structs.replace(decoded, arrival=event.arrival)
    # the body is stored under the arrival number
    return ReceivedEvent(event, stored.received_at, fetched=True)


def _fields(account: BillingAccount, policy: BillingPolicy) -> dict[str, Fact]:
    access = account.record.access
    record: dict[str, Fact] = {
        **msgspec.structs.asdict(account.record),
        "access": _text(access) if access else None,
        "tip_created": account.tip_created,
    }
    if account.billing_periods:
        record["billing_periods"] = _text(account.billing_periods)
    fields = _named("", record)
    folds = account.folds if policy.is_each else {**account.folds, "": account.whole_tenant}
    for key, fold in folds.items():
        if is_grant_key(key):
            fields[key] = _text(fold.state.grant)
            continue
        of_fold = _fields_of_fold(f"{key}." if key else "", fold, policy)
        fields |= {_STATE + name if name in fields else name: of_fold[name] for name in of_fold}
    return fields


def _fields_of_fold(prefix: str, fold: Folded, policy: BillingPolicy) -> dict[str, Fact]:
    present = _facts(fold.state, policy)
    checkpoint = _facts(fold.tip_state, policy) if fold.tip_state else dict.fromkeys(present)
    return {**_named(prefix, present), **_named(prefix + CHECKPOINT, checkpoint)}


def _named(prefix: str, facts: Mapping[str, Fact]) -> dict[str, Fact]:
    return {f"{prefix}{camel_case(name)}": fact for name, fact in facts.items()}


def _facts(state: BillingState, policy: BillingPolicy) -> dict[str, Fact]:
    facts: dict[str, Fact] = msgspec.structs.asdict(state)
    others = ", ".join(map(_summary, state.others)) or None
    details = None if state.details == NO_DETAILS else _text(state.details)
    unpaid = ", ".join(invoice.id for invoice in state.unpaid_invoices) or None
    if not policy.is_each:
        del facts["customer_id"], facts["reported_at"]
    del facts["others"], facts["grant"], facts["running_month"]
    if state.running_month is not None:
        facts["running_month"] = _text(state.running_month)
    return {**facts, "other_subscriptions": others, "details": details, "unpaid_invoices": unpaid}


def _text(facts: object) -> str:
    return msgspec.json.encode(facts).decode()


def _summary(subscription: KnownSubscription) -> str:
    period_end = from_epoch(subscription.current_period_end)
    until = f" until {period_end.isoformat()}" if period_end else ""
    ends = " ends" if subscription.cancel_at_period_end else ""
    return f"{subscription.id} {subscription.status} ({subscription.plan}{until}{ends})"


def shown_fact(name: str, value: Fact) -> Fact | datetime:
    """Return the value of a field, by its name in the API, with times as such."""
    is_time = name.rpartition(".")[2] in _TIMES
    # a damaged time may be out of range
    return (
        from_epoch(value)
        if is_time and isinstance(value, int) and 0 <= value <= EPOCH_MAX
        else value
    )
