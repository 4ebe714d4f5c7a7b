"""A batch of events, applied in memory to the accounts that it touches.

`BatchApplication` applies all events when it is made. Where these move subscriptions between
tenants, more of the ledger decides (`tenantry.billing.locked_ledger`). Then
`BatchApplication.changes` returns what the batch writes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Final

import msgspec

from tenantry.common.encoding import shortened
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.anomalies import anomalies, rejection
from tenantry.domain.billing.batch import (
    NO_MOVES,
    NOTHING_STORED,
    BatchChanges,
    Moves,
    StoredEvents,
    Work,
    missing_name,
)
from tenantry.domain.billing.customer_links import (
    LinkResult,
    goes_by_customer,
    link_result,
    may_link,
    proves_customer,
    tenant_of,
)
from tenantry.domain.billing.events import Anomaly, BillingEvent, Outcome, is_settled
from tenantry.domain.billing.ledger import (
    AccountChange,
    BatchContext,
    BillingAccount,
    CustomerLink,
    CustomerUse,
    KnownTenants,
    LedgerEntry,
    ReceivedEvent,
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
    payment_failed_notice,
)
from tenantry.domain.billing.reversals import ReversalBook, changes_of
from tenantry.domain.billing.state import OWING, PAST_DUE, BillingPolicy, BillingState, fold_key
from tenantry.domain.billing.subscription_history import (
    NAMING_TYPES,
    PlacedEvent,
    SubscriptionHistory,
    former_tenant,
)
from tenantry.domain.billing.subscription_rank import MOST_SUBSCRIPTIONS
from tenantry.domain.billing.tenant_record import BillingRecord
from tenantry.domain.billing.timeline import (
    BY_ARRIVAL,
    MOST_NAMED,
    Placement,
    Timeline,
    begin,
    place,
)
from tenantry.domain.outbound_events import NewEvent
from tenantry.domain.owner_mails import NewMail, OwnerNotice
from tenantry.domain.plans import OVER


class _Arrival(msgspec.Struct, frozen=True):
    """An event with its tenant, the key of its fold, and the account before it.

    ``delayed`` if it was fetched or parked, so that it may be old: its mails count only while they
    are true.
    """

    event: BillingEvent
    tenant_id: str
    key: str | None
    before: BillingAccount
    delayed: bool


class _Effect(msgspec.Struct, frozen=True):
    """The outcome of an event with its reason, and the anomalies that depend on the tenant;
    ``event`` if the earlier events say more of it.
    """

    outcome: Outcome
    reason: str
    anomalies: tuple[Anomaly, ...] = ()
    event: BillingEvent | None = None


_REASONS_WITHOUT_FOLD: Final = {
    ev.CHECKOUT_COMPLETED: "The customer was linked to this organization before.",
    **dict.fromkeys(
        (ev.ASYNC_PAYMENT_SUCCEEDED, ev.ASYNC_PAYMENT_FAILED), "The provider is asked."
    ),
    **dict.fromkeys(ev.INVOICE_TYPES, "The invoice names no subscription."),
}


class BatchApplication:
    """The events of a batch, applied to its accounts in memory; no method changes it."""

    def __init__(
        self,
        context: BatchContext,
        policy: BillingPolicy,
        now: datetime,
        work: Work,
        moves: Moves = NO_MOVES,
        stored: StoredEvents = NOTHING_STORED,
    ) -> None:
        """Apply the events: first those that move or were parked, then the new ones."""
        self.context = context
        self.entries: list[LedgerEntry] = []
        self.contested = set(work.moved)
        """Subscriptions of which the whole history decides which tenant they and their invoices
        belong to.
        """
        self._policy = policy
        self._now = now
        self._moves = moves
        self._stored = stored
        self._oldest_mailed = (
            now.timestamp() - timedelta(hours=policy.parked_mail_hours).total_seconds()
        )
        self._accounts = dict(context.accounts)
        self._known = _copied(context.known)
        self._paid = dict(stored.paid)
        self._parked = {each.event.id: each for each in stored.waiting}
        self._timelines: dict[tuple[str, str], Timeline] = {}
        self._tenants_of: dict[str, list[str]] = {}
        self._unparked: list[LedgerEntry] = []
        self._links: list[CustomerLink] = []
        self._missing_at = {
            each.customer_id: each.missing_at
            for each in chain.from_iterable(context.linked_customers.values())
            if each.is_gone
        }
        """The customers that cannot be used; see `LinkedCustomer`."""
        self._customer_uses: dict[str, CustomerUse] = {}
        self._new_customers = defaultdict[str, list[str]](list)
        self._superseded: list[str] = []
        self._snapshot_requests: list[SnapshotRequest] = []
        self._failures: list[_Arrival] = []
        self._reversals = ReversalBook(stored.reversals)
        self._published: list[NewEvent] = []
        self._has_unknown_payments = False
        self._occasions: list[Occasion] = []
        self._apply_all(work)

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
            for entry in (*self.entries, *self._unparked)
            if entry.tenant_id is not None
            and fold_key(entry.received.event, self._policy) is not None
        ]

    def histories(
        self, stored: Iterable[tuple[str, ReceivedEvent]]
    ) -> dict[str, SubscriptionHistory]:
        """Return the `contested` subscriptions with their events, the ``stored`` ones and those of
        the batch.
        """
        placed = [PlacedEvent(tenant_id, each.event) for tenant_id, each in stored]
        placed += self.placed_events()
        return {
            name: SubscriptionHistory(each for each in placed if each.event.subscription_id == name)
            for name in self.contested
        }

    def unread_owners(self, owners: Mapping[str, str]) -> set[str]:
        """Return the tenants of new invoices that are not in the context; ``owners`` has tenants by
        event.
        """
        new = {entry.received.event.id for entry in self.entries}
        found = {tenant_id for name, tenant_id in owners.items() if name in new}
        return found - self.context.accounts.keys()

    def changes(
        self,
        histories: Mapping[str, SubscriptionHistory] = {},
        unread: Iterable[str] = (),
    ) -> BatchChanges:
        """Return the changes to write, given all events of the `contested` subscriptions.

        Each of these counts for the tenant alone that it names by all its events.
        """
        accounts, entries, unparked = self._accounts, self.entries, self._unparked
        requests = self._snapshot_requests
        if histories:
            accounts = {
                tenant_id: _after_moves(account, histories, self._policy)
                for tenant_id, account in accounts.items()
            }
            entries = [_with_undecided_move(entry, histories) for entry in entries]
            unparked = [_with_undecided_move(entry, histories) for entry in unparked]
            requests = requests + _requests_of_undecided((*entries, *unparked), histories)
        bounded = {
            tenant_id: _bounded(account, self._policy) for tenant_id, account in accounts.items()
        }
        return BatchChanges(
            policy=self._policy,
            replaceable=self.context.replaceable,
            entries=entries,
            unparked=unparked,
            links=self._links,
            customer_uses=[*self._customer_uses.values()],
            superseded=self._superseded,
            withdrawn=[each.event.id for each in self._moves.leaving],
            accounts=accounts,
            changed_accounts=_changed(self.context.accounts, bounded),
            failed_payments=self._failed_payments(bounded, histories),
            notices=self._notices(bounded, are_moved=bool(histories)),
            snapshot_requests=requests,
            unread=frozenset(unread),
            published=self._published,
            has_unknown_payments=self._has_unknown_payments,
        )

    def _failed_payments(
        self, accounts: Mapping[str, BillingAccount], histories: Mapping[str, SubscriptionHistory]
    ) -> list[NewMail]:
        """Return the mails of the failures to notify owners of (SPEC 2.4)."""
        settled = set[str]().union(*(each.settled_failures() for each in histories.values()))
        unsettled = [each for each in self._failures if each.event.id not in settled]
        due = [
            (failure.event, accounts[failure.tenant_id])
            for failure in unsettled
            if not failure.delayed or self._is_still_unpaid(failure, accounts)
        ]
        return [
            payment_failed_notice(account.tenant_id, event)
            for event, account in due
            if not account.deleted
        ]

    def _is_still_unpaid(self, failure: _Arrival, accounts: Mapping[str, BillingAccount]) -> bool:
        """Whether the invoice of a delayed failure is unpaid, and what it is of ends past due."""
        event, tenant_id, key = failure.event, failure.tenant_id, failure.key
        account = accounts[tenant_id]
        if key is None:
            is_past_due = account.record.subscription_status == PAST_DUE
            return is_past_due and not self._is_paid(failure)
        if key in account.moved_at:
            return False
        timeline = self._timelines[tenant_id, key]
        is_past_due = timeline.state.subscription_status == PAST_DUE
        return is_past_due and not is_settled(event, timeline.after(event))

    def _notices(
        self, accounts: Mapping[str, BillingAccount], *, are_moved: bool
    ) -> list[BillingNotice]:
        """Return the other notices to owners: of what is still true after the batch."""
        if not self._policy.notices:
            return []
        before, occasions = self.context.accounts, self._occasions
        if are_moved:
            oldest = self._oldest_mailed
            occasions = occasions + moves_of(before, accounts, self._policy, self._now, oldest)
        return due_notices(occasions, before, accounts, self._policy, self._now)

    # What follows changes the application, and is called while it is made.

    def _apply_all(self, work: Work) -> None:
        for (tenant_id, subscription_id), events in self._moves.left.items():
            self._keep_only(tenant_id, subscription_id, events)
        if self._policy.is_each:
            # let invoices of this batch find the tenants of subscriptions that begin in it
            self._known.tenant_of_subscription.update(self._moves.begun)
        for received in self._moves.leaving:
            self._apply_parked(self._moves.placements[received.event.id], [received])
        self._apply_parked(work.tenant_id, work.parked)
        for received in work.new:
            self.entries.append(self._apply_new(received))

    def _keep_only(
        self, tenant_id: str, subscription_id: str, events: Sequence[BillingEvent]
    ) -> None:
        """Leave a tenant with only these events of a subscription: its other invoices are another
        tenant's.
        """
        account = self._accounts[tenant_id]
        if not account.is_whole:
            return  # its next event folds all
        folds = {key: fold for key, fold in account.folds.items() if key != subscription_id}
        if events:
            beginning = account.beginning_of(subscription_id, self._policy)
            folded = begin(beginning, events, self._policy).folded()
            folds[subscription_id] = account.keep_move(subscription_id, folded)
        self._accounts[tenant_id] = account.with_folds(folds, self._policy)

    def _apply_new(self, received: ReceivedEvent) -> LedgerEntry:
        event = received.event
        if rejected := rejection(event, self._policy):
            return self._entry_without_tenant(received, *rejected)
        tenant_id = self._moves.placements.get(event.id) or tenant_of(event, self._known)
        if tenant_id in self._accounts:
            return self._apply(received, tenant_id, delayed=received.fetched)
        return self._park(received)

    def _park(self, received: ReceivedEvent) -> LedgerEntry:
        event = received.event
        if goes_by_customer(event):
            # a later event of this batch may link the customer
            self._parked[event.id] = received
        if event.reversal is not None and not event.customer_id:
            self._has_unknown_payments = True
        outcome, reason = Outcome.PARKED, f"Waits: {missing_name(event)} is not known yet."
        if event.type == ev.SNAPSHOT:
            outcome, reason = Outcome.IGNORED, f"There is no tenant {event.org_id} any more."
        return self._entry_without_tenant(received, outcome, reason)

    def _entry_without_tenant(
        self, received: ReceivedEvent, outcome: Outcome, reason: str
    ) -> LedgerEntry:
        found = anomalies(received, self._policy)
        return LedgerEntry(received, None, outcome, reason, anomalies=found)

    def _apply_parked(self, tenant_id: str, parked: Iterable[ReceivedEvent]) -> None:
        """Apply parked events, in the order of the events, now that their tenant is known."""
        for received in parked:
            placed = self._moves.placements.get(received.event.id, tenant_id)
            self._unparked.append(self._apply(received, placed, delayed=True))

    def _apply_waiting(self, tenant_id: str, condition: Callable[[BillingEvent], bool]) -> None:
        """Apply the events that wait for a customer or subscription that is known now, and that are
        this tenant's.
        """
        ready = [
            received
            for received in self._parked.values()
            if condition(received.event) and self._may_be_of(received.event, tenant_id)
        ]
        for received in ready:
            del self._parked[received.event.id]
        self._apply_parked(tenant_id, ready)

    def _may_be_of(self, event: BillingEvent, tenant_id: str) -> bool:
        """Whether an event belongs to this tenant, or has another one by its placement."""
        return event.id in self._moves.placements or tenant_of(event, self._known) == tenant_id

    def _apply(self, received: ReceivedEvent, tenant_id: str, *, delayed: bool) -> LedgerEntry:
        """Apply an event whose tenant is known; return its entry."""
        self._fold_whole_ledger(tenant_id)
        event, before = received.event, self._accounts[tenant_id]
        arrival = _Arrival(event, tenant_id, fold_key(event, self._policy), before, delayed)
        self._note_payment(arrival)
        if self._policy.notices:
            self._note_occasion(arrival, notice_of_type(event, self._policy), before.record.plan)
        link = self._link(arrival)
        effect = _with_link(self._fold(arrival), link, arrival)
        after = self._accounts[tenant_id].record
        self._note_subscription(arrival)
        if event.payments:
            self._note_payments(event, tenant_id)
        found = (*anomalies(received, self._policy), *effect.anomalies)
        if effect.event is not None:
            received = msgspec.structs.replace(received, event=effect.event)
        return LedgerEntry(
            received, tenant_id, effect.outcome, effect.reason, before.record, after, found
        )

    def _note_payments(self, event: BillingEvent, tenant_id: str) -> None:
        """Let refunds and disputes of these payments find the tenant, those that wait too."""
        self._known.tenant_of_payment.update(dict.fromkeys(event.payments, tenant_id))
        if self._parked:
            names = set(event.payments)
            self._apply_waiting(
                tenant_id,
                lambda each: each.reversal is not None and not names.isdisjoint(each.payments),
            )

    def _fold_whole_ledger(self, tenant_id: str) -> None:
        """Fold an account that is not whole from its beginning."""
        account = self._accounts[tenant_id]
        if account.is_whole or (tenant_id, None) not in self._stored.histories:
            return
        history = self._stored.histories[tenant_id, None]
        folds = {}
        for key, events in _by_fold(history, self._policy).items():
            timeline = begin(account.beginning_of(key, self._policy), events, self._policy)
            self._timelines[tenant_id, key] = timeline
            folds[key] = account.keep_move(key, timeline.folded())
        whole = msgspec.structs.replace(account, is_whole=True)
        self._accounts[tenant_id] = whole.with_folds(folds, self._policy)

    def _note_payment(self, arrival: _Arrival) -> None:
        event = arrival.event
        if event.invoice_id and event.type in ev.PAYMENT_TYPES:
            invoice = arrival.tenant_id, event.invoice_id
            self._paid[invoice] = max(event.created, self._paid.get(invoice, -1))

    def _is_paid(self, failure: _Arrival) -> bool:
        """Whether a payment of the invoice is known that is not older than its failure."""
        event = failure.event
        return self._paid.get((failure.tenant_id, event.invoice_id or ""), -1) >= event.created

    def _note_occasion(self, arrival: _Arrival, notice: OwnerNotice | None, plan: str) -> None:
        if notice is not None and self._is_recent(arrival):
            self._occasions.append(Occasion(notice, arrival.tenant_id, arrival.event, plan))

    def _note_failure(self, arrival: _Arrival) -> None:
        if self._is_recent(arrival):
            self._failures.append(arrival)

    def _is_recent(self, arrival: _Arrival) -> bool:
        return not arrival.delayed or arrival.event.created > self._oldest_mailed

    def _link(self, arrival: _Arrival) -> LinkResult | None:
        """Link the event's customer to its tenant where the rules allow it; None where nothing is
        to be done.
        """
        event, customer_id, tenant_id = arrival.event, arrival.event.customer_id, arrival.tenant_id
        if not customer_id:
            return None
        account, holder = arrival.before, self._known.tenant_of_customer.get(customer_id)
        if holder == tenant_id and customer_id in self._missing_at:
            return self._use_again(arrival, customer_id)
        if not may_link(event):
            return None
        result = link_result(event, account, holder, self._accounts)
        if result and result.outcome is Outcome.APPLIED:
            self._links.append(CustomerLink(customer_id, tenant_id, event.id))
            self._known.tenant_of_customer[customer_id] = tenant_id
            self._new_customers[tenant_id].insert(0, customer_id)
            self._accounts[tenant_id] = msgspec.structs.replace(account, customer_id=customer_id)
            self._apply_waiting(tenant_id, lambda parked: parked.customer_id == customer_id)
        return result

    def _fold(self, arrival: _Arrival) -> _Effect:
        """Fold an event, and request a snapshot where events alone do not prove the state."""
        if arrival.key is None:
            return self._take_without_fold(arrival)
        placement = self._place(arrival, arrival.key)
        is_of_another = not self._policy.is_each and _is_of_another(placement.before, arrival.event)
        if arrival.event.details.is_truncated and arrival.event.type != ev.SNAPSHOT:
            self._request_snapshot(arrival, later=False)
        elif placement.is_ambiguous or is_of_another:
            self._request_snapshot(arrival, later=True)
        if placement.notify:
            self._note_failure(arrival)
        if self._policy.notices and not is_of_another:
            notice = self._notice_of_change(arrival, placement)
            self._note_occasion(arrival, notice, placement.before.plan)
        found = _anomalies_of(placement, self._accounts[arrival.tenant_id])
        return _Effect(placement.outcome, placement.reason, found)

    def _take_without_fold(self, arrival: _Arrival) -> _Effect:
        """Note what an event that changes no state asks for."""
        event = arrival.event
        if event.reversal is not None:
            return self._take_reversal(arrival)
        if event.type in ev.CUSTOMER_GONE_TYPES:
            return self._give_up_customer(arrival)
        if event.type in ev.CHECKOUT_TYPES:
            self._request_snapshot(arrival, later=False)
        if event.type == ev.PAYMENT_FAILED and (arrival.delayed or not self._is_paid(arrival)):
            self._note_failure(arrival)
        reason = _REASONS_WITHOUT_FOLD.get(event.type, "This type changes no state.")
        return _Effect(Outcome.NO_CHANGE, reason)

    def _take_reversal(self, arrival: _Arrival) -> _Effect:
        """Publish a new state of a refund or dispute; that of an ended tenant is only noted."""
        effect = self._reversals.take(arrival.tenant_id, arrival.event)
        if not arrival.before.deleted:
            self._published += changes_of(arrival.tenant_id, effect)
        return _Effect(effect.outcome, effect.reason, effect.anomalies, effect.event)

    def _give_up_customer(self, arrival: _Arrival) -> _Effect:
        """Use a customer no more that the provider does not have any more; its events stay the
        tenant's. The provider is asked about its subscriptions, which it has ended.

        A deletion is final. Any other answer holds until an event proves the customer later.
        """
        event, tenant_id = arrival.event, arrival.tenant_id
        customer_id = event.customer_id or ""
        if self._known.tenant_of_customer.get(customer_id) != tenant_id:
            reason = f"Customer {customer_id} does not belong to this organization."
            return _Effect(Outcome.NO_CHANGE, reason)
        is_final = event.type == ev.CUSTOMER_DELETED
        if not is_final and self._is_known_better(arrival, customer_id):
            reason = f"A newer event says whether the provider has customer {customer_id}."
            return _Effect(Outcome.NO_CHANGE, reason)
        self._missing_at[customer_id] = None if is_final else event.created
        self._customer_uses[customer_id] = CustomerUse(customer_id, tenant_id, event.id)
        if self._accounts[tenant_id].customer_id == customer_id:
            self._use_newest_customer(tenant_id)
        self._request_snapshot(arrival, later=False)
        return _Effect(
            Outcome.APPLIED,
            f"The provider has no customer {customer_id} any more: the next checkout makes another one.",
        )

    def _use_again(self, arrival: _Arrival, customer_id: str) -> LinkResult | None:
        """Use a customer again that the provider did not know for a time, as with another account's
        API key.
        """
        event, tenant_id = arrival.event, arrival.tenant_id
        missing_at = self._missing_at[customer_id]
        if missing_at is None or event.created <= missing_at or not proves_customer(event):
            return None
        del self._missing_at[customer_id]
        self._customer_uses[customer_id] = CustomerUse(customer_id, tenant_id, None)
        self._use_newest_customer(tenant_id)
        return LinkResult(Outcome.APPLIED, f"The provider has customer {customer_id} again.")

    def _is_known_better(self, arrival: _Arrival, customer_id: str) -> bool:
        """Whether a deletion or a newer event says more of a customer than that it is missing."""
        missing_at = self._missing_at.get(customer_id, -1)
        if missing_at is None:
            return True
        proved_at = self._proved_at(arrival.tenant_id, customer_id)
        return max(missing_at, proved_at) > arrival.event.created

    def _proved_at(self, tenant_id: str, customer_id: str) -> int:
        """Return the second of the newest event so far that proves a customer."""
        linked = self.context.linked_customers.get(tenant_id, ())
        stored = [each.proved_at for each in linked if each.customer_id == customer_id]
        placed = [
            entry.received.event
            for entry in (*self.entries, *self._unparked)
            if entry.tenant_id == tenant_id
        ]
        proving = [each for each in placed if each.customer_id == customer_id]
        seconds = [each.created for each in proving if proves_customer(each)]
        return max((*stored, *seconds), default=-1)

    def _use_newest_customer(self, tenant_id: str) -> None:
        """Let a tenant's record name its newest customer that can be used."""
        before = self.context.accounts[tenant_id].customer_id
        linked = self.context.linked_customers.get(tenant_id, ())
        known = (*self._new_customers[tenant_id], *(each.customer_id for each in linked), before)
        newest = next((each for each in known if each not in self._missing_at), None)
        account = self._accounts[tenant_id]
        self._accounts[tenant_id] = msgspec.structs.replace(account, customer_id=newest)

    def _request_snapshot(self, arrival: _Arrival, *, later: bool) -> None:
        self._snapshot_requests.append(SnapshotRequest(arrival.tenant_id, later))

    def _notice_of_change(self, arrival: _Arrival, placement: Placement) -> OwnerNotice | None:
        """Return the notice of what an event changed.

        An event that links a customer comes after those that waited for it: what these gave in
        passing the tenant never had.
        """
        before, after = (
            _known_record(arrival, self._policy),
            self._accounts[arrival.tenant_id].record,
        )
        return notice_of_change(arrival.event, placement, before, after, self._policy, self._now)

    def _place(self, arrival: _Arrival, key: str) -> Placement:
        tenant_id, event = arrival.tenant_id, arrival.event
        timeline = self._timelines.get((tenant_id, key)) or self._begin_timeline(arrival, key)
        placement = place(timeline, event, self._policy)
        self._timelines[tenant_id, key] = placement.timeline
        account = self._accounts[tenant_id]
        folded = account.keep_move(key, placement.timeline.folded())
        self._accounts[tenant_id] = account.with_folds({**account.folds, key: folded}, self._policy)
        return placement

    def _begin_timeline(self, arrival: _Arrival, key: str) -> Timeline:
        """Return the timeline of a fold before an event; a snapshot that confirms the newest
        snapshot supersedes it.
        """
        fold_id, account = (arrival.tenant_id, key), self._accounts[arrival.tenant_id]
        need = self._stored.needs.get(fold_id)
        checkpoint = account.checkpoint(key, need, self._policy)
        rest = account.folds.get(key) if need is not None and need.until is not None else None
        timeline = begin(checkpoint, self._stored.histories.get(fold_id, ()), self._policy, rest)
        if arrival.event.type == ev.SNAPSHOT and (former := confirmed(timeline, arrival.event)):
            self._superseded.append(former.id)
            return begin(checkpoint, timeline.events[:-1], self._policy)
        return timeline

    def _note_subscription(self, arrival: _Arrival) -> None:
        """Note the tenant of a subscription: let later invoices find it, and waiting ones now."""
        event, subscription_id = arrival.event, arrival.event.subscription_id
        if arrival.key is None or not subscription_id:
            return
        if self._policy.is_each:
            self._note_contested(arrival, subscription_id)
        if event.type in ev.INVOICE_TYPES:
            return
        if self._policy.is_each:
            self._note_holder(arrival, subscription_id)
        else:
            self._note_current(arrival, subscription_id)

    def _note_contested(self, arrival: _Arrival, subscription_id: str) -> None:
        """Note a subscription of which the whole history decides whose it and its invoices are."""
        tenant_id, stored = arrival.tenant_id, self.context.tenants_of_subscription
        tenants = self._tenants_of.setdefault(
            subscription_id, list(stored.get(subscription_id, ()))
        )
        if tenant_id not in tenants:
            tenants.append(tenant_id)
        others = [each for each in tenants if each != tenant_id]
        naming = _naming_event(arrival.event, self._timelines[tenant_id, subscription_id])
        names_former = naming is not None and former_tenant(naming) not in (None, tenant_id)
        if names_former or (others and self._may_move(arrival, subscription_id, others)):
            self.contested.add(subscription_id)

    def _may_move(self, arrival: _Arrival, subscription_id: str, others: Iterable[str]) -> bool:
        """Whether all events of a subscription that ``others`` have too must decide.

        Not after an event that is newer than all others, and is of the tenant that has the
        subscription.
        """
        created = arrival.event.created
        own = self._reported_at(arrival.tenant_id, subscription_id)
        of_others = [self._reported_at(each, subscription_id) for each in others]
        if arrival.event.type in ev.INVOICE_TYPES:
            return created <= max(own, *of_others)
        holder = self._known.tenant_of_subscription.get(subscription_id)
        is_newest = created == own and min(of_others) > -1 and max(of_others) < own
        return holder != arrival.tenant_id or not is_newest

    def _reported_at(self, tenant_id: str, subscription_id: str) -> int:
        account = self._accounts.get(tenant_id)
        fold = account.folds.get(subscription_id) if account else None
        return -1 if fold is None or fold.state.reported_at is None else fold.state.reported_at

    def _note_holder(self, arrival: _Arrival, subscription_id: str) -> None:
        """Note the tenant that the newest event of a subscription names."""
        known, tenant_id = self._known.tenant_of_subscription, arrival.tenant_id
        holder = known.setdefault(subscription_id, tenant_id)
        if holder != tenant_id:
            reported = [
                (self._reported_at(each, subscription_id), each) for each in (holder, tenant_id)
            ]
            _, holder = max(reported)
            known[subscription_id] = holder
        if self._parked and holder == tenant_id:
            self._apply_waiting(tenant_id, lambda event: event.subscription_id == subscription_id)

    def _note_current(self, arrival: _Arrival, subscription_id: str) -> None:
        """Note the tenant whose one state is from a subscription: let invoices without a customer
        find it.
        """
        self._known.tenant_of_current[subscription_id] = arrival.tenant_id
        if self._parked:
            self._apply_waiting(
                arrival.tenant_id,
                lambda event: (
                    event.customer_id is None and event.subscription_id == subscription_id
                ),
            )


def _copied(known: KnownTenants) -> KnownTenants:
    return KnownTenants(
        dict(known.tenant_of_customer),
        dict(known.tenant_of_subscription),
        dict(known.tenant_of_current),
        dict(known.tenant_of_payment),
    )


def _by_fold(
    events: Iterable[BillingEvent], policy: BillingPolicy
) -> dict[str, list[BillingEvent]]:
    by_key = defaultdict[str, list[BillingEvent]](list)
    for event in events:
        if (key := fold_key(event, policy)) is not None:
            by_key[key].append(event)
    return by_key


def _with_link(effect: _Effect, link: LinkResult | None, arrival: _Arrival) -> _Effect:
    """Return the effect of an event together with that on the link of its customer."""
    if link is None:
        return effect
    found = (*([link.anomaly] if link.anomaly else []), *effect.anomalies)
    if arrival.key is None:
        return _Effect(link.outcome, link.reason, found)
    return _Effect(effect.outcome, f"{effect.reason} {link.reason}", found)


def _anomalies_of(placement: Placement, account: BillingAccount) -> tuple[Anomaly, ...]:
    found = (Anomaly.AMBIGUOUS_ORDER,) if placement.is_ambiguous else ()
    if account.has_too_many_subscriptions:
        return (*found, Anomaly.TOO_MANY_SUBSCRIPTIONS)
    return found


def _known_record(arrival: _Arrival, policy: BillingPolicy) -> BillingRecord:
    """Return the record before an event, without the event's subscription if only invoices of that
    are known.

    Its first own event says what it has been since then.
    """
    account = arrival.before
    fold = account.folds.get(arrival.key or "")
    if not policy.is_each or fold is None or arrival.event.grant is not None:
        return account.record
    if fold.state.reported_at is not None:
        return account.record
    others = {name: other for name, other in account.folds.items() if name != arrival.key}
    return account.with_folds(others, policy).record


def _naming_event(event: BillingEvent, timeline: Timeline) -> BillingEvent | None:
    """Return the event that says which tenant a subscription named before an event: this one, or of
    an invoice from before them the first of the subscription's events.

    With such an invoice the timeline begins with the first of these.
    """
    if event.type in NAMING_TYPES:
        return event
    if timeline.checkpoint.reported_at is not None:
        return None
    first = next((each for each in timeline.events if each.type in NAMING_TYPES), event)
    return first if event.created < first.created else None


def _after_moves(
    account: BillingAccount, histories: Mapping[str, SubscriptionHistory], policy: BillingPolicy
) -> BillingAccount:
    """Return an account for which each of these subscriptions counts only while it names it."""
    if not account.is_whole:
        return account
    for key in histories.keys() & account.folds.keys():
        moved_at = histories[key].moved_at(account.tenant_id)
        if account.folds[key].moved_at != moved_at:
            account = account.with_move(key, moved_at, policy)
    return account


def _with_undecided_move(
    entry: LedgerEntry, histories: Mapping[str, SubscriptionHistory]
) -> LedgerEntry:
    """Return an entry that says so if only arrival decides which tenant its subscription named last
    in a second.
    """
    undecided = _undecided_with(entry, histories)
    if not undecided:
        return entry
    ids = [each.event.id for each in undecided]
    why = f"Nothing proves which tenant {shortened(ids, MOST_NAMED)}, of one second, name last: {BY_ARRIVAL}"
    found = dict.fromkeys((*entry.anomalies, Anomaly.AMBIGUOUS_ORDER))
    return msgspec.structs.replace(entry, reason=f"{entry.reason} {why}", anomalies=tuple(found))


def _undecided_with(
    entry: LedgerEntry, histories: Mapping[str, SubscriptionHistory]
) -> Sequence[PlacedEvent]:
    """Return the events among which only arrival decides which tenant the subscription of an entry
    named last.
    """
    history = histories.get(entry.received.event.subscription_id or "")
    if history is None or entry.tenant_id is None:
        return ()
    return history.undecided_with(entry.received.event)


def _requests_of_undecided(
    entries: Iterable[LedgerEntry], histories: Mapping[str, SubscriptionHistory]
) -> list[SnapshotRequest]:
    """Return requests of all tenants that the events of undecided seconds name: an answer about one
    of them does not give the subscription to another.
    """
    tenants = {each.tenant_id for entry in entries for each in _undecided_with(entry, histories)}
    return [SnapshotRequest(each, later=True) for each in sorted(tenants)]


def _bounded(account: BillingAccount, policy: BillingPolicy) -> BillingAccount:
    if len(account.folds) <= MOST_SUBSCRIPTIONS:
        return account
    return account.with_folds(within_bounds(account.folds, policy), policy)


def _changed(
    before: Mapping[str, BillingAccount], after: Mapping[str, BillingAccount]
) -> list[AccountChange]:
    """Return the accounts to write back, by tenant."""
    pairs = [(account, before[tenant_id]) for tenant_id, account in sorted(after.items())]
    return [
        AccountChange(account, stored)
        for account, stored in pairs
        if stored is not account and account != stored
    ]


def _is_of_another(state: BillingState, event: BillingEvent) -> bool:
    """Whether an event is of another subscription than the one that the tenant's one state is
    from.
    """
    if state.subscription_id == event.subscription_id and not state.others:
        return False
    if event.type == ev.SNAPSHOT or event.subscription_id is None:
        return False
    are_others_living = any(other.status not in OVER for other in state.others)
    ends_one = event.type == ev.SUBSCRIPTION_DELETED and are_others_living
    return ends_one or state.subscription_id not in (None, event.subscription_id)


def confirmed(timeline: Timeline, snapshot: BillingEvent) -> BillingEvent | None:
    """Return the newest event if it is a snapshot with the same facts as this one, and changed
    nothing.

    The ledger can drop it then: no event, however late, leads to another state without it. One that
    is past due stays: it says since when at the latest. So does one that reports billing days to
    come, where quotas follow them.
    """
    if not timeline.events or timeline.newest > snapshot.created or snapshot.status in OWING:
        return None
    anchor = timeline.state.details.anchor
    if anchor is not None and anchor > timeline.newest:
        return None
    newest, last = timeline.events[-1], len(timeline.events) - 1
    same = msgspec.structs.replace(
        newest, id=snapshot.id, created=snapshot.created, arrival=snapshot.arrival
    )
    before = msgspec.structs.replace(timeline.before(last), reported_at=timeline.state.reported_at)
    return newest if same == snapshot and before == timeline.state else None
