"""A batch of events, applied in memory to the accounts that it touches."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from datetime import datetime, timedelta

import msgspec

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.anomalies import anomalies, rejection
from tenantry.domain.billing.customer_links import LinkResult, link_result, may_link, tenant_of, wants_link
from tenantry.domain.billing.events import Anomaly, BillingEvent, Outcome
from tenantry.domain.billing.ledger import (
    FIRST,
    BatchContext,
    BillingAccount,
    CustomerLink,
    FailedPayment,
    LedgerEntry,
    NameLock,
    ReceivedEvent,
    ReplayNeed,
    SnapshotRequest,
)
from tenantry.domain.billing.state import PAST_DUE, BillingPolicy, BillingState, record_of
from tenantry.domain.billing.timeline import Placement, Timeline, begin, place
from tenantry.domain.owner_mails import is_settled


def replay_needs(context: BatchContext, events: Iterable[tuple[str | None, BillingEvent]]) -> dict[str, ReplayNeed]:
    """Return how far back each account's history is needed to place these events, each given with its tenant.

    Accounts that need no history are left out.
    """
    needed: dict[str, ReplayNeed] = {}
    for tenant_id, event in events:
        account = context.accounts.get(tenant_id) if tenant_id else None
        if account is None or account.tip_created is None or event.type not in ev.FOLDED_TYPES:
            continue
        if event.created < account.tip_created or not account.is_whole:
            second = FIRST if account.state.others or not account.is_whole else event.created
            need = ReplayNeed(second, late=True)
        elif event.created == account.tip_created or event.type == ev.SNAPSHOT:  # it may replace an older snapshot
            need = ReplayNeed(account.tip_created, late=False)
        else:
            continue
        # the earliest second counts; a late one is before the second of the newest event
        needed[account.tenant_id] = min(need, needed.get(account.tenant_id, need))
    return needed


def needed_locks(events: Iterable[BillingEvent], context: BatchContext) -> set[NameLock]:
    """Return the locks of the names in these events that are missing, and of the customers that they may link."""
    locks = set()
    for event in events:
        if tenant_of(event, context.tenant_of_customer) not in context.accounts:
            name = f"customer {event.customer_id}" if event.type in ev.INVOICE_TYPES else f"tenant {event.org_id}"
            locks.add(NameLock(name, claimed=False))
        if wants_link(event, context):
            locks.add(NameLock(f"customer {event.customer_id}", claimed=True))
    return locks


@dataclass(eq=False, repr=False)
class BatchApplication:
    """Collects the changes of a batch; writes nothing.

    ``histories`` are the events after the checkpoint of each account in ``needs``;
    ``waiting`` the parked events that wait for a customer.
    """

    context: BatchContext
    policy: BillingPolicy
    now: datetime
    _: KW_ONLY
    needs: Mapping[str, ReplayNeed]
    histories: Mapping[str, Sequence[BillingEvent]]
    waiting: InitVar[Iterable[ReceivedEvent]]

    def __post_init__(self, waiting: Iterable[ReceivedEvent]) -> None:
        self._accounts = dict(self.context.accounts)
        self._tenant_of_customer = dict(self.context.tenant_of_customer)
        self._parked = defaultdict[str | None, list[ReceivedEvent]](list)
        for received in waiting:
            self._parked[received.event.customer_id].append(received)
        self._timelines: dict[str, Timeline] = {}
        self._failures: list[tuple[str, BillingEvent, bool]] = []
        self._oldest_mailed = self.now.timestamp() - timedelta(hours=self.policy.parked_mail_hours).total_seconds()
        self.entries: list[LedgerEntry] = []
        self.unparked: list[LedgerEntry] = []
        self.links: list[CustomerLink] = []
        self.superseded: list[str] = []
        self.snapshot_requests: list[SnapshotRequest] = []

    def receive(self, received: ReceivedEvent) -> None:
        """Apply a new event; events are given in the order of their arrival."""
        event = received.event
        if rejected := rejection(event, self.policy):
            self.entries.append(LedgerEntry(received, None, *rejected, anomalies=anomalies(received, self.policy)))
            return
        tenant_id = tenant_of(event, self._tenant_of_customer)
        if tenant_id in self._accounts:
            self.entries.append(self._apply(received, tenant_id, belated=received.belated))
        else:
            self._park(received)

    def _park(self, received: ReceivedEvent) -> None:
        event = received.event
        if event.type in ev.INVOICE_TYPES:
            missing = f"customer {event.customer_id}"
            # a later event of this batch may link the customer
            self._parked[event.customer_id].append(received)
        else:
            missing = f"tenant {event.org_id}"
        outcome, reason = Outcome.PARKED, f"Waits: {missing} is not known yet."
        if event.type == ev.SNAPSHOT:
            outcome, reason = Outcome.IGNORED, f"There is no tenant {event.org_id} any more."
        self.entries.append(LedgerEntry(received, None, outcome, reason, anomalies=anomalies(received, self.policy)))

    def apply_parked(self, tenant_id: str, parked: Iterable[ReceivedEvent]) -> None:
        """Apply parked events, in the order of the events, now that their tenant is known."""
        for received in parked:
            self.unparked.append(self._apply(received, tenant_id, belated=True))

    def changed_accounts(self) -> list[tuple[BillingAccount, bool]]:
        """Return the accounts to write back, and whether the tenant record itself changed."""
        changed = []
        for tenant_id, linked in sorted(self._accounts.items()):
            original, timeline = self.context.accounts[tenant_id], self._timelines.get(tenant_id)
            account = linked.with_fold(timeline.folded) if timeline else linked
            if account != original:
                is_visible = record_of(account.state) != record_of(original.state)
                changed.append((account, is_visible or account.customer_id != original.customer_id))
        return changed

    def failed_payments(self) -> list[FailedPayment]:
        """Return the failures to notify owners of."""
        return [
            FailedPayment(tenant_id, account.owner_id, event.id, event.invoice_url)
            for tenant_id, event, belated in self._failures
            if not (account := self._accounts[tenant_id]).deleted
            and (not belated or self._is_current(tenant_id, event))
        ]

    def _is_current(self, tenant_id: str, failure: BillingEvent) -> bool:
        """Whether a belated failure counts: it is recent, its invoice is unpaid, and the tenant ends past due."""
        return (
            failure.created > self._oldest_mailed
            and self._state(tenant_id).subscription_status == PAST_DUE
            and not is_settled(failure, self._timelines[tenant_id].after(failure))
        )

    def _apply(self, received: ReceivedEvent, tenant_id: str, *, belated: bool) -> LedgerEntry:
        """Apply an event whose tenant is known; return its entry."""
        event = received.event
        before = self._state(tenant_id)
        found = anomalies(received, self.policy)
        link = None
        if event.customer_id and may_link(event):
            link = self._link(event, event.customer_id, self._accounts[tenant_id])
        if link and link.anomaly:
            found = (*found, link.anomaly)
        if event.type == ev.CHECKOUT_COMPLETED:
            self.snapshot_requests.append(SnapshotRequest(tenant_id, later=False))
            link = link or LinkResult(Outcome.NO_CHANGE, "The customer was linked to this tenant before.")
            after = self._state(tenant_id)
            return LedgerEntry(received, tenant_id, link.outcome, link.reason, before, after, found)
        placement = self._place(tenant_id, event)
        if placement.is_ambiguous:
            self.snapshot_requests.append(SnapshotRequest(tenant_id, later=True))
            found = (*found, Anomaly.AMBIGUOUS_ORDER)
        if placement.notify:
            self._failures.append((tenant_id, event, belated))
        reason = f"{placement.reason} {link.reason}" if link else placement.reason
        return LedgerEntry(received, tenant_id, placement.outcome, reason, before, placement.after, found)

    def _state(self, tenant_id: str) -> BillingState:
        timeline = self._timelines.get(tenant_id)
        return timeline.state if timeline else self._accounts[tenant_id].state

    def _place(self, tenant_id: str, event: BillingEvent) -> Placement:
        timeline = self._timelines.get(tenant_id)
        if timeline is None:
            checkpoint = self._accounts[tenant_id].checkpoint(self.needs.get(tenant_id))
            timeline = begin(checkpoint, self.histories.get(tenant_id, ()), self.policy)
            if event.type == ev.SNAPSHOT and (former := confirmed(timeline, event)):
                self.superseded.append(former.id)
                timeline = begin(checkpoint, timeline.events[:-1], self.policy)
        placement = place(timeline, event, self.policy)
        self._timelines[tenant_id] = placement.timeline
        return placement

    def _link(self, event: BillingEvent, customer_id: str, account: BillingAccount) -> LinkResult | None:
        """Link the event's customer to its tenant where the rules allow it; None where nothing is to be done."""
        result = link_result(event, account, self._tenant_of_customer.get(customer_id))
        if result and result.outcome is Outcome.APPLIED:
            self.links.append(CustomerLink(customer_id, account.tenant_id, event.id))
            self._tenant_of_customer[customer_id] = account.tenant_id
            self._accounts[account.tenant_id] = msgspec.structs.replace(account, customer_id=customer_id)
            self.apply_parked(account.tenant_id, self._parked[customer_id])
        return result


def confirmed(timeline: Timeline, snapshot: BillingEvent) -> BillingEvent | None:
    """Return the newest event if it is a snapshot with the same facts as this one, and changed nothing.

    The ledger can drop it then: no event, however late, leads to another state without it.
    """
    if not timeline.events or timeline.newest > snapshot.created:
        return None
    newest, last = timeline.events[-1], len(timeline.events) - 1
    same = msgspec.structs.replace(newest, id=snapshot.id, created=snapshot.created, arrival=snapshot.arrival)
    return newest if same == snapshot and timeline.before(last) == timeline.state else None
