"""A batch of events, applied to the accounts that it touches, in memory."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from tenantry.domain.billing.events import (
    CHECKOUT_COMPLETED,
    FOLDED_TYPES,
    HANDLED_TYPES,
    INVOICE_TYPES,
    SNAPSHOT,
    SUBSCRIPTION_TYPES,
    SUBSCRIPTION_UPDATED,
    Anomaly,
    BillingEvent,
    Outcome,
)
from tenantry.domain.billing.ledger import Account, Arrival, BatchContext, Entry, FailedPayment, Link, Question
from tenantry.domain.billing.state import PAST_DUE, BillingPolicy, BillingState, record_of
from tenantry.domain.billing.timeline import Placement, ReplayDepth, Timeline, begin, is_paid, place, reach, tip

_SUBSCRIPTION_MODE: Final = "subscription"
_TAKEN: Final = HANDLED_TYPES | {SNAPSHOT}


_MODES: Final = {True: "live", False: "test"}
_AHEAD: Final = timedelta(hours=1).total_seconds()
"""How far ahead of its arrival an event may be dated."""


def filtered(event: BillingEvent, policy: BillingPolicy) -> str | None:
    """Why the settings leave an event out, if they do."""
    if event.account is None and not policy.ignores_other_mode:
        return None  # as a rule
    if event.account is not None and event.account not in policy.accounts:
        return f"Ignored: connected account {event.account} is not in PROVIDER_ACCOUNTS."
    if policy.ignores_other_mode and _is_of_other_mode(event, policy):
        return (
            f"Ignored: {_MODES[bool(event.livemode)]} mode, and PROVIDER_LIVEMODE is {_MODES[bool(policy.livemode)]}."
        )
    return None


def gives_way(event: BillingEvent, policy: BillingPolicy) -> bool:
    """Whether an event leaves its id to another delivery: it is invalid, or the settings leave it out."""
    return event.problem is not None or filtered(event, policy) is not None


def _is_of_other_mode(event: BillingEvent, policy: BillingPolicy) -> bool:
    return policy.livemode is not None and event.livemode is not None and event.livemode != policy.livemode


def useless(event: BillingEvent, policy: BillingPolicy) -> tuple[Outcome, str] | None:
    """What to say of an event that no tenant can ever be found for, or that says nothing about billing."""
    if left_out := filtered(event, policy):
        return Outcome.IGNORED, left_out
    if event.is_thin:
        return Outcome.IGNORED, "Ignored: a thin (v2) event has no object. Have the provider send snapshot events."
    if event.type not in _TAKEN:
        return Outcome.IGNORED, "This type is not handled."
    if event.problem is not None:
        return Outcome.INVALID, event.problem
    lacks = None
    if event.type in INVOICE_TYPES:
        lacks = None if event.customer_id else "The invoice names no customer."
    elif event.type == CHECKOUT_COMPLETED and event.checkout_mode != _SUBSCRIPTION_MODE:
        lacks = "The checkout session is not for a subscription."
    elif event.type == CHECKOUT_COMPLETED and event.customer_id is None:
        lacks = "The checkout session names no customer."
    elif not event.org_id:
        lacks = "The metadata names no orgId."
    return (Outcome.IGNORED, lacks) if lacks else None


def anomalies(arrival: Arrival, policy: BillingPolicy) -> tuple[Anomaly, ...]:
    """What is unexpected about an event, whoever it concerns."""
    event, found = arrival.event, []
    if filtered(event, policy):
        of_account = event.account is not None and event.account not in policy.accounts
        return (Anomaly.CONNECTED_ACCOUNT if of_account else Anomaly.IGNORED_LIVEMODE,)
    if event.problem is not None:
        found.append(Anomaly.UNUSABLE_OBJECT)
    elif event.org_id is None and (event.type in SUBSCRIPTION_TYPES or event.checkout_mode == _SUBSCRIPTION_MODE):
        found.append(Anomaly.MISSING_ORG_ID)
    elif event.type in (SUBSCRIPTION_UPDATED, SNAPSHOT):
        if event.price_id is None:
            found.append(Anomaly.MISSING_PRICE)
        elif policy.catalog.plan_of_price(event.price_id) is None:
            found.append(Anomaly.UNKNOWN_PRICE)
    if _is_of_other_mode(event, policy):
        found.append(Anomaly.WRONG_LIVEMODE)
    if event.created > arrival.received_at.timestamp() + _AHEAD:
        found.append(Anomaly.FUTURE_DATED)
    return tuple(found)


def may_link(event: BillingEvent) -> bool:
    """Whether the event can tie its customer to a tenant."""
    return event.type in (CHECKOUT_COMPLETED, SUBSCRIPTION_UPDATED) and bool(event.customer_id and event.org_id)


FIRST: Final = -1
"""Before the second of any event."""


class Need(NamedTuple):
    """How far back an account's history is needed, and from which second on.

    With `ReplayDepth.TIP_SECOND`: from the second of its newest event. With `ReplayDepth.BEGINNING`: from the second
    of the oldest event to place, and before it back to a full-state event. For an account with several subscriptions,
    or written by the previous release, no event is a full-state event; then the second is `FIRST`.
    """

    reach: ReplayDepth
    second: int


def reaches(context: BatchContext, events: Iterable[tuple[str | None, BillingEvent]]) -> dict[str, Need]:
    """How far back each account's history is needed to place these events, each given with its tenant.

    Accounts that need no history are left out.
    """
    needed: dict[str, Need] = {}
    for tenant_id, event in events:
        account = context.accounts.get(tenant_id) if tenant_id else None
        if account is None or account.tip_created is None or event.type not in FOLDED_TYPES:
            continue
        far = reach(event.created, account.tip_created) if account.is_whole else ReplayDepth.BEGINNING
        if event.type == SNAPSHOT:
            far = max(far, ReplayDepth.TIP_SECOND)  # it may take the place of an older answer
        known = needed.get(account.tenant_id)
        if far > (known.reach if known else ReplayDepth.TIP) or (known and event.created < known.second):
            second = account.tip_created
            if far is ReplayDepth.BEGINNING:
                second = FIRST if account.state.others or not account.is_whole else event.created
            needed[account.tenant_id] = Need(far, second)
    return needed


def wants_link(event: BillingEvent, context: BatchContext) -> bool:
    """Whether the event would tie its customer to its tenant, as far as is known before the batch."""
    account = context.accounts.get(event.org_id or "")
    return (
        may_link(event)
        and account is not None
        and event.customer_id not in context.tenant_of_customer
        and (event.type == CHECKOUT_COMPLETED or account.customer_id is None)
    )


class Gaps(NamedTuple):
    """What a batch misses: unknown tenants, unknown customers of invoices, and customers that it may link itself."""

    tenants: frozenset[str] = frozenset()
    customers: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()

    def union(self, other: "Gaps") -> "Gaps":
        """The gaps of both."""
        return Gaps(self.tenants | other.tenants, self.customers | other.customers, self.links | other.links)


def gaps(events: Iterable[BillingEvent], context: BatchContext) -> Gaps:
    """What these events need that is not there, or that they may add."""
    tenants, customers, links = set(), set(), set()
    for event in events:
        if tenant_of(event, context.tenant_of_customer) not in context.accounts:
            if event.type in INVOICE_TYPES:
                customers.add(event.customer_id or "")
            else:
                tenants.add(event.org_id or "")
        if wants_link(event, context):
            links.add(event.customer_id or "")
    return Gaps(frozenset(tenants), frozenset(customers), frozenset(links))


def tenant_of(event: BillingEvent, tenant_of_customer: Mapping[str, str]) -> str | None:
    """The tenant that an event names: by customer for invoices, else by the metadata (SPEC 6.1)."""
    if event.type in INVOICE_TYPES:
        return tenant_of_customer.get(event.customer_id or "")
    return event.org_id


class BatchApplication:
    """Collects what a batch changes; nothing is written here.

    ``histories`` are the events after the checkpoint of each account in ``reaches``;
    ``parked`` the parked events that wait for a customer, by customer.
    """

    def __init__(
        self,
        context: BatchContext,
        policy: BillingPolicy,
        now: datetime,
        *,
        reaches: Mapping[str, Need],
        histories: Mapping[str, Sequence[BillingEvent]],
        parked: Mapping[str, Sequence[Arrival]],
    ) -> None:
        self._policy = policy
        self._now = now
        self._accounts = dict(context.accounts)
        self._original = context.accounts
        self._tenant_of_customer = dict(context.tenant_of_customer)
        self._reaches = reaches
        self._histories = histories
        self._parked = {customer_id: list(waiting) for customer_id, waiting in parked.items()}
        self._timelines: dict[str, Timeline] = {}
        self._failures: list[tuple[str, BillingEvent]] = []
        self._belated_failures: list[tuple[str, BillingEvent]] = []
        self._oldest_mailed = now.timestamp() - timedelta(hours=policy.parked_mail_hours).total_seconds()
        self.entries: list[Entry] = []
        self.unparked: list[Entry] = []
        self.links: list[Link] = []
        self.superseded: list[str] = []
        self.replaced = context.replaceable
        self.questions: list[Question] = []

    def receive(self, arrival: Arrival) -> None:
        """Take in a new event; events are given in the order of their arrival."""
        event = arrival.event
        if refusal := useless(event, self._policy):
            self.entries.append(Entry(arrival, None, *refusal, anomalies=anomalies(arrival, self._policy)))
            return
        tenant_id = tenant_of(event, self._tenant_of_customer)
        if tenant_id not in self._accounts:
            self._park(arrival)
            return
        entry, notify = self._settle(arrival, tenant_id)
        self.entries.append(entry)
        if notify and arrival.belated:
            self._tell_if_still_true(tenant_id, event)
        elif notify:
            self._failures.append((tenant_id, event))

    def _tell_if_still_true(self, tenant_id: str, failure: BillingEvent) -> None:
        if failure.created > self._oldest_mailed:
            self._belated_failures.append((tenant_id, failure))

    def _park(self, arrival: Arrival) -> None:
        event = arrival.event
        if event.type in INVOICE_TYPES:
            who = f"customer {event.customer_id}"
            # a later event of this batch may link the customer
            self._parked.setdefault(event.customer_id or "", []).append(arrival)
        else:
            who = f"tenant {event.org_id}"
        outcome, reason = Outcome.PARKED, f"Waits: {who} is not known yet."
        if event.type == SNAPSHOT:
            outcome, reason = Outcome.IGNORED, f"There is no tenant {event.org_id} any more."
        self.entries.append(Entry(arrival, None, outcome, reason, anomalies=anomalies(arrival, self._policy)))

    def apply_parked(self, tenant_id: str, arrivals: Iterable[Arrival]) -> None:
        """Let parked events take their place, now that their tenant is known; given in the order of the events."""
        for arrival in arrivals:
            entry, notify = self._settle(arrival, tenant_id)
            self.unparked.append(entry)
            if notify:
                self._tell_if_still_true(tenant_id, arrival.event)

    def changed_accounts(self) -> list[tuple[Account, bool]]:
        """The accounts to write back, and whether the tenant record itself changed."""
        changed = []
        for tenant_id, linked in sorted(self._accounts.items()):
            original = self._original[tenant_id]
            account = self._folded(linked)
            if account != original:
                visible = account.customer_id != original.customer_id or record_of(account.state) != record_of(
                    original.state
                )
                changed.append((account, visible))
        return changed

    def _folded(self, account: Account) -> Account:
        timeline = self._timelines.get(account.tenant_id)
        if timeline is None:
            return account
        created, before = tip(timeline)
        return msgspec.structs.replace(
            account, state=timeline.state, tip_created=created, tip_state=before, is_whole=True
        )

    def failed_payments(self) -> list[FailedPayment]:
        """The failures that owners are told of.

        One that comes belated only where the invoice has not been paid since and the tenant ends past due.
        """
        waiting = [
            (tenant_id, event)
            for tenant_id, event in self._belated_failures
            if self._state(tenant_id).subscription_status == PAST_DUE
            and not is_paid(event, self._timelines[tenant_id].after(event))
        ]
        return [
            FailedPayment(tenant_id, account.owner_id, event.id, event.invoice_url)
            for tenant_id, event in (*self._failures, *waiting)
            if not (account := self._accounts[tenant_id]).deleted
        ]

    def _settle(self, arrival: Arrival, tenant_id: str) -> tuple[Entry, bool]:
        """What becomes of an event whose tenant is known, and whether its owner is to be told."""
        event = arrival.event
        before = self._state(tenant_id)
        found = anomalies(arrival, self._policy)
        note = self._link(event) if may_link(event) else None
        if note and note.anomaly:
            found = (*found, note.anomaly)
        if event.type == CHECKOUT_COMPLETED:
            self.questions.append(Question(tenant_id, later=False))
            note = note or _Note(Outcome.NO_CHANGE, "The customer was linked to this tenant before.")
            return Entry(arrival, tenant_id, note.outcome, note.reason, before, self._state(tenant_id), found), False
        placement = self._place(tenant_id, event)
        if placement.is_ambiguous:
            self.questions.append(Question(tenant_id, later=True))
            found = (*found, Anomaly.AMBIGUOUS_ORDER)
        reason = f"{placement.reason} {note.reason}" if note else placement.reason
        entry = Entry(arrival, tenant_id, placement.outcome, reason, before, placement.after, found)
        return entry, placement.notify

    def _state(self, tenant_id: str) -> BillingState:
        timeline = self._timelines.get(tenant_id)
        return timeline.state if timeline else self._accounts[tenant_id].state

    def _place(self, tenant_id: str, event: BillingEvent) -> Placement:
        timeline = self._timelines.get(tenant_id)
        if timeline is None:
            need = self._reaches.get(tenant_id)
            checkpoint = self._accounts[tenant_id].checkpoint(need.reach if need else ReplayDepth.TIP)
            timeline = begin(checkpoint, self._histories.get(tenant_id, ()), self._policy)
            if event.type == SNAPSHOT and (former := confirmed(timeline, event)):
                self.superseded.append(former.id)
                timeline = begin(checkpoint, timeline.events[:-1], self._policy)
        placement = place(timeline, event, self._policy)
        self._timelines[tenant_id] = placement.timeline
        return placement

    def _link(self, event: BillingEvent) -> "_Note | None":
        """Tie the event's customer to its tenant where the rules say so, and say what happened."""
        account = self._accounts.get(event.org_id or "")
        customer_id = event.customer_id
        if account is None or customer_id is None:
            return None
        holder = self._tenant_of_customer.get(customer_id)
        if holder == account.tenant_id:
            return None
        if holder is not None:
            reason = f"Customer {customer_id} belongs to another tenant already."
            return _Note(Outcome.NO_CHANGE, reason, Anomaly.CUSTOMER_TAKEN)
        if event.type == SUBSCRIPTION_UPDATED and account.customer_id is not None:
            return None
        self.links.append(Link(customer_id, account.tenant_id, event.id))
        self._tenant_of_customer[customer_id] = account.tenant_id
        self._accounts[account.tenant_id] = msgspec.structs.replace(account, customer_id=customer_id)
        self.apply_parked(account.tenant_id, self._parked.get(customer_id, ()))
        return _Note(Outcome.APPLIED, f"Customer {customer_id} now belongs to this tenant.")


class _Note(NamedTuple):
    """What became of the link that an event claims."""

    outcome: Outcome
    reason: str
    anomaly: Anomaly | None = None


def confirmed(timeline: Timeline, snapshot: BillingEvent) -> BillingEvent | None:
    """The newest entry, where it is an answer of the provider that changed nothing and says just what this one says.

    The ledger does without it then: no event, however late, leads to another state for its absence.
    """
    if not timeline.events or timeline.events[-1].created > snapshot.created:
        return None
    newest, last = timeline.events[-1], len(timeline.events) - 1
    said = msgspec.structs.replace(newest, id=snapshot.id, created=snapshot.created, arrival=snapshot.arrival)
    return newest if said == snapshot and timeline.before(last) == timeline.state else None
