"""One tenant's ledger in memory, like the service's in the database."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from tenantry.domain.access import NO_SUBSCRIPTION
from tenantry.domain.billing.anomalies import rejection
from tenantry.domain.billing.batch import (
    BatchChanges,
    StoredEvents,
    Work,
    new_subscriptions,
    replay_needs,
)
from tenantry.domain.billing.batch_application import BatchApplication
from tenantry.domain.billing.customer_links import (
    goes_by_customer,
    proves_customer,
    tenant_of,
    wants_link,
)
from tenantry.domain.billing.events import (
    CUSTOMER_MISSING,
    FOLDED_TYPES,
    WHOLE_SUBSCRIPTION_TYPES,
    Anomaly,
    BillingEvent,
    Outcome,
)
from tenantry.domain.billing.ledger import (
    BatchContext,
    BillingAccount,
    FoldId,
    KnownTenants,
    LinkedCustomer,
    ReceivedEvent,
    ReplayNeed,
)
from tenantry.domain.billing.state import BillingPolicy, BillingState, apply, fold_key
from tenantry.domain.billing.tenant_record import BillingRecord, record_of
from tenantry.domain.billing.timeline import Fold, Folded
from tenantry.domain.billing_months import SETTLED_AFTER
from tenantry.domain.plans import FREE
from tests.support.facts import account, granted

TENANT: Final = "acme"
CUSTOMER: Final = "cus_1"
NOW: Final = datetime.fromtimestamp(10**6, UTC)


class Ledger:
    """A tenant, its customers and its events.

    ``notified`` are the failed payments that were mailed, in order; ``ambiguous`` the events that
    arrival ordered.
    """

    def __init__(
        self,
        policy: BillingPolicy,
        customers: Sequence[str] = (CUSTOMER,),
        *,
        plan: str = FREE,
    ) -> None:
        self._policy = policy
        self._tenant_of: dict[str, str] = dict.fromkeys(customers, TENANT)
        self._gone: dict[str, BillingEvent] = {}
        self._proved_at: dict[str, int] = {}
        self._arrivals = 0
        self._seen: set[str] = set()
        self._events: dict[str, BillingEvent] = {}
        self._parked: dict[str, ReceivedEvent] = {}
        customer_id = customers[-1] if customers else None
        fresh = account(TENANT, customer_id=customer_id)
        self.account: BillingAccount = fresh.with_folds({}, policy)
        self.notified: tuple[str, ...] = ()
        self.ambiguous: tuple[str, ...] = ()
        if plan != FREE:
            self.deliver([granted(0, plan=plan)])

    def fork(self) -> "Ledger":
        """An independent copy of the ledger."""
        other = Ledger.__new__(Ledger)
        other.__dict__ = {
            **self.__dict__,
            "_tenant_of": dict(self._tenant_of),
            "_gone": dict(self._gone),
            "_proved_at": dict(self._proved_at),
            "_seen": set(self._seen),
            "_events": dict(self._events),
            "_parked": dict(self._parked),
        }
        return other

    def knows(self, customer_id: str | None) -> bool:
        """Whether the customer is linked."""
        return customer_id in self._tenant_of

    def deliver(self, batch: Sequence[BillingEvent]) -> None:
        """Apply a batch and store the result, as the service does."""
        self._write(self.applied(batch))

    def applied(self, batch: Sequence[BillingEvent]) -> BatchChanges:
        """Apply a batch in memory."""
        arrivals = self._numbered(batch)
        subscriptions = {
            key: TENANT
            for key, fold in self.account.folds.items()
            if key and fold.state.reported_at is not None
        }
        known = KnownTenants(dict(self._tenant_of), subscriptions if self._policy.is_each else {})
        linked = [self._linked(each) for each in reversed(self._tenant_of)]
        context = BatchContext(
            {TENANT: self.account}, known, frozenset(), 0, linked_customers={TENANT: linked}
        )
        usable = [
            arrival.event for arrival in arrivals if not rejection(arrival.event, self._policy)
        ]
        links = {event.customer_id for event in usable if wants_link(event, context)}
        begun = new_subscriptions(usable, context, self._policy) if self._policy.is_each else {}
        waiting = [
            arrival
            for arrival in self._parked.values()
            if arrival.event.customer_id in links or arrival.event.subscription_id in begun
        ]
        waiting.sort(key=lambda arrival: (arrival.event.created, arrival.event.arrival))
        events_with_tenants = [(tenant_of(event, context.known), event) for event in usable]
        nameless = [arrival.event for arrival in waiting]
        nameless += [event for event in usable if goes_by_customer(event)]
        events_with_tenants += [
            (TENANT, event)
            for event in nameless
            if event.customer_id in links or event.subscription_id in begun
        ]
        needs = replay_needs(context, events_with_tenants, self._policy)
        histories = {fold_id: self._history(fold_id, need) for fold_id, need in needs.items()}
        stored = StoredEvents(needs, histories, waiting)
        work = Work(new=arrivals)
        return BatchApplication(context, self._policy, NOW, work, stored=stored).changes()

    def _linked(self, customer_id: str) -> LinkedCustomer:
        proved_at = self._proved_at.get(customer_id, -1)
        gone = self._gone.get(customer_id)
        if gone is None:
            return LinkedCustomer(customer_id, proved_at=proved_at)
        missing_at = gone.created if gone.type == CUSTOMER_MISSING else None
        return LinkedCustomer(customer_id, True, missing_at, proved_at)

    def _numbered(self, batch: Sequence[BillingEvent]) -> list[ReceivedEvent]:
        """The events that are not in the ledger yet, each once, with their arrival numbers."""
        numbered = []
        for event in batch:
            if event.id not in self._seen:
                self._seen.add(event.id)
                numbered.append(
                    ReceivedEvent(msgspec.structs.replace(event, arrival=self._arrivals), NOW)
                )
                self._arrivals += 1
        return numbered

    def _history(self, fold_id: FoldId, need: ReplayNeed) -> list[BillingEvent]:
        """The events that are needed, as the store reads them."""
        key, since, until = fold_id[1], need.second, None
        events = [
            event
            for event in self._events.values()
            if fold_key(event, self._policy) is not None
            and key in (None, fold_key(event, self._policy))
        ]
        if need.late:
            seconds = Counter(event.created for event in events)
            full = [
                event.created
                for event in events
                if event.type in WHOLE_SUBSCRIPTION_TYPES
                and event.status not in ("past_due", "unpaid")
                and event.subscription_id is not None
                and event.customer_id is not None
                and event.details.pause != "void"
                and not event.details.is_truncated
                and self._is_settled(event)
                and seconds[event.created] == 1
            ]
            since = max((second for second in full if second < need.second), default=-1)
            if need.until is not None:
                until = min((second for second in full if second > need.until), default=None)
        return [
            event
            for event in events
            if since <= event.created and (until is None or event.created <= until)
        ]

    def _is_settled(self, event: BillingEvent) -> bool:
        anchor = event.details.anchor
        if anchor is None or not self._policy.catalog.has_billing_months:
            return True
        return event.created - anchor >= SETTLED_AFTER

    def _write(self, changes: BatchChanges) -> None:
        for entry in (*changes.entries, *changes.unparked):
            event = entry.received.event
            if Anomaly.AMBIGUOUS_ORDER in entry.anomalies:
                self.ambiguous += (event.id,)
            if entry.outcome is Outcome.PARKED:
                self._parked[event.id] = entry.received
            elif entry.tenant_id is not None and event.type in FOLDED_TYPES:
                self._parked.pop(event.id, None)
                self._events[event.id] = event
        for event_id in changes.superseded:
            self._events.pop(event_id, None)
        for link in changes.links:
            self._tenant_of[link.customer_id] = link.tenant_id
        for change in changes.changed_accounts:
            self.account = change.account
        self.notified += tuple(str(failure.cause) for failure in changes.failed_payments)
        self._write_uses(changes)

    def _write_uses(self, changes: BatchChanges) -> None:
        """Note which customers can be used, and the newest event that proves each."""
        events = dict[str, BillingEvent]()
        for entry in (*changes.entries, *changes.unparked):
            event = events[entry.received.event.id] = entry.received.event
            if entry.tenant_id is not None and event.customer_id and proves_customer(event):
                known = self._proved_at.get(event.customer_id, -1)
                self._proved_at[event.customer_id] = max(known, event.created)
        for customer_id, _, gone_by in changes.customer_uses:
            self._gone.pop(customer_id, None)
            if gone_by is not None:
                self._gone[customer_id] = events[gone_by]


def ledger_of(
    policy: BillingPolicy,
    events: Iterable[BillingEvent],
    customers: Sequence[str] = (CUSTOMER,),
    *,
    plan: str = FREE,
) -> Ledger:
    """A ledger after these events, delivered one by one."""
    ledger = Ledger(policy, customers, plan=plan)
    for event in events:
        ledger.deliver([event])
    return ledger


def folded(history: Sequence[BillingEvent], policy: BillingPolicy) -> BillingState:
    """The state of one fold that a history leads to, event by event."""
    state = BillingState()
    for event in history:
        state = apply(state, event, policy).state
    return state


def recorded(history: Sequence[BillingEvent], policy: BillingPolicy) -> BillingRecord:
    """The tenant record that a history leads to, event by event."""
    fresh = account(TENANT)
    states: dict[str, BillingState] = {}
    for event in history:
        if (key := fold_key(event, policy)) is not None:
            states[key] = apply(
                states.get(key, fresh.beginning_of(key, policy)), event, policy
            ).state
    known = [state for state in states.values() if state.subscription_status != NO_SUBSCRIPTION]
    return record_of(known, policy)


def refolded(
    beginning: BillingState, events: Iterable[BillingEvent], policy: BillingPolicy
) -> Folded:
    """Fold events, sorted by ``created``, as a replay does."""
    fold = Fold(beginning, policy)
    for event in events:
        fold.add(event)
    return fold.end()[0]
