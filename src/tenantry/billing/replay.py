"""Folding ledgers again: what tenants should be beside what they are, and mending the difference. Nothing is mailed."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import cache
from typing import Final
from uuid import UUID

import msgspec

from tenantry.billing import ledger
from tenantry.billing import ledger_store as billing
from tenantry.billing import reconcile_store as reconcile
from tenantry.billing import replay_store as replay
from tenantry.billing.ingest import DUPLICATE, FAILED, Receipt, WebhookService
from tenantry.common.clock import EPOCH_MAX, Clock, from_epoch
from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.domain.billing.batch_application import useless
from tenantry.domain.billing.events import Fact
from tenantry.domain.billing.ledger import Account, Arrival, Question
from tenantry.domain.billing.refold import Refold, Refolded, corrected
from tenantry.domain.billing.state import BillingPolicy, BillingState, KnownSubscription, full_state_types
from tenantry.domain.billing.timeline import ReplayDepth
from tenantry.domain.errors import DatabaseUnavailableError, NotFoundError, OverloadedError
from tenantry.domain.tenants import is_tenant_id
from tenantry.integrations.stripe.decode import NotAnEventError, decode_event

TENANTS_PER_CHUNK: Final = 200
MOST_AT_ONCE: Final = 10_000
"""So many events are read while somebody waits."""
MOST_SECONDS: Final = 3.0
"""So long somebody waits at the most: less than an answer may take."""
_EVENTS_PER_CHUNK: Final = 100
_ALWAYS: Final = -1
"""A second that is older than all events."""
_NO_MAIL: Final = -(10**8)
"""Hours: no failure, not even one dated into the future, is young enough to be told of."""
_CHECKPOINT: Final = "tip_state."
_TIMES: Final = frozenset({"current_period_end", "subscription_created", "tip_created"})

Value = Fact | datetime


class Selection(msgspec.Struct, frozen=True):
    """Which tenants: all or these, and of them only those with an event received since a moment."""

    tenants: tuple[str, ...] | None = None
    since: datetime | None = None


class Field(msgspec.Struct, frozen=True, rename="camel"):
    """One field of a tenant's billing state: as it is stored, and as the fold of its events has it."""

    field: str
    stored: Value
    folded: Value

    @property
    def differs(self) -> bool:
        """Whether the two are not the same."""
        return self.stored != self.folded

    @property
    def is_of_checkpoint(self) -> bool:
        """Whether it is of the state before the newest second."""
        return self.field.startswith(_camel(_CHECKPOINT))


class Checked(msgspec.Struct, frozen=True, rename="camel"):
    """One tenant: how many events were folded, what they say, and whether that has been written.

    ``parked`` events of it waited although their tenant is known, or still wait if it was not repaired.
    """

    tenant_id: str
    events: int
    fields: tuple[Field, ...]
    parked: int = 0
    repaired: bool = False

    @property
    def differences(self) -> tuple[Field, ...]:
        """The fields that differ."""
        return tuple(field for field in self.fields if field.differs)

    @property
    def is_right(self) -> bool:
        """Whether the tenant was as its events have it."""
        return not self.parked and not self.differences


class Chunk(msgspec.Struct, frozen=True):
    """A part of a replay: how many tenants were looked at, and those of them that were folded."""

    tenants: int
    checked: tuple[Checked, ...]


class Recent(msgspec.Struct, frozen=True):
    """What a replay of a tenant's newest events has found.

    ``since`` is the moment from which on they were folded, None where that is the ledger's beginning. ``checked`` is
    None where none of them says everything, so that what they lead to depends on older ones.
    """

    checked: Checked | None
    since: datetime | None = None


class ReadAgain(msgspec.Struct, frozen=True, rename="camel"):
    """An event that was invalid or left out, and is neither now: its tenant if named, and its outcome.

    ``outcome`` is None in a dry run, and ``failed`` where the event could not be handled.
    """

    id: str
    type: str
    tenant_id: str | None
    outcome: str | None = None


class Reread(msgspec.Struct, frozen=True):
    """A part of reading entries again: those that take their place, and how many have no raw body to be read from."""

    events: tuple[ReadAgain, ...]
    unreadable: int = 0


class _NothingLeaves:
    """An outbox for transactions that only set right what should have been: nobody is told or asked."""

    async def defer_mail(
        self, _connection: Connection, ids: Sequence[UUID], _traces: Mapping[UUID, str] | None = None, /
    ) -> None:
        raise AssertionError(f"a replay would have mailed {ids}")

    async def defer_questions(
        self, _connection: Connection, _questions: Sequence[Question], _traces: Mapping[str, str] | None = None, /
    ) -> None:
        pass


class ReplayService:
    """Folds tenants' events again from the ledger, with the present plan catalog, and compares."""

    def __init__(self, database: Database, policy: BillingPolicy, clock: Clock) -> None:
        self._database = database
        self._policy = policy
        self._clock = clock
        self._turn = asyncio.Lock()

    async def check_newest(self, tenant_id: str, most: int = MOST_AT_ONCE) -> Recent:
        """Fold a tenant's newest events, no more than ``most``, and compare, while somebody waits for it.

        Nothing is written or locked. What was before the first of them makes no difference to the result. One at a
        time in each process, for not longer than `MOST_SECONDS`. Raises `NotFoundError` and `OverloadedError`.
        """
        if self._turn.locked():
            raise OverloadedError("Another replay is under way. Try again in a moment.")
        try:
            async with (
                self._turn,
                asyncio.timeout(MOST_SECONDS),
                self._database.transaction(of_tenant(tenant_id), is_snapshot=True) as connection,
            ):
                return await self._check_newest(connection, tenant_id, most)
        except TimeoutError as error:
            raise OverloadedError("The replay took too long, and was left. Try again later.") from error

    async def _check_newest(self, connection: Connection, tenant_id: str, most: int) -> Recent:
        accounts = await replay.read_accounts(connection, [tenant_id])
        if not accounts:
            raise NotFoundError("organization")
        before = await replay.second_before_newest(connection, tenant_id, most)
        since = None
        if before is not None:
            if accounts[0].state.others:
                return Recent(None)  # no event says everything of a tenant with several subscriptions
            telling = full_state_types(self._policy)
            since = await replay.beginning_after(connection, tenant_id, before, telling)
            if since is None:
                return Recent(None)
        [account] = accounts
        fold = Refold(account.checkpoint(ReplayDepth.BEGINNING), self._policy)
        async with replay.folded_events_since(connection, tenant_id, _ALWAYS if since is None else since) as events:
            async for _, event in events:
                fold.take(event)
        refolded, _ = fold.end()
        if since is not None and refolded.tip_created == since:
            return Recent(None)  # the state before the newest second is compared too, and depends on older events
        async with connection.within(ACROSS_TENANTS):  # no tenant's yet
            parked = await replay.parked_for(connection, [tenant_id])
        return Recent(_checked(account, refolded, parked.get(tenant_id, 0)), from_epoch(since))

    async def count(self, selection: Selection) -> int:
        """How many tenants `run` will look at. Raises `NotFoundError` if one that is named does not exist."""
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            if selection.tenants is None:
                return await replay.count_tenants(connection)
            named = set(selection.tenants)
            possible = [tenant_id for tenant_id in named if is_tenant_id(tenant_id)]
            missing = sorted(named - await replay.known_tenants(connection, possible))
        if missing:
            raise NotFoundError(f"tenant: {', '.join(missing)}")
        return len(named)

    async def run(self, selection: Selection, *, dry_run: bool) -> AsyncGenerator[Chunk, None]:
        """Look at tenants in the order of their ids, a chunk at a time, and set right those that differ.

        With ``dry_run`` nothing is written or locked. Each tenant is set right in a transaction of its own, which
        folds again what is in the ledger by then, so events may come in meanwhile.
        """
        async with aclosing(self._chunks(selection)) as chunks:
            async for tenants in chunks:
                checked = await self._compare(tenants, selection.since)
                if not dry_run:
                    checked = [one if one.is_right else await self._repair(one) for one in checked]
                yield Chunk(len(tenants), tuple(checked))

    async def read_again(self, selection: Selection, *, dry_run: bool) -> AsyncGenerator[Reread, None]:
        """Read again what the ledger has as invalid, or as left out by the settings, and let it take its place.

        An invalid event is read from its raw body, as long as that is kept; the facts of others are columns. An event
        keeps its number of arrival. With ``dry_run`` nothing is written. Nothing is mailed. For selected tenants,
        events without a body do not count, since they name no tenant.
        """
        silent = msgspec.structs.replace(self._policy, parked_mail_hours=_NO_MAIL)
        webhooks = WebhookService([self._database.lane()], silent, _NothingLeaves(), self._clock)
        since = selection.since or datetime.min.replace(tzinfo=UTC)
        after = (since, -1)
        while True:
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                kept = await replay.entries_giving_way(connection, since, after, _EVENTS_PER_CHUNK)
                if not kept:
                    return
                after = (kept[-1].received_at, kept[-1].event.arrival)
                decoded = [_decoded(arrival, self._policy) for arrival in kept]
                read = [arrival for arrival in decoded if arrival is not None]
                usable = [arrival for arrival in read if not useless(arrival.event, self._policy)]
                customers = {arrival.event.customer_id for arrival in usable if arrival.event.customer_id}
                tenant_of = await reconcile.tenants_of_customers(connection, customers)
            named = [arrival.event.org_id or tenant_of.get(arrival.event.customer_id or "") for arrival in usable]
            taken = [
                (arrival, tenant_id)
                for arrival, tenant_id in zip(usable, named, strict=True)
                if selection.tenants is None or tenant_id in selection.tenants
            ]
            found = tuple(ReadAgain(arrival.event.id, arrival.event.type, tenant_id) for arrival, tenant_id in taken)
            if found and not dry_run:
                outcomes = await webhooks.apply([arrival for arrival, _ in taken])
                found = tuple(
                    msgspec.structs.replace(one, outcome=_outcome(result))
                    for one, result in zip(found, outcomes, strict=True)
                )
            yield Reread(found, len(decoded) - len(read) if selection.tenants is None else 0)

    async def _chunks(self, selection: Selection) -> AsyncGenerator[list[str], None]:
        if selection.tenants is not None:
            named = sorted(set(selection.tenants))
            for start in range(0, len(named), TENANTS_PER_CHUNK):
                yield named[start : start + TENANTS_PER_CHUNK]
            return
        after = ""
        while True:
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                tenants = await replay.tenants_after(connection, after, TENANTS_PER_CHUNK)
            if not tenants:
                return
            yield tenants
            after = tenants[-1]

    async def _compare(self, tenants: Sequence[str], since: datetime | None) -> list[Checked]:
        async with self._database.transaction(ACROSS_TENANTS, is_snapshot=True) as connection:
            if since is not None:
                tenants = await replay.tenants_with_news(connection, tenants, since)
            accounts = await replay.read_accounts(connection, tenants)
            parked = await replay.parked_for(connection, tenants)
            return [
                _checked(account, refolded, parked.get(account.tenant_id, 0))
                for account, refolded in await refold_accounts(connection, accounts, self._policy)
            ]

    async def _repair(self, found: Checked) -> Checked:
        """Fold again with the tenant locked, and write what differs by then."""
        now, tenant_id = self._clock(), found.tenant_id
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            if found.parked:
                await ledger.claim(connection, tenant_id, await billing.customers_of(connection, tenant_id))
            account = await replay.lock_account(connection, tenant_id)
            if account is None:
                return msgspec.structs.replace(found, fields=(), parked=0)
            [(_, refolded)] = await refold_accounts(connection, [account], self._policy)
            parked = (await replay.parked_for(connection, [tenant_id])).get(tenant_id, 0) if found.parked else 0
            checked = _checked(account, refolded, parked)
            if checked.differences:
                right = corrected(account, refolded)
                changed = _record(right) != _record(account)
                await billing.write(connection, billing.update_accounts([(right, changed)], now), commit=False)
            if parked:
                silent = msgspec.structs.replace(self._policy, parked_mail_hours=_NO_MAIL)
                await ledger.apply_parked(connection, tenant_id, silent, _NothingLeaves(), now)
        return msgspec.structs.replace(checked, repaired=not checked.is_right)


async def refold_accounts(
    connection: Connection, accounts: Sequence[Account], policy: BillingPolicy
) -> list[tuple[Account, Refolded]]:
    """What the ledger makes of these accounts."""
    folds = {account.tenant_id: Refold(account.checkpoint(ReplayDepth.BEGINNING), policy) for account in accounts}
    async with replay.folded_events(connection, list(folds)) as events:
        async for tenant_id, event in events:
            folds[tenant_id].take(event)
    return [(account, folds[account.tenant_id].end()[0]) for account in accounts]


def compare(account: Account, refolded: Refolded) -> tuple[Field, ...]:
    """The fields of an account beside those that its events lead to."""
    stored, folded = _fields(account), _fields(corrected(account, refolded))
    return tuple(Field(_camel(name), _shown(name, stored[name]), _shown(name, folded[name])) for name in stored)


def _decoded(kept: Arrival, policy: BillingPolicy) -> Arrival | None:
    """An entry of the ledger as this release reads it; None where its raw body is needed, and gone or no event."""
    event = kept.event
    if event.problem is not None:
        if kept.body is None:
            return None
        try:
            read = decode_event(
                kept.body,
                arrived=int(kept.received_at.timestamp()),
                make_up_id=lambda: kept.event.id,
                reference_links=policy.checkout_reference_links,
            )
        except NotAnEventError:  # to this release: the one before took it
            return None
        event = msgspec.structs.replace(read, arrival=event.arrival)
    return Arrival(event, kept.received_at, belated=True)  # its body stays under the number of arrival


def _outcome(result: Receipt | Exception) -> str:
    """The outcome of an event, in words. Raises `DatabaseUnavailableError`."""
    if isinstance(result, DatabaseUnavailableError):
        raise result
    if isinstance(result, Exception):
        return FAILED
    return result.outcome.value if result.outcome else DUPLICATE


def _checked(account: Account, refolded: Refolded, parked: int) -> Checked:
    return Checked(account.tenant_id, refolded.events, compare(account, refolded), parked)


def _fields(account: Account) -> dict[str, Fact]:
    present = _facts(account.state)
    checkpoint = dict.fromkeys(present) if account.tip_state is None else _facts(account.tip_state)
    return {
        **present,
        "tip_created": account.tip_created,
        **{f"{_CHECKPOINT}{name}": value for name, value in checkpoint.items()},
    }


def _facts(state: BillingState) -> dict[str, Fact]:
    facts: dict[str, Fact] = msgspec.structs.asdict(state)
    del facts["others"]
    return {**facts, "other_subscriptions": ", ".join(map(_known, state.others)) or None}


def _known(subscription: KnownSubscription) -> str:
    """A subscription that the tenant's state is not from, in one line."""
    period_end = from_epoch(subscription.current_period_end)
    until = f" until {period_end.isoformat()}" if period_end else ""
    ends = " ends" if subscription.cancel_at_period_end else ""
    return f"{subscription.id} {subscription.status} ({subscription.plan}{until}{ends})"


def _shown(name: str, value: Fact) -> Value:
    # a damaged time may be none that can be shown
    is_time = name.removeprefix(_CHECKPOINT) in _TIMES and isinstance(value, int) and 0 <= value <= EPOCH_MAX
    return from_epoch(value) if is_time and isinstance(value, int) else value


@cache
def _camel(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(word.capitalize() for word in more)


def _record(account: Account) -> tuple[object, ...]:
    """What the API shows of a tenant's billing."""
    state = account.state
    return state.plan, state.subscription_status, state.current_period_end, state.cancel_at_period_end
