"""A batch of events, applied in memory to the accounts that it touches."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

import msgspec

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.anomalies import anomalies, rejection
from tenantry.domain.billing.customer_links import (
    LinkResult,
    goes_by_customer,
    link_result,
    may_link,
    tenant_of,
    wants_link,
)
from tenantry.domain.billing.events import Anomaly, BillingEvent, Outcome, is_settled
from tenantry.domain.billing.ledger import (
    FIRST,
    AccountChange,
    BatchContext,
    BillingAccount,
    CustomerLink,
    FailedPayment,
    FoldId,
    KnownTenants,
    LedgerEntry,
    NameLock,
    ReceivedEvent,
    ReplayNeed,
    SnapshotRequest,
)
from tenantry.domain.billing.ledger_fold import within_bounds
from tenantry.domain.billing.notices import (
    BillingNotice,
    Occasion,
    due_notices,
    moves_of,
    notice_of_change,
    notice_of_type,
)
from tenantry.domain.billing.state import (
    OWING,
    PAST_DUE,
    BillingPolicy,
    BillingState,
    fold_key,
    known_of,
)
from tenantry.domain.billing.subscription_history import (
    NAMING_TYPES,
    PlacedEvent,
    SubscriptionHistory,
    former_tenant,
)
from tenantry.domain.billing.subscription_rank import MOST_SUBSCRIPTIONS
from tenantry.domain.billing.tenant_record import BillingRecord
from tenantry.domain.billing.timeline import BY_ARRIVAL, Placement, Timeline, begin, named, place
from tenantry.domain.plans import OVER

_SUPERSEDED_TYPES: Final = ev.WHOLE_SUBSCRIPTION_TYPES | ev.PAYMENT_TYPES
"""Types whose outcome does not depend on any event after a later full-state event."""


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
        account = context.accounts.get(tenant_id) if tenant_id else None
        key = fold_key(event, policy)
        if account is not None and not account.is_whole:
            needed[account.tenant_id, None] = ReplayNeed(FIRST, late=True)
            continue
        if account is None or key is None:
            continue
        fold = account.folds.get(key)
        if fold is None or fold.tip_created is None:
            if len(account.folds) >= MOST_SUBSCRIPTIONS:
                # it may have been left out before
                needed[account.tenant_id, key] = ReplayNeed(FIRST, late=True)
            continue
        if event.created < fold.tip_created:
            until = event.created if _may_be_superseded(event, fold.state) else None
            need = ReplayNeed(FIRST if fold.state.others else event.created, late=True, until=until)
        elif event.created == fold.tip_created or event.type == ev.SNAPSHOT:
            # it may replace an older snapshot
            need = ReplayNeed(fold.tip_created, late=False)
        else:
            with_newer.add((account.tenant_id, key))
            continue
        needed[account.tenant_id, key] = need.merge(needed.get((account.tenant_id, key), need))
    for fold_id in with_newer & needed.keys():  # a newer event needs the whole history
        needed[fold_id] = needed[fold_id]._replace(until=None)
    return needed


def _may_be_superseded(event: BillingEvent, state: BillingState) -> bool:
    """Whether a later full-state event of a fold that ends in ``state`` makes this event
    insignificant.
    """
    is_of_fold = (
        event.subscription_id is not None and event.subscription_id == state.subscription_id
    )
    return is_of_fold and not state.others and event.type in _SUPERSEDED_TYPES


InvoiceOfTenant = tuple[str, str]
"""A tenant, and the id of one of its invoices."""


def invoices_without_fold(
    events: Iterable[tuple[str | None, BillingEvent]], policy: BillingPolicy
) -> set[InvoiceOfTenant]:
    """Return the invoices of failed payments that belong to no fold, whose history has no payment
    of theirs.
    """
    return {
        (tenant_id, event.invoice_id)
        for tenant_id, event in events
        if tenant_id
        and event.invoice_id
        and event.type == ev.PAYMENT_FAILED
        and fold_key(event, policy) is None
    }


def needed_locks(
    events: Collection[BillingEvent], context: BatchContext, policy: BillingPolicy
) -> set[NameLock]:
    """Return the locks of missing names in these events, and of the customers and subscriptions
    that they may add.
    """
    locks = set()
    known = context.known.tenant_of_subscription
    for event in events:
        if (
            policy.is_each
            and event.type in ev.INVOICE_TYPES
            and event.subscription_id
            and event.subscription_id not in known
        ):
            locks.add(NameLock(f"subscription {event.subscription_id}", claimed=False))
        if tenant_of(event, context.known) not in context.accounts:
            locks.add(NameLock(missing_name(event), claimed=False))
        if wants_link(event, context):
            locks.add(NameLock(f"customer {event.customer_id}", claimed=True))
        if policy.is_each and is_new_subscription(event, context):
            locks.add(NameLock(f"subscription {event.subscription_id}", claimed=True))
    # an invoice without a customer may wait for a subscription that the state becomes
    if not policy.is_each:
        begun = new_current_subscriptions(events, context)
        locks |= {NameLock(f"subscription {name}", claimed=True) for name in begun}
    return locks


def missing_name(event: BillingEvent) -> str:
    """Return what must become known before an event has a tenant."""
    if not goes_by_customer(event):
        return f"tenant {event.org_id}"
    return (
        f"customer {event.customer_id}"
        if event.customer_id
        else f"subscription {event.subscription_id}"
    )


def new_subscriptions(events: Iterable[BillingEvent], context: BatchContext) -> dict[str, str]:
    """Return the subscriptions of which these are the first events, each with the tenant of its
    newest event.
    """
    found = [event for event in events if is_new_subscription(event, context)]
    return {
        event.subscription_id: tenant_id
        for event in sorted(found, key=attrgetter("created"))
        if event.subscription_id and (tenant_id := tenant_of(event, context.known))
    }


def new_current_subscriptions(
    events: Iterable[BillingEvent], context: BatchContext
) -> dict[str, str]:
    """Return the subscriptions of these events that their tenants' one states do not know, each
    with the tenant.
    """
    found = dict[str, str]()
    for event in events:
        tenant_id, name = tenant_of(event, context.known), event.subscription_id
        account = context.accounts.get(tenant_id or "")
        is_naming = event.type in ev.FOLDED_TYPES and event.type not in ev.INVOICE_TYPES
        if (
            account is not None
            and name is not None
            and is_naming
            and known_of(account.state, name) is None
        ):
            found[name] = account.tenant_id
    return found


def is_new_subscription(event: BillingEvent, context: BatchContext) -> bool:
    """Whether an event is the first of its subscription that has a tenant."""
    return (
        event.subscription_id is not None
        and event.subscription_id not in context.known.tenant_of_subscription
        and event.type in ev.FOLDED_TYPES
        and event.type not in ev.INVOICE_TYPES
        and tenant_of(event, context.known) in context.accounts
    )


@dataclass(eq=False, repr=False)
class BatchApplication:
    """Collects the changes of a batch; writes nothing.

    ``histories`` are the events after the checkpoint of each account in ``needs``; ``waiting`` the
    parked events that wait for a customer. ``placements`` are the tenants of invoices of
    subscriptions that have named several, by event; ``paid`` the second of the newest payment in
    the ledger of each of `invoices_without_fold`.
    """

    context: BatchContext
    policy: BillingPolicy
    now: datetime
    _: KW_ONLY
    needs: Mapping[FoldId, ReplayNeed]
    histories: Mapping[FoldId, Sequence[BillingEvent]]
    waiting: InitVar[Iterable[ReceivedEvent]]
    placements: Mapping[str, str] = field(default_factory=dict)
    paid: Mapping[InvoiceOfTenant, int] = field(default_factory=dict)

    def __post_init__(self, waiting: Iterable[ReceivedEvent]) -> None:
        self._paid = dict(self.paid)
        self._accounts = dict(self.context.accounts)
        known = self.context.known
        self._known = KnownTenants(
            dict(known.tenant_of_customer),
            dict(known.tenant_of_subscription),
            dict(known.tenant_of_current),
        )
        self._parked = {each.event.id: each for each in waiting}
        self._timelines: dict[tuple[str, str], Timeline] = {}
        self._moved: dict[str, SubscriptionHistory] = {}
        self.unread = set[str]()
        """Tenants that are not in the context, and may have invoices of the batch."""
        self.contested = set[str]()
        """Subscriptions of which the whole history decides which tenant they and their invoices
        belong to.
        """
        self._tenants_of: dict[str, list[str]] = {}
        self._failures: list[tuple[str, BillingEvent, bool]] = []
        self._occasions: list[Occasion] = []
        self._oldest_mailed = (
            self.now.timestamp() - timedelta(hours=self.policy.parked_mail_hours).total_seconds()
        )
        self.entries: list[LedgerEntry] = []
        self.unparked: list[LedgerEntry] = []
        self.links: list[CustomerLink] = []
        self.superseded: list[str] = []
        self.replaced: list[str] = []
        self.snapshot_requests: list[SnapshotRequest] = []

    def expect(self, subscriptions: Mapping[str, str]) -> None:
        """Let invoices of this batch find the tenants of subscriptions whose first events are in it
        too.
        """
        self._known.tenant_of_subscription.update(subscriptions)

    def release(self, tenant_id: str, subscription_id: str, events: Iterable[BillingEvent]) -> None:
        """Leave a tenant with only these events of a subscription: its other invoices are another
        tenant's.
        """
        account = self._accounts[tenant_id]
        if not account.is_whole:
            return  # its next event folds all
        folds = {key: fold for key, fold in account.folds.items() if key != subscription_id}
        timeline = begin(
            account.beginning_of(subscription_id, self.policy), tuple(events), self.policy
        )
        if timeline.events:
            folds[subscription_id] = account.keep_move(subscription_id, timeline.folded())
        self._accounts[tenant_id] = account.with_folds(folds, self.policy)

    def settle(self, histories: Mapping[str, SubscriptionHistory]) -> None:
        """Let each of these subscriptions count for the tenant alone that it names by all its
        events.
        """
        self._moved = dict(histories)
        for subscription_id, history in histories.items():
            for tenant_id, account in list(self._accounts.items()):
                if subscription_id in account.folds and account.is_whole:
                    self._settle_move(account, subscription_id, history.moved_at(tenant_id))
        self.entries = [self._with_undecided_move(entry) for entry in self.entries]
        self.unparked = [self._with_undecided_move(entry) for entry in self.unparked]

    def _with_undecided_move(self, entry: LedgerEntry) -> LedgerEntry:
        """Return an entry that says so if only arrival decides which tenant its subscription named
        last in a second.
        """
        history = self._moved.get(entry.received.event.subscription_id or "")
        if history is None or entry.tenant_id is None:
            return entry
        undecided = history.undecided_with(entry.received.event)
        if not undecided:
            return entry
        self.snapshot_requests.append(SnapshotRequest(entry.tenant_id, later=True))
        why = f"Nothing proves which tenant {named(undecided)}, of one second, name last: {BY_ARRIVAL}"
        found = dict.fromkeys((*entry.anomalies, Anomaly.AMBIGUOUS_ORDER))
        return msgspec.structs.replace(
            entry, reason=f"{entry.reason} {why}", anomalies=tuple(found)
        )

    def _settle_move(
        self, account: BillingAccount, subscription_id: str, moved_at: int | None
    ) -> None:
        if account.folds[subscription_id].moved_at == moved_at:
            return
        moved = account.with_move(subscription_id, moved_at, self.policy)
        self._accounts[account.tenant_id] = moved

    def new_subscriptions(self) -> dict[str, str]:
        """Return the subscriptions that no tenant had before the batch, with the tenant of the
        newest event of each.
        """
        before = self.context.known.tenant_of_subscription
        return {
            name: each
            for name, each in self._known.tenant_of_subscription.items()
            if name not in before
        }

    def placed_events(self) -> list[PlacedEvent]:
        """Return the events of the batch that have a tenant, parked ones included that have one by
        now.
        """
        return [
            PlacedEvent(entry.tenant_id, entry.received.event)
            for entry in (*self.entries, *self.unparked)
            if entry.tenant_id is not None
            and fold_key(entry.received.event, self.policy) is not None
        ]

    def receive(self, received: ReceivedEvent) -> None:
        """Apply a new event; events are given in the order of their arrival."""
        event = received.event
        if rejected := rejection(event, self.policy):
            self.entries.append(
                LedgerEntry(received, None, *rejected, anomalies=anomalies(received, self.policy))
            )
            return
        tenant_id = self._tenant_of(event)
        if tenant_id in self._accounts:
            self.entries.append(self._apply(received, tenant_id, belated=received.belated))
        else:
            self._park(received)

    def _has_tenant(self, event: BillingEvent, tenant_id: str) -> bool:
        """Whether an event belongs to this tenant, or has another one by its placement."""
        return event.id in self.placements or tenant_of(event, self._known) == tenant_id

    def _tenant_of(self, event: BillingEvent) -> str | None:
        return self.placements.get(event.id) or tenant_of(event, self._known)

    def _park(self, received: ReceivedEvent) -> None:
        event = received.event
        if goes_by_customer(event):
            # a later event of this batch may link the customer
            self._parked[event.id] = received
        outcome, reason = Outcome.PARKED, f"Waits: {missing_name(event)} is not known yet."
        if event.type == ev.SNAPSHOT:
            outcome, reason = Outcome.IGNORED, f"There is no tenant {event.org_id} any more."
        self.entries.append(
            LedgerEntry(received, None, outcome, reason, anomalies=anomalies(received, self.policy))
        )

    def replace(self, invoices: Iterable[ReceivedEvent]) -> None:
        """Apply invoices that have left another tenant's ledger, by their placements."""
        for received in invoices:
            self.replaced.append(received.event.id)
            self.apply_parked(self.placements[received.event.id], [received])

    def apply_parked(self, tenant_id: str, parked: Iterable[ReceivedEvent]) -> None:
        """Apply parked events, in the order of the events, now that their tenant is known."""
        for received in parked:
            placed = self.placements.get(received.event.id, tenant_id)
            self.unparked.append(self._apply(received, placed, belated=True))

    def account(self, tenant_id: str) -> BillingAccount:
        """Return an account after the events so far."""
        return self._accounts[tenant_id]

    def changed_accounts(self) -> list[AccountChange]:
        """Return the accounts to write back."""
        for tenant_id, account in self._accounts.items():
            if len(account.folds) > MOST_SUBSCRIPTIONS:
                folds = within_bounds(account.folds, self.policy)
                self._accounts[tenant_id] = account.with_folds(folds, self.policy)
        return [
            AccountChange(account, stored)
            for tenant_id, account in sorted(self._accounts.items())
            if (stored := self.context.accounts[tenant_id]) is not account and account != stored
        ]

    def failed_payments(self) -> list[FailedPayment]:
        """Return the failures to notify owners of."""
        settled = set[str]().union(
            *(history.settled_failures() for history in self._moved.values())
        )
        return [
            FailedPayment(tenant_id, account.owner_id, event.id, event.invoice_url)
            for tenant_id, event, belated in self._failures
            if not (account := self._accounts[tenant_id]).deleted
            and event.id not in settled
            and (not belated or self._is_current(tenant_id, event))
        ]

    def notices(self) -> list[BillingNotice]:
        """Return the other notices to owners: of what is still true after the batch."""
        if not self.policy.notices:
            return []
        before, after, oldest = self.context.accounts, self._accounts, self._oldest_mailed
        current = [
            each for each in self._occasions if not each.belated or each.event.created > oldest
        ]
        moves = moves_of(before, after, self.policy, self.now, oldest) if self._moved else []
        return due_notices(current, moves, before, after, self.policy, self.now)

    def _is_current(self, tenant_id: str, failure: BillingEvent) -> bool:
        """Whether a belated failure counts: it is recent, its invoice is unpaid, and what it is of
        ends past due.
        """
        if failure.created <= self._oldest_mailed:
            return False
        key = fold_key(failure, self.policy)
        if key is None:
            is_past_due = self._accounts[tenant_id].record.subscription_status == PAST_DUE
            return is_past_due and not self._is_paid(tenant_id, failure)
        if key in self._accounts[tenant_id].moved_at:
            return False
        timeline = self._timelines[tenant_id, key]
        return timeline.state.subscription_status == PAST_DUE and not is_settled(
            failure, timeline.after(failure)
        )

    def _is_paid(self, tenant_id: str, failure: BillingEvent) -> bool:
        """Whether a payment of the invoice is known that is not older than its failure."""
        return self._paid.get((tenant_id, failure.invoice_id or ""), -1) >= failure.created

    def _apply(self, received: ReceivedEvent, tenant_id: str, *, belated: bool) -> LedgerEntry:
        """Apply an event whose tenant is known; return its entry."""
        event = received.event
        account = self._whole_account(tenant_id)
        key, before = fold_key(event, self.policy), account.record
        if event.invoice_id and event.type in ev.PAYMENT_TYPES:
            invoice = tenant_id, event.invoice_id
            self._paid[invoice] = max(event.created, self._paid.get(invoice, -1))
        if self.policy.notices and (notice := notice_of_type(event, self.policy)):
            self._occasions.append(Occasion(notice, tenant_id, event, before.plan, belated))
        link = None
        if event.customer_id and may_link(event):
            link = self._link(event, event.customer_id, self._accounts[tenant_id])
        found = [
            *anomalies(received, self.policy),
            *([link.anomaly] if link and link.anomaly else []),
        ]
        if key is None:
            outcome, reason = self._without_fold(event, tenant_id, belated=belated)
            if link:
                outcome, reason = link.outcome, link.reason
        else:
            placement = self._fold_in(tenant_id, key, event, found, belated=belated)
            self._note_change(account, event, placement, belated=belated)
            outcome, reason = placement.outcome, placement.reason
            reason = f"{reason} {link.reason}" if link else reason
        after = self._accounts[tenant_id].record
        if key and self.policy.is_each:
            self._note_subscription(key, tenant_id, event)
        elif key is not None and event.subscription_id and event.type not in ev.INVOICE_TYPES:
            self._note_current(event.subscription_id, tenant_id)
        return LedgerEntry(received, tenant_id, outcome, reason, before, after, tuple(found))

    def _fold_in(
        self, tenant_id: str, key: str, event: BillingEvent, found: list[Anomaly], *, belated: bool
    ) -> Placement:
        """Fold an event, and request a snapshot where events alone do not prove the state; add to
        its anomalies.
        """
        account = self._accounts[tenant_id]
        placement = self._place(account, key, event)
        if placement.is_ambiguous:
            found.append(Anomaly.AMBIGUOUS_ORDER)
        is_of_another = not self.policy.is_each and _is_of_another(placement.before, event)
        if placement.is_ambiguous or is_of_another:
            self.snapshot_requests.append(SnapshotRequest(tenant_id, later=True))
        if placement.notify:
            self._failures.append((tenant_id, event, belated))
        if len(self._accounts[tenant_id].folds) > MOST_SUBSCRIPTIONS:
            found.append(Anomaly.TOO_MANY_SUBSCRIPTIONS)
        return placement

    def _note_change(
        self, account: BillingAccount, event: BillingEvent, placement: Placement, *, belated: bool
    ) -> None:
        """Note what an event changed, if that may cause a notice.

        ``account`` is the tenant's before the event. An event that links a customer comes after
        those that waited for it: what these gave in passing the tenant never had.
        """
        if not self.policy.notices or (
            not self.policy.is_each and _is_of_another(placement.before, event)
        ):
            return
        records = self._known_record(account, event), self._accounts[account.tenant_id].record
        if notice := notice_of_change(event, placement, *records, self.policy, self.now):
            self._occasions.append(
                Occasion(notice, account.tenant_id, event, placement.before.plan, belated)
            )

    def _known_record(self, account: BillingAccount, event: BillingEvent) -> BillingRecord:
        """Return an account's record without the event's subscription if only invoices of that are
        known.

        Its first own event says what it has been since then.
        """
        key = fold_key(event, self.policy)
        fold = account.folds.get(key or "")
        if not self.policy.is_each or fold is None or fold.state.reported_at is not None:
            return account.record
        others = {name: other for name, other in account.folds.items() if name != key}
        return account.with_folds(others, self.policy).record

    def _without_fold(
        self, event: BillingEvent, tenant_id: str, *, belated: bool
    ) -> tuple[Outcome, str]:
        """Handle an event that changes no state."""
        if event.type in ev.CHECKOUT_TYPES:
            self.snapshot_requests.append(SnapshotRequest(tenant_id, later=False))
            if event.type == ev.CHECKOUT_COMPLETED:
                return Outcome.NO_CHANGE, "The customer was linked to this tenant before."
            return Outcome.NO_CHANGE, "The provider is asked."
        if event.type == ev.PAYMENT_FAILED and (belated or not self._is_paid(tenant_id, event)):
            self._failures.append((tenant_id, event, belated))
        if event.type in ev.INVOICE_TYPES:
            return Outcome.NO_CHANGE, "The invoice names no subscription."
        return Outcome.NO_CHANGE, "This type changes no state."

    def _place(self, account: BillingAccount, key: str, event: BillingEvent) -> Placement:
        timeline = self._timelines.get((account.tenant_id, key))
        if timeline is None:
            need = self.needs.get((account.tenant_id, key))
            checkpoint = account.checkpoint(key, need, self.policy)
            history = self.histories.get((account.tenant_id, key), ())
            rest = account.folds.get(key) if need is not None and need.until is not None else None
            timeline = begin(checkpoint, history, self.policy, rest)
            if event.type == ev.SNAPSHOT and (former := confirmed(timeline, event)):
                self.superseded.append(former.id)
                timeline = begin(checkpoint, timeline.events[:-1], self.policy)
        placement = place(timeline, event, self.policy)
        self._timelines[account.tenant_id, key] = placement.timeline
        folded = account.keep_move(key, placement.timeline.folded())
        folds = {**account.folds, key: folded}
        self._accounts[account.tenant_id] = account.with_folds(folds, self.policy)
        return placement

    def _whole_account(self, tenant_id: str) -> BillingAccount:
        """Return an account; one that is not whole is folded from its beginning first."""
        account = self._accounts[tenant_id]
        if account.is_whole or (history := self.histories.get((tenant_id, None))) is None:
            return account
        by_key = defaultdict[str, list[BillingEvent]](list)
        for event in history:
            if (key := fold_key(event, self.policy)) is not None:
                by_key[key].append(event)
        folds = {}
        for key, events in by_key.items():
            timeline = begin(account.beginning_of(key, self.policy), events, self.policy)
            self._timelines[tenant_id, key] = timeline
            folds[key] = timeline.folded()
        whole = msgspec.structs.replace(account, is_whole=True).with_folds(folds, self.policy)
        self._accounts[tenant_id] = whole
        return whole

    def _note_subscription(self, subscription_id: str, tenant_id: str, event: BillingEvent) -> None:
        """Note the tenant of a subscription: let later invoices find it, and waiting ones now."""
        tenants = self._tenants_of.setdefault(
            subscription_id, list(self.context.tenants_of_subscription.get(subscription_id, ()))
        )
        if tenant_id not in tenants:
            tenants.append(tenant_id)
        known = self._known.tenant_of_subscription
        has_moved = len(tenants) > 1 and self._may_move(subscription_id, tenant_id, event, tenants)
        if has_moved or self._concerns_former(subscription_id, tenant_id, event):
            self.contested.add(subscription_id)
        if event.type in ev.INVOICE_TYPES:
            return
        holder = known.setdefault(subscription_id, tenant_id)
        if holder != tenant_id:
            _, holder = max(
                (self._reported_at(each, subscription_id), each) for each in (holder, tenant_id)
            )
            known[subscription_id] = holder
        if self._parked and holder == tenant_id:
            self._apply_waiting(tenant_id, lambda event: event.subscription_id == subscription_id)

    def _note_current(self, subscription_id: str, tenant_id: str) -> None:
        """Note the tenant whose one state is from a subscription: let invoices without a customer
        find it.
        """
        self._known.tenant_of_current[subscription_id] = tenant_id
        if self._parked:
            self._apply_waiting(
                tenant_id,
                lambda event: (
                    event.customer_id is None and event.subscription_id == subscription_id
                ),
            )

    def _may_move(
        self, subscription_id: str, tenant_id: str, event: BillingEvent, tenants: Iterable[str]
    ) -> bool:
        """Whether all events of a subscription that several tenants have must decide whose it and
        its invoices are.

        Not after an event that is newer than all others, and is of the tenant that has the
        subscription.
        """
        others = [self._reported_at(each, subscription_id) for each in tenants if each != tenant_id]
        own = self._reported_at(tenant_id, subscription_id)
        if event.type in ev.INVOICE_TYPES:
            return event.created <= max(own, *others)
        holder = self._known.tenant_of_subscription.get(subscription_id)
        is_newest = event.created == own and min(others) > -1 and max(others) < own
        return holder != tenant_id or not is_newest

    def _concerns_former(self, subscription_id: str, tenant_id: str, event: BillingEvent) -> bool:
        """Whether an event names a former tenant of its subscription, or is an invoice from before
        such an event.

        Of an invoice that is older than the subscription's events, the timeline begins with the
        first of these.
        """
        if event.type in NAMING_TYPES:
            return former_tenant(event) not in (None, tenant_id)
        timeline = self._timelines[tenant_id, subscription_id]
        first = next((each for each in timeline.events if each.type in NAMING_TYPES), None)
        if (
            first is None
            or event.created >= first.created
            or timeline.checkpoint.reported_at is not None
        ):
            return False
        return former_tenant(first) not in (None, tenant_id)

    def _reported_at(self, tenant_id: str, subscription_id: str) -> int:
        fold = (
            self._accounts[tenant_id].folds.get(subscription_id)
            if tenant_id in self._accounts
            else None
        )
        return -1 if fold is None or fold.state.reported_at is None else fold.state.reported_at

    def _apply_waiting(self, tenant_id: str, condition: Callable[[BillingEvent], bool]) -> None:
        """Apply the events that wait for a customer or subscription that is known now, and that are
        this tenant's.
        """
        ready = [
            received
            for received in self._parked.values()
            if condition(received.event) and self._has_tenant(received.event, tenant_id)
        ]
        for received in ready:
            del self._parked[received.event.id]
        self.apply_parked(tenant_id, ready)

    def _link(
        self, event: BillingEvent, customer_id: str, account: BillingAccount
    ) -> LinkResult | None:
        """Link the event's customer to its tenant where the rules allow it; None where nothing is
        to be done.
        """
        result = link_result(
            event, account, self._known.tenant_of_customer.get(customer_id), self._accounts
        )
        if result and result.outcome is Outcome.APPLIED:
            self.links.append(CustomerLink(customer_id, account.tenant_id, event.id))
            self._known.tenant_of_customer[customer_id] = account.tenant_id
            self._accounts[account.tenant_id] = msgspec.structs.replace(
                account, customer_id=customer_id
            )
            self._apply_waiting(account.tenant_id, lambda parked: parked.customer_id == customer_id)
        return result


def _is_of_another(state: BillingState, event: BillingEvent) -> bool:
    """Whether an event is of another subscription than the one that the tenant's one state is
    from.
    """
    if state.subscription_id == event.subscription_id and not state.others:
        return False
    if event.type == ev.SNAPSHOT or event.subscription_id is None:
        return False
    if event.type == ev.SUBSCRIPTION_DELETED and any(
        other.status not in OVER for other in state.others
    ):
        return True
    return state.subscription_id not in (None, event.subscription_id)


def confirmed(timeline: Timeline, snapshot: BillingEvent) -> BillingEvent | None:
    """Return the newest event if it is a snapshot with the same facts as this one, and changed
    nothing.

    The ledger can drop it then: no event, however late, leads to another state without it. One that
    is past due stays: it says since when at the latest.
    """
    if not timeline.events or timeline.newest > snapshot.created or snapshot.status in OWING:
        return None
    newest, last = timeline.events[-1], len(timeline.events) - 1
    same = msgspec.structs.replace(
        newest, id=snapshot.id, created=snapshot.created, arrival=snapshot.arrival
    )
    before = msgspec.structs.replace(timeline.before(last), reported_at=timeline.state.reported_at)
    return newest if same == snapshot and before == timeline.state else None
