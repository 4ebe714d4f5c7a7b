"""A batch: the events that one transaction applies, what must be locked and read before, and what
they change.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple, Self

import msgspec

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.customer_links import (
    goes_by_customer,
    tenant_of,
    wanted_links,
    wants_link,
)
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import (
    FIRST,
    AccountChange,
    BatchContext,
    BillingAccount,
    CustomerLink,
    CustomerUse,
    FoldId,
    InvoiceOfTenant,
    LedgerEntry,
    NameLock,
    ReceivedEvent,
    ReplayNeed,
    SnapshotRequest,
)
from tenantry.domain.billing.notices import BillingNotice
from tenantry.domain.billing.state import BillingPolicy, BillingState, fold_key, known_of
from tenantry.domain.billing.subscription_history import NAMING_TYPES
from tenantry.domain.billing.subscription_rank import MOST_SUBSCRIPTIONS
from tenantry.domain.outbound_events import NewEvent
from tenantry.domain.owner_mails import NewMail


class Work(NamedTuple):
    """What a transaction applies: ``new`` events in the order of their arrival, and ``parked`` ones
    of ``tenant_id``, which is known by now.

    ``usable`` are those of the new ones that can have an effect. Of the subscriptions in ``moved``
    the whole history is looked at, whatever the events are.
    """

    new: Sequence[ReceivedEvent] = ()
    usable: Sequence[BillingEvent] = ()
    tenant_id: str = ""
    parked: Sequence[ReceivedEvent] = ()
    moved: Collection[str] = ()

    @property
    def events(self) -> Iterator[BillingEvent]:
        """The events that can have an effect."""
        return chain(self.usable, (each.event for each in self.parked))


class Moves(NamedTuple):
    """What is known only after the events have been applied once.

    ``begun`` are the subscriptions that no tenant had before, with the tenant of each, and
    ``placements`` the tenants of invoices of subscriptions that have named several, by event.
    ``leaving`` are the invoices that have left a tenant's ledger for another one, and ``left`` what
    the former ledgers still have of their subscriptions.
    """

    begun: Mapping[str, str] = {}
    placements: Mapping[str, str] = {}
    leaving: Sequence[ReceivedEvent] = ()
    left: Mapping[tuple[str, str], Sequence[BillingEvent]] = {}

    def further(
        self,
        begun: Mapping[str, str],
        stored: Sequence[tuple[str, ReceivedEvent]],
        misplaced: Mapping[str, str],
    ) -> Self:
        """Return these moves with new subscriptions, and with the ``stored`` invoices that are in a
        wrong ledger; ``misplaced`` has their tenants by event.
        """
        leaving = [(tenant_id, each) for tenant_id, each in stored if each.event.id in misplaced]
        ledgers = {
            *self.left,
            *((tenant_id, each.event.subscription_id or "") for tenant_id, each in leaving),
        }
        return self._replace(
            begun={**self.begun, **begun},
            placements={**self.placements, **misplaced},
            leaving=(*self.leaving, *(each for _, each in leaving)),
            left={ledger: _left_in(ledger, stored, misplaced) for ledger in ledgers},
        )


NO_MOVES: Final = Moves()


class StoredEvents(NamedTuple):
    """What the ledger has that a batch depends on.

    ``histories`` are the events after the checkpoint of each fold in ``needs``; ``waiting`` the
    parked events that wait for a customer or subscription; ``paid`` the second of the newest
    payment of each of `invoices_without_fold`; ``reversals`` the earlier
    refunds and disputes of the payments of `reversals_among`, by tenant.
    """

    needs: Mapping[FoldId, ReplayNeed] = {}
    histories: Mapping[FoldId, Sequence[BillingEvent]] = {}
    waiting: Sequence[ReceivedEvent] = ()
    paid: Mapping[InvoiceOfTenant, int] = {}
    reversals: Mapping[str, Sequence[BillingEvent]] = {}


NOTHING_STORED: Final = StoredEvents()


class BatchChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch writes.

    ``unparked`` are the entries of parked events that have a tenant by now, and ``replaceable``
    the ids of entries that these replace. ``superseded`` and ``withdrawn`` are events that leave
    the ledger, and those whose mails do. ``accounts`` are those of the context after the batch.
    ``customer_uses`` are the customers that cannot be used any more, or can be again.
    ``unread`` are tenants that are not in the context, and to which events of the batch belong.
    ``published`` are new refunds and disputes; with ``has_unknown_payments`` some have no tenant.
    """

    policy: BillingPolicy
    replaceable: frozenset[str]
    entries: Sequence[LedgerEntry]
    unparked: Sequence[LedgerEntry]
    links: Sequence[CustomerLink]
    customer_uses: Sequence[CustomerUse]
    superseded: Sequence[str]
    withdrawn: Sequence[str]
    accounts: Mapping[str, BillingAccount]
    changed_accounts: Sequence[AccountChange]
    failed_payments: Sequence[NewMail]
    notices: Sequence[BillingNotice]
    snapshot_requests: Sequence[SnapshotRequest]
    unread: frozenset[str] = frozenset()
    published: Sequence[NewEvent] = ()
    has_unknown_payments: bool = False

    @property
    def has_jobs(self) -> bool:
        """Whether workers must notify owners, or ask the provider."""
        return bool(
            self.failed_payments
            or self.notices
            or self.snapshot_requests
            or self.has_unknown_payments
        )

    @property
    def read_by_checks(self) -> set[str]:
        """The tenants of whom something changed that checks of keys and tokens read."""
        return {
            change.account.tenant_id for change in self.changed_accounts if change.is_read_by_checks
        }


def _left_in(
    ledger: tuple[str, str], stored: Sequence[tuple[str, ReceivedEvent]], misplaced: Collection[str]
) -> list[BillingEvent]:
    """Return the events of a tenant and subscription that stay in the tenant's ledger."""
    return [
        each.event
        for tenant_id, each in stored
        if (tenant_id, each.event.subscription_id) == ledger and each.event.id not in misplaced
    ]


_SUPERSEDED_TYPES: Final = ev.WHOLE_SUBSCRIPTION_TYPES | ev.PAYMENT_TYPES
"""Types whose outcome does not depend on any event after a later full-state event."""
_EVERYTHING: Final = ReplayNeed(FIRST, late=True)


def needed_locks(
    events: Collection[BillingEvent], context: BatchContext, policy: BillingPolicy
) -> set[NameLock]:
    """Return the locks of missing names in these events, and of the customers and subscriptions
    that they may add.
    """
    claimed = {f"customer {each}" for each in wanted_links(events, context)}
    # with ANY too: an invoice without a customer may wait for a subscription
    claimed |= {f"subscription {each}" for each in new_subscriptions(events, context, policy)}
    missing = {missing_name(event) for event in events if not _account_of(event, context)}
    if policy.is_each:
        missing |= {f"subscription {each}" for each in _unknown_to_invoices(events, context)}
    return {*_locks(claimed, claimed=True), *_locks(missing, claimed=False)}


def _locks(names: Iterable[str], *, claimed: bool) -> Iterator[NameLock]:
    return (NameLock(name, claimed) for name in names)


def _unknown_to_invoices(events: Iterable[BillingEvent], context: BatchContext) -> set[str]:
    """Return the subscriptions of invoices that have no tenant yet."""
    named = {event.subscription_id for event in events if event.type in ev.INVOICE_TYPES}
    return {each for each in named if each} - context.known.tenant_of_subscription.keys()


def missing_name(event: BillingEvent) -> str:
    """Return what must become known before an event has a tenant."""
    if not goes_by_customer(event):
        return f"tenant {event.org_id}"
    if event.customer_id:
        return f"customer {event.customer_id}"
    if event.reversal is not None:
        return f"payment {event.payments[0]}"
    return f"subscription {event.subscription_id}"


def new_subscriptions(
    events: Iterable[BillingEvent], context: BatchContext, policy: BillingPolicy
) -> dict[str, str]:
    """Return the subscriptions of which these are the first events, each with its tenant.

    With `SubscriptionRule.EACH` no tenant has them yet, and the newest event names the tenant. With
    ``ANY`` the tenant's one state does not know them.
    """
    placed = [(event, _account_of(event, context)) for event in _naming(events, context, policy)]
    return {
        event.subscription_id or "": account.tenant_id
        for event, account in placed
        if account and (policy.is_each or not known_of(account.state, event.subscription_id))
    }


def _naming(
    events: Iterable[BillingEvent], context: BatchContext, policy: BillingPolicy
) -> list[BillingEvent]:
    """Return the events that say whose their subscription is; with `SubscriptionRule.EACH` those of
    subscriptions without a tenant, the newest last.
    """
    naming = [event for event in events if event.type in NAMING_TYPES and event.subscription_id]
    if not policy.is_each:
        return naming
    known = context.known.tenant_of_subscription
    unknown = [event for event in naming if event.subscription_id not in known]
    return sorted(unknown, key=attrgetter("created"))


def _account_of(event: BillingEvent, context: BatchContext) -> BillingAccount | None:
    return context.accounts.get(tenant_of(event, context.known) or "")


class WorkToPlace(NamedTuple):
    """What a transaction applies, and the ``links`` that its events would make: customers, each
    with its tenant.
    """

    context: BatchContext
    work: Work
    links: set[tuple[str, str]]

    @classmethod
    def of(cls, context: BatchContext, work: Work) -> Self:
        """Find the links by what the ledger has."""
        links = {
            (event.customer_id, event.org_id)
            for event in work.events
            if event.customer_id and event.org_id and wants_link(event, context)
        }
        return cls(context, work, links)

    def first_moves(self, policy: BillingPolicy) -> Moves:
        """Return the subscriptions that these events begin, by what the ledger has."""
        return Moves(new_subscriptions(self.work.events, self.context, policy))

    def placed_payments(self) -> set[str]:
        """Return the payments that refunds and disputes make known, for which others may wait."""
        known = self.context.known
        return {
            payment
            for event in self.work.events
            if event.reversal is not None and (self.work.tenant_id or known.of_reversal(event))
            for payment in event.payments
        }

    def with_tenants(
        self, moves: Moves, waiting: Sequence[ReceivedEvent]
    ) -> list[tuple[str | None, BillingEvent]]:
        """Return the events with each tenant that they may belong to.

        An event without a tenant's name may have waited for the link of its customer, or an invoice
        for its subscription, or follow it in this very batch.
        """
        parked, usable = self.work.parked, self.work.usable
        nameless = [each.event for each in waiting]
        nameless += [event for event in usable if goes_by_customer(event)]
        moved = (*nameless, *(each.event for each in (*parked, *moves.leaving)))
        return [
            *((tenant_of(event, self.context.known), event) for event in usable),
            *((self.work.tenant_id, each.event) for each in parked),
            *_placed_by_new_names(nameless, self.links, moves.begun),
            *((moves.placements.get(event.id), event) for event in moved),
        ]


def _placed_by_new_names(
    events: Sequence[BillingEvent],
    links: Iterable[tuple[str, str]],
    of_subscriptions: Mapping[str, str],
) -> list[tuple[str | None, BillingEvent]]:
    """Return the events with the tenants that their customers and subscriptions may get."""
    placed: list[tuple[str | None, BillingEvent]] = []
    for customer_id, tenant_id in links:  # of several tenants the first to come gets it
        placed += [(tenant_id, event) for event in events if event.customer_id == customer_id]
    return placed + [(of_subscriptions.get(event.subscription_id or ""), event) for event in events]


def replay_needs(
    context: BatchContext, events: Iterable[tuple[str | None, BillingEvent]], policy: BillingPolicy
) -> dict[FoldId, ReplayNeed]:
    """Return how far back the history of each fold is needed to place these events, each given with
    its tenant.

    Folds that need no history are left out.
    """
    needed: dict[FoldId, ReplayNeed] = {}
    with_newer = set[FoldId]()
    for tenant_id, event in events:
        account = context.accounts.get(tenant_id or "")
        if account is None:
            continue
        fold_id = account.tenant_id, fold_key(event, policy) if account.is_whole else None
        need = _need_of(event, account, fold_id[1])
        if need is None:
            with_newer.add(fold_id)
        else:
            needed[fold_id] = need.merge(needed.get(fold_id, need))
    for fold_id in with_newer & needed.keys():  # a newer event needs the whole history
        needed[fold_id] = needed[fold_id]._replace(until=None)
    return needed


def _need_of(event: BillingEvent, account: BillingAccount, key: str | None) -> ReplayNeed | None:
    """Return the history that an event needs; None if it has no fold or is newer than that."""
    if not account.is_whole:
        return _EVERYTHING
    if key is None:
        return None
    fold = account.folds.get(key)
    if fold is not None and fold.tip_created is not None:
        return _need_in_fold(event, fold.state, fold.tip_created)
    # among so many it may have been left out before
    return _EVERYTHING if len(account.folds) >= MOST_SUBSCRIPTIONS else None


def _need_in_fold(event: BillingEvent, state: BillingState, newest: int) -> ReplayNeed | None:
    if event.created < newest:
        return _need_of_late(event, state)
    # a snapshot may replace an older one
    if event.created == newest or event.type == ev.SNAPSHOT:
        return ReplayNeed(newest, late=False)
    return None


def _need_of_late(event: BillingEvent, state: BillingState) -> ReplayNeed:
    """Return the history that a late event of a fold that ends in ``state`` needs.

    A later full-state event of the fold's one subscription can make it insignificant.
    """
    if state.others:
        return _EVERYTHING
    is_of_fold = (
        event.subscription_id is not None and event.subscription_id == state.subscription_id
    )
    until = event.created if is_of_fold and event.type in _SUPERSEDED_TYPES else None
    return ReplayNeed(event.created, late=True, until=until)


def invoices_without_fold(
    events: Iterable[tuple[str | None, BillingEvent]], policy: BillingPolicy
) -> set[InvoiceOfTenant]:
    """Return the invoices of failed payments that belong to no fold, whose history has no payment
    of theirs.
    """
    failures = [
        (tenant_id, event)
        for tenant_id, event in events
        if event.type == ev.PAYMENT_FAILED and fold_key(event, policy) is None
    ]
    return {
        (tenant_id, event.invoice_id)
        for tenant_id, event in failures
        if tenant_id and event.invoice_id
    }


def reversals_among(events: Iterable[tuple[str | None, BillingEvent]]) -> dict[str, set[str]]:
    """Return the payments of the refunds and disputes among events, by their tenants."""
    found = dict[str, set[str]]()
    for tenant_id, event in events:
        if event.reversal is not None and tenant_id:
            found.setdefault(tenant_id, set()).update(event.payments)
    return found
