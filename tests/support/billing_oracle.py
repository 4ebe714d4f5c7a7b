"""An oracle of billing: what a history of provider events must end in, and which mails it must
cause.

Written from SPEC 2 to 6, the interface contract (sections 6 and 8), and
docs/explanation/subscriptions.md, before the service's code was read. It knows the order in which
events happened, so it needs none of the rules that find an order. It folds all events that have
arrived anew at each arrival: slow, and hard to get wrong.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.support.provider_world import ADDON_PRICE, DAY, HOUR, Event, History, HistoryTenant

PLAN_OF_PRICE = {"price_pro": "pro", "price_pro_yearly": "pro", "price_business": "business"}
RANKS = {"free": 0, "pro": 1, "business": 2}
# Its price is in the catalog too, so that it is no unknown one.
ADDON_PRICES = {ADDON_PRICE}

PAST_DUE_GRACE_DAYS = 65
PARKED_MAIL_HOURS = 72
ANNOUNCED_END_DAYS = 3
ENDS_BY_TIME_DAYS = 3

FULL_STATE_TYPES = {
    "customer.subscription.updated",
    "customer.subscription.created",
    "customer.subscription.paused",
    "customer.subscription.resumed",
}
DELETED_TYPE = "customer.subscription.deleted"
SUBSCRIPTION_TYPES = FULL_STATE_TYPES | {DELETED_TYPE}
PAID_TYPES = {"invoice.payment_succeeded", "invoice.paid"}
CLOSED_TYPES = {"invoice.voided", "invoice.marked_uncollectible"}
FAILED_TYPE = "invoice.payment_failed"
INVOICE_TYPES = PAID_TYPES | CLOSED_TYPES | {FAILED_TYPE}
LINKING_TYPES = FULL_STATE_TYPES  # `deleted` makes three changes and no other

AccessState = Literal["full", "grace", "none"]


@dataclass(frozen=True)
class ExpectedAccess:
    """What a tenant has now. `ended` is when access ended without another event, if it did."""

    state: AccessState
    plan: str
    until: int | None
    ended: int | None = None


@dataclass(frozen=True)
class ExpectedTenant:
    """The record that a tenant must have. Times are seconds since the Unix epoch."""

    plan: str
    subscription_status: str
    current_period_end: int | None
    cancel_at_period_end: bool
    cancel_at: int | None
    ends_at: int | None
    seats: int | None
    access: ExpectedAccess


@dataclass(frozen=True)
class ExpectedMail:
    """A mail that must have been queued: its kind, the tenant, and what it is about."""

    kind: str
    tenant: str
    about: str


@dataclass(frozen=True)
class Verdict:
    """How a history must end.

    `optional` are mails of which the documentation says neither that they are sent nor that they
    are not.
    """

    tenants: dict[str, ExpectedTenant]
    mails: Counter[ExpectedMail]
    optional: set[ExpectedMail]


# Reading payloads.


def _id_of(value: Any) -> str | None:
    """Return the id of a reference, which is a string or an expanded object."""
    return value.get("id") if isinstance(value, dict) else value


def _object(event: Event) -> dict[str, Any]:
    payload: dict[str, Any] = event["data"]["object"]
    return payload


def _subscription_id(event: Event) -> str | None:
    payload = _object(event)
    if event["type"].startswith("customer.subscription."):
        return payload.get("id")
    details = (payload.get("parent") or {}).get("subscription_details") or {}
    return _id_of(payload.get("subscription")) or _id_of(details.get("subscription"))


def _invoice_id(event: Event) -> str | None:
    return _object(event).get("id")


def _customer(event: Event) -> str | None:
    return _id_of(_object(event).get("customer"))


def _org(event: Event) -> str | None:
    return (_object(event).get("metadata") or {}).get("orgId")


# The state of one subscription, in mode `any` of the tenant.


_GIVEN = "given by the operator"


@dataclass(frozen=True)
class Folded:
    """What the events of one subscription (`each`), or all events of a tenant (`any`), come to."""

    id: str = ""
    created: int = 0
    status: str = "none"
    reported: str | None = None  # the status that the subscription events last gave
    plan: str = "free"
    has_plan_item: bool = False
    access_plan: str = "free"  # the plan of the item that gives access
    is_empty: bool = False  # all items have the quantity 0
    seats: int | None = None
    period_end: int | None = None
    cancel_at_period_end: bool = False
    cancel_at: int | None = None
    trial_end: int | None = None
    ended_at: int | None = None
    past_due_since: int | None = None
    past_due_is_grace: bool = False
    paid_until: int | None = None  # the end of the period in which payments were paused
    known_end: int | None = None  # of the access before a failed payment
    unpaid_invoices: frozenset[str | None] = field(default_factory=frozenset)
    addons: tuple[tuple[str, int], ...] = ()
    is_moved: bool = False

    @property
    def is_over(self) -> bool:
        return self.status in {"canceled", "incomplete_expired"}

    @property
    def access(self) -> AccessState:
        """Return the access by status, regardless of time."""
        if self.is_empty:
            return "none"
        if self.status in {"trialing", "active", _GIVEN}:
            return "full"
        if self.status == "past_due" and self.past_due_is_grace:
            return "grace"
        return "none"

    @property
    def access_ends(self) -> int | None:
        """Return when the access by status ends without another event."""
        ends = [end + ANNOUNCED_END_DAYS * DAY for end in self._announced_ends()]
        if self.status == "past_due" and self.past_due_since is not None:
            ends.append(self.past_due_since + PAST_DUE_GRACE_DAYS * DAY)
        if self.status == "active" and self.paid_until is not None:
            ends.append(self.paid_until)
        if self.known_end is not None:
            ends.append(self.known_end)
        return min(ends, default=None)

    def _announced_ends(self) -> Iterator[int]:
        if self.cancel_at is not None:
            yield self.cancel_at
        if self.cancel_at_period_end and self.period_end is not None:
            yield self.period_end
        if self.status == "trialing" and self.trial_end is not None:
            yield self.trial_end

    @property
    def ends_at(self) -> int | None:
        if self.status == "past_due" and self.reported in {"canceled", "incomplete_expired"}:
            # a failed payment after the end (`any`): what this says then is not documented
            return None
        if self.ended_at is not None:
            return self.ended_at
        if self.cancel_at is not None:
            return self.cancel_at
        return self.period_end if self.cancel_at_period_end else None


def apply_event(state: Folded, event: Event, mode: str) -> Folded:
    """Return the state after an event."""
    type_ = event["type"]
    if type_ in FULL_STATE_TYPES:
        return _apply_full_state(state, event, mode)
    if type_ == DELETED_TYPE:
        return _apply_end(state, event)
    if type_ not in INVOICE_TYPES or (mode == "each" and state.is_over):
        return state  # "an invoice event changes no subscription that is over"
    if type_ == FAILED_TYPE:
        return _apply_failure(state, event)
    return _apply_success(state, event) if type_ in PAID_TYPES else _apply_closing(state, event)


def _apply_full_state(state: Folded, event: Event, mode: str) -> Folded:
    payload = _object(event)
    items = (payload.get("items") or {}).get("data") or []
    counting = [item for item in items if item.get("quantity") != 0]
    item = _deciding_item(items if mode == "any" else counting, mode)
    plan = _plan_of(item)
    period_end = payload.get("current_period_end")
    if period_end is None and items:
        period_end = items[0].get("current_period_end")
    status = payload["status"]
    pause = payload.get("pause_collection") or {}
    paid_until = None
    if pause.get("behavior") == "void":
        paid_until = state.paid_until if state.paid_until is not None else period_end
    told = replace(
        state,
        id=payload.get("id") or "",
        created=payload.get("created") or 0,
        reported=status,
        plan=plan or "free",
        has_plan_item=_plan_of(_deciding_item(counting, mode)) is not None,
        access_plan=_plan_of(_deciding_item(counting, mode)) or "free",
        is_empty=bool(items) and not counting,
        seats=_seats(item)
        if item and plan and status not in {"canceled", "incomplete_expired"}
        else None,
        period_end=period_end,
        cancel_at_period_end=payload["cancel_at_period_end"],
        cancel_at=payload.get("cancel_at"),
        trial_end=payload.get("trial_end"),
        ended_at=payload.get("ended_at"),
        paid_until=paid_until,
        addons=tuple(
            (one["price"]["id"], _seats(one))
            for one in counting
            if one["price"]["id"] in ADDON_PRICES
        ),
    )
    return _with_status(told, status, event["created"], grace=True)


def _seats(item: dict[str, Any]) -> int:
    """Return an item's quantity. A metered item has none: that it counts as one seat is not
    documented.
    """
    quantity = item.get("quantity")
    return 1 if quantity is None else int(quantity)


def _plan_of(item: dict[str, Any] | None) -> str | None:
    return PLAN_OF_PRICE.get(item["price"]["id"]) if item else None


def _deciding_item(items: list[dict[str, Any]], mode: str) -> dict[str, Any] | None:
    """Return the item that determines the plan: the first in `any`, that of the highest plan in
    `each`.
    """
    if mode == "any":
        return items[0] if items else None
    of_plans = [item for item in items if _plan_of(item)]
    return max(of_plans, key=lambda item: RANKS[str(_plan_of(item))], default=None)


def _apply_end(state: Folded, event: Event) -> Folded:
    payload = _object(event)
    told = replace(
        state,
        id=payload.get("id") or "",
        created=payload.get("created") or 0,
        cancel_at=payload.get("cancel_at"),
    )
    return _end(told, payload.get("ended_at") or event["created"])


def _end(state: Folded, ended_at: int) -> Folded:
    """`deleted`: plan, status and period end, and no other."""
    ended = replace(
        state,
        reported="canceled",
        plan="free",
        access_plan="free",
        has_plan_item=False,
        addons=(),
        seats=None,
        period_end=None,
        ended_at=ended_at,
    )
    return _with_status(ended, "canceled", ended_at, grace=False)


def _with_status(state: Folded, status: str, at: int, *, grace: bool) -> Folded:
    """Set the status. The time past due continues between `past_due` and `unpaid`, and ends with
    any other status.
    """
    since = state.past_due_since
    if status == "past_due" and since is None:
        since = at
    elif status not in {"past_due", "unpaid"}:
        since = None
    unpaid = state.unpaid_invoices if status == "past_due" else frozenset()
    return replace(
        state,
        status=status,
        past_due_since=since,
        past_due_is_grace=grace and status == "past_due",
        known_end=None,
        unpaid_invoices=unpaid,
    )


def _apply_failure(state: Folded, event: Event) -> Folded:
    """`past_due`. "A failed payment never gives more access than there was", and an end that was
    known stays.
    """
    failed = _with_status(state, "past_due", event["created"], grace=state.access != "none")
    return replace(
        failed,
        known_end=state.access_ends if state.access != "none" else None,
        unpaid_invoices=failed.unpaid_invoices | {_invoice_id(event)},
    )


def _apply_success(state: Folded, event: Event) -> Folded:
    """Only when `past_due`: back to what the subscription events last gave, if that is not
    `past_due`.
    """
    if state.status != "past_due":
        return state
    back = state.reported if state.reported not in {None, "past_due"} else "active"
    return _with_status(state, str(back), event["created"], grace=False)


def _apply_closing(state: Folded, event: Event) -> Folded:
    """Drop only the past due that this invoice set."""
    mine = _invoice_id(event)
    others = state.unpaid_invoices - {mine}
    if state.status != "past_due" or mine not in state.unpaid_invoices:
        return state
    if others or state.reported in {None, "past_due"}:
        return replace(state, unpaid_invoices=others)
    return _with_status(state, str(state.reported), event["created"], grace=False)


# Which tenant an event belongs to.


@dataclass(frozen=True)
class Placement:
    """Which tenant each event that has arrived counts for. Positions are those of the history's
    events.
    """

    tenant_of: dict[int, str]  # without those that are parked
    moved_away: dict[str, dict[str, int]]  # tenant -> subscription -> when another tenant was named


def place(history: History, arrived: set[int], links: Mapping[str, str]) -> Placement:
    """Find the tenant of each event that has arrived.

    A subscription event belongs to the tenant of its metadata, else to that of its customer. An
    invoice event belongs to the tenant that its subscription named at the invoice's second
    (`each`), or to that of its customer (`any`, or where no tenant has the subscription).
    """
    known = {tenant.id for tenant in history.tenants}
    tenant_of: dict[int, str] = {}
    # subscription -> (created, tenant), as it happened
    named: dict[str, list[tuple[int, str]]] = {}
    before: dict[str, str] = {}  # subscription -> the tenant that its first event replaced
    for position in sorted(arrived):
        event = history.events[position]
        if event["type"] not in SUBSCRIPTION_TYPES:
            continue
        tenant = _org(event) or links.get(_customer(event) or "")
        if tenant in known:
            tenant_of[position] = str(tenant)
            replaced = (event["data"].get("previous_attributes") or {}).get("metadata") or {}
            if str(_subscription_id(event)) not in named and replaced.get("orgId") in known:
                before[str(_subscription_id(event))] = replaced["orgId"]
            named.setdefault(str(_subscription_id(event)), []).append(
                (event["created"], str(tenant))
            )
    for position in sorted(arrived):
        event = history.events[position]
        if event["type"] not in INVOICE_TYPES:
            continue
        customer = _customer(event)
        by_customer = links.get(customer or "")
        subscription = _subscription_id(event) or ""
        by_subscription = _named_at(
            named.get(subscription, []), before.get(subscription), event["created"]
        )
        by_name = history.mode == "each" or customer is None
        tenant = (by_subscription or by_customer) if by_name else by_customer
        if tenant is not None:
            tenant_of[position] = tenant
    return Placement(tenant_of, _moved_away(named, before) if history.mode == "each" else {})


def _named_at(named: list[tuple[int, str]], before: str | None, second: int) -> str | None:
    """Return the tenant that a subscription named at the end of a second.

    Before its first event that is the tenant that this event replaced, else the one that it names.
    """
    until_then = [tenant for created, tenant in named if created <= second]
    if until_then:
        return until_then[-1]
    return (before or named[0][1]) if named else None


def _moved_away(
    named: dict[str, list[tuple[int, str]]], before: Mapping[str, str]
) -> dict[str, dict[str, int]]:
    """Return the subscriptions that ended for a tenant because a newer event names another one."""
    away: dict[str, dict[str, int]] = {}
    for subscription, mentions in named.items():
        owner = mentions[-1][1]
        former = before.get(subscription)
        if former not in {None, owner}:
            # named by no event that has arrived, unless it is one of those below
            away.setdefault(str(former), {})[subscription] = mentions[0][0]
        for position, (_, tenant) in enumerate(mentions):
            if tenant != owner:
                later = [created for created, other in mentions[position + 1 :] if other != tenant]
                away.setdefault(tenant, {})[subscription] = later[0]
    return away


# The tenant's record.


def subscriptions_of(history: History, placement: Placement, tenant: str) -> dict[str, Folded]:
    """Fold each subscription of a tenant by itself."""
    folded: dict[str, Folded] = {}
    for position in sorted(placement.tenant_of):
        event = history.events[position]
        id_ = _subscription_id(event)
        if placement.tenant_of[position] == tenant and id_ is not None:
            folded[id_] = apply_event(folded.get(id_, Folded(id=id_)), event, "each")
    for id_, when in placement.moved_away.get(tenant, {}).items():
        # nothing has ended where no event of it is the tenant's, or payments alone
        if id_ in folded and folded[id_].status != "none":
            folded[id_] = replace(_end(folded[id_], when), is_moved=True)
    return folded


def _all_events_of(history: History, placement: Placement, tenant: HistoryTenant) -> Folded:
    """Fold all events of a tenant into one state."""
    state = Folded(plan=tenant.plan, has_plan_item=tenant.plan != "free")
    for position in sorted(placement.tenant_of):
        if placement.tenant_of[position] == tenant.id:
            state = apply_event(state, history.events[position], "any")
    return state


def _given_by_operator(tenant: HistoryTenant) -> Folded:
    """The operator's plan counts like a subscription with full access and no end, older than every
    other one.
    """
    return Folded(
        status=_GIVEN, plan=tenant.plan, access_plan=tenant.plan, has_plan_item=True, created=-1
    )


def _choice(state: Folded) -> tuple[bool, int, bool, int, int, str]:
    """Return by what subscriptions are chosen, the greatest first.

    A plan item that gives access before all others, full before grace, a plan item, rank, newest
    `created`, id.
    """
    strength = {"full": 3, "grace": 2, "none": 1}[state.access]
    if state.is_over:
        strength = 0
    gives_plan = state.has_plan_item and state.access != "none"
    return gives_plan, strength, state.has_plan_item, RANKS[state.plan], state.created, state.id


def _given_at(states: list[Folded], moment: int) -> tuple[AccessState, str, Counter[str]]:
    """Return the access, the plan and the add-ons at a moment: of the first state whose access has
    not ended.
    """
    giving = [
        state
        for state in states
        if state.access != "none" and (state.access_ends is None or moment < state.access_ends)
    ]
    addons: Counter[str] = Counter()
    for state in giving:
        for name, quantity in state.addons:
            addons[name] += quantity
    return (giving[0].access, giving[0].access_plan, addons) if giving else ("none", "free", addons)


def _access_at(states: list[Folded], now: int) -> ExpectedAccess:
    """Return the access now, and when it ends without another event."""
    state, plan, addons = _given_at(states, now)
    later = sorted(
        one.access_ends for one in states if one.access_ends is not None and one.access_ends > now
    )
    until = next(
        (moment for moment in later if _given_at(states, moment) != (state, plan, addons)), None
    )
    ends = [one.access_ends or 0 for one in states if one.access != "none"]
    return ExpectedAccess(state, plan, until, max(ends, default=None) if state == "none" else None)


def record_of(
    history: History, placement: Placement, tenant: HistoryTenant, now: int
) -> ExpectedTenant:
    """Return the record that a tenant must have now."""
    if history.mode == "any":
        states = [_all_events_of(history, placement, tenant)]
    else:
        folded = subscriptions_of(history, placement, tenant.id).values()
        states = [state for state in folded if state.status != "none"]
    whole = states[:1]  # `any`: the record is of the last events, whatever gives the access
    if tenant.plan != "free":
        states.append(_given_by_operator(tenant))
    states.sort(key=_choice, reverse=True)
    chosen = whole[0] if history.mode == "any" else next(iter(states), Folded())
    return ExpectedTenant(
        plan=chosen.plan,
        subscription_status="none" if chosen.status == _GIVEN else chosen.status,
        current_period_end=chosen.period_end,
        cancel_at_period_end=chosen.cancel_at_period_end,
        cancel_at=chosen.cancel_at,
        ends_at=chosen.ends_at,
        seats=chosen.seats,
        access=_access_at(states, now),
    )


# Links of customers, and what has been mailed: both depend on the order of arrival.


@dataclass
class _Arrivals:
    """What has arrived so far."""

    history: History
    now: int
    links: dict[str, str] = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    failure_mails: dict[int, str] = field(default_factory=dict)  # position -> tenant
    notices: set[ExpectedMail] = field(default_factory=set)
    ends: set[ExpectedMail] = field(default_factory=set)  # of the access, about the second
    mailed_ends: dict[str, set[int]] = field(default_factory=dict)  # tenant -> ends by time too
    optional: set[ExpectedMail] = field(default_factory=set)

    def __post_init__(self) -> None:
        for tenant in self.history.tenants:
            if tenant.customer is not None:
                self.links[tenant.customer] = tenant.id
        self.view = self._view()

    def take(self, position: int) -> None:
        """Let an event arrive; a duplicate changes nothing."""
        if position in self.arrived:
            return
        before = self.view
        self.arrived.add(position)
        self._link(self.history.events[position])
        after = self.view = self._view()
        self._mail_failures(position, before, after)
        self._mail_recoveries(position, before, after)
        for tenant in self.history.tenants:
            self._mail_ends(position, tenant.id, before, after)
        self._mail_trial_end(position, after)

    def _link(self, event: Event) -> None:
        """Link a customer. The first claim on a customer stands."""
        customer = _customer(event)
        org = _org(event)
        if (
            customer is None
            or org not in {tenant.id for tenant in self.history.tenants}
            or customer in self.links
        ):
            return
        by_checkout = event["type"] == "checkout.session.completed"
        neither_is_linked = event["type"] in LINKING_TYPES and org not in self.links.values()
        if by_checkout or neither_is_linked:
            self.links[customer] = str(org)

    def _view(self) -> "_View":
        placement = place(self.history, self.arrived, self.links)
        records = {
            tenant.id: record_of(self.history, placement, tenant, self.now)
            for tenant in self.history.tenants
        }
        if self.history.mode == "any":
            folds = {
                tenant.id: {"": _all_events_of(self.history, placement, tenant)}
                for tenant in self.history.tenants
            }
        else:
            folds = {
                tenant.id: subscriptions_of(self.history, placement, tenant.id)
                for tenant in self.history.tenants
            }
        return _View(placement, records, folds)

    def _is_young(self, position: int) -> bool:
        created: int = self.history.events[position]["created"]
        return self.now - created < PARKED_MAIL_HOURS * HOUR

    def _mail_failures(self, arriving: int, before: "_View", after: "_View") -> None:
        """One mail for each failed payment, none if a newer success of the same invoice had come in
        before.
        """
        for position, tenant in after.placement.tenant_of.items():
            event = self.history.events[position]
            if event["type"] != FAILED_TYPE or before.placement.tenant_of.get(position) == tenant:
                continue
            ends_past_due = after.records[tenant].subscription_status == "past_due"
            mails = not self._is_paid(position)
            if position != arriving:
                if mails and not ends_past_due and after.status_for(event, tenant) == "past_due":
                    # its subscription is past due, but another one counts
                    self.optional.add(ExpectedMail("payment_failed", tenant, event["id"]))
                mails = mails and self._is_young(position) and ends_past_due
            if mails:
                self.failure_mails[position] = tenant
            else:
                self.failure_mails.pop(position, None)

    def _optional_failures(self, tenant: str) -> set[str | None]:
        """Return the invoices of failed payments of which it is not documented whether they are
        mailed.
        """
        about = {
            mail.about
            for mail in self.optional
            if (mail.kind, mail.tenant) == ("payment_failed", tenant)
        }
        return {_invoice_id(event) for event in self.history.events if event["id"] in about}

    def _is_paid(self, failure: int) -> bool:
        """Whether a success of the failed invoice that is not older has arrived."""
        failed = self.history.events[failure]
        return any(
            self.history.events[position]["type"] in PAID_TYPES
            and _invoice_id(self.history.events[position]) == _invoice_id(failed)
            and self.history.events[position]["created"] >= failed["created"]
            for position in self.arrived
        )

    def _mail_recoveries(self, arriving: int, before: "_View", after: "_View") -> None:
        """An invoice is paid of which the owner was mailed, and the subscription is not past due or
        unpaid now.
        """
        event = self.history.events[arriving]
        mailed = {
            _invoice_id(self.history.events[one]): tenant
            for one, tenant in self.failure_mails.items()
        }
        for position, tenant in after.placement.tenant_of.items():
            paid = self.history.events[position]
            invoice = _invoice_id(paid)
            may_be_mailed = invoice in self._optional_failures(tenant)
            if paid["type"] not in PAID_TYPES or (
                mailed.get(invoice) != tenant and not may_be_mailed
            ):
                continue
            if may_be_mailed or (self.history.mode == "each" and _subscription_id(paid) is None):
                # which subscription is meant is not documented
                self.optional.add(ExpectedMail("payment_recovered", tenant, str(invoice)))
                continue
            status = after.status_for(paid, tenant)
            newly_paid = position == arriving or position not in before.placement.tenant_of
            ends_unpaid = (
                event["type"] in SUBSCRIPTION_TYPES and before.status_for(paid, tenant) == "unpaid"
            )
            if (newly_paid or ends_unpaid) and status not in {"past_due", "unpaid"}:
                self.notices.add(ExpectedMail("payment_recovered", tenant, str(invoice)))

    def _mail_ends(self, arriving: int, tenant: str, before: "_View", after: "_View") -> None:
        """An event ends a subscription, or the access: one mail."""
        if after.records[tenant].access.state != "none":
            return
        known = set(self.notices | self.ends)
        self._mail_ends_by_event(arriving, tenant, before, after)
        ended = before.records[tenant].access.ended
        if set(self.notices | self.ends) == known and ended != after.records[tenant].access.ended:
            self._mail_end_by_time(tenant, ended)

    def _mail_end_by_time(self, tenant: str, ended: int | None) -> None:
        """Access ended by time, which a change now hides: within three days its mail was or is
        queued.
        """
        if ended is not None and 0 <= self.now - ended < ENDS_BY_TIME_DAYS * DAY:
            self.mailed_ends.setdefault(tenant, set()).add(ended)

    def _mail_ends_by_event(
        self, arriving: int, tenant: str, before: "_View", after: "_View"
    ) -> None:
        event = self.history.events[arriving]
        timely = self._timely(arriving, tenant, before, after)
        if not timely:
            return
        had_access = before.records[tenant].access.state != "none" and before.has_given(tenant)
        ended = self._ended_subscriptions(event, tenant, before, after) & timely
        for subscription in sorted(ended):
            self._mail_end(event, subscription, tenant, after)
        if self.history.mode == "any" and before.folds[tenant][""].id not in {
            "",
            _subscription_id(event),
        }:
            # "an event of another subscription than the one that the state is from is not mailed as
            # an end"
            return
        # a failed payment has its own mail alone
        by_payment = (
            event["type"] == FAILED_TYPE or after.records[tenant].subscription_status == "past_due"
        )
        if not had_access or ended or by_payment:
            return
        mail = ExpectedMail("access_ended", tenant, str(event["created"]))
        if event["type"] in INVOICE_TYPES or self._is_paid_since(arriving):
            # such as a payment while payments are paused: the grace ends, and the paid period is
            # over already
            self.optional.add(mail)
        elif not self._has_mailed_end(tenant, event["created"]):
            self.ends.add(mail)
            self.mailed_ends.setdefault(tenant, set()).add(event["created"])

    def _has_mailed_end(self, tenant: str, second: int) -> bool:
        """Whether this end of the tenant's access or a later one was mailed: one end of access is
        mailed once.
        """
        return any(mailed >= second for mailed in self.mailed_ends.get(tenant, ()))

    def _is_paid_since(self, arriving: int) -> bool:
        """Whether a late `unpaid` is followed by a payment, so that the access comes back by a
        further event.
        """
        event = self.history.events[arriving]
        return _object(event).get("status") == "unpaid" and any(
            self.history.events[position]["type"] in PAID_TYPES
            and _subscription_id(self.history.events[position]) == _subscription_id(event)
            for position in self.arrived
            if position > arriving
        )

    def _mail_end(self, event: Event, subscription: str, tenant: str, after: "_View") -> None:
        mail = ExpectedMail("subscription_ended", tenant, subscription)
        others = [
            id_ for id_, status in self._last_statuses(tenant, after).items() if id_ != subscription
        ]
        if after.is_moved(tenant, subscription) and not self._is_young(
            self.history.events.index(event)
        ):
            self.optional.add(mail)  # whether a move is too old to be mailed is not documented
        elif after.is_moved(tenant, subscription) and _org(event) == tenant:
            # whether a tenant that learns late of a move is mailed is not documented
            self.optional.add(mail)
        elif self.history.mode == "any" and others:
            # whether it is an end while another subscription waits is not documented
            self.optional.add(mail)
        elif not self._has_mailed_end(tenant, self._ended_at(subscription, tenant, after)):
            self.notices.add(mail)

    def _ended_at(self, subscription: str, tenant: str, after: "_View") -> int:
        """Return when a subscription ended for a tenant: with its last event there, or with one
        that names another.
        """
        moved = after.placement.moved_away.get(tenant, {}).get(subscription)
        named = [
            self.history.events[position]["created"]
            for position, owner in after.placement.tenant_of.items()
            if owner == tenant
            and self.history.events[position]["type"] in SUBSCRIPTION_TYPES
            and _subscription_id(self.history.events[position]) == subscription
        ]
        return moved if moved is not None else max(named)

    def _last_statuses(self, tenant: str, after: "_View") -> dict[str, str]:
        """Return the status that each living subscription of a tenant was last said to have."""
        said = {}
        for position in sorted(after.placement.tenant_of):
            event = self.history.events[position]
            if (
                after.placement.tenant_of[position] == tenant
                and event["type"] in SUBSCRIPTION_TYPES
            ):
                deleted = event["type"] == DELETED_TYPE
                said[str(_subscription_id(event))] = (
                    "canceled" if deleted else _object(event)["status"]
                )
        return {
            id_: status
            for id_, status in said.items()
            if status not in {"canceled", "incomplete_expired"}
        }

    def _timely(self, arriving: int, tenant: str, before: "_View", after: "_View") -> set[str]:
        """Return the subscriptions of the arriving event, and of parked ones that are applied now
        and young.
        """
        placed_now = {
            position
            for position, owner in after.placement.tenant_of.items()
            if owner == tenant and before.placement.tenant_of.get(position) != tenant
        }
        timely = {
            position for position in placed_now if position == arriving or self._is_young(position)
        }
        return {
            str(_subscription_id(self.history.events[position])) for position in timely | {arriving}
        }

    def _ended_subscriptions(
        self, event: Event, tenant: str, before: "_View", after: "_View"
    ) -> set[str]:
        if self.history.mode == "each":
            was = before.folds[tenant]
            over = {
                id_: state
                for id_, state in after.folds[tenant].items()
                if state.status == "canceled"
            }
            for id_, state in over.items():
                if id_ in was and was[id_].is_moved and not state.is_moved:
                    # it came back by its end: whether it becomes canceled then is not documented
                    self.optional.add(ExpectedMail("subscription_ended", tenant, id_))
            # a tenant that knows only invoices of a subscription never had it
            known = {id_ for id_ in was if was[id_].reported is not None}
            ended = {
                id_
                for id_, state in over.items()
                if (was[id_].status != "canceled" if id_ in known else not state.is_moved)
            }
            return {id_ for id_ in ended if not over[id_].is_moved or self._has_lost(tenant, after)}
        was_any, now_any = before.folds[tenant][""], after.folds[tenant][""]
        became = now_any.status == "canceled" and was_any.status != "canceled"
        mine = was_any.id in {"", _subscription_id(event)} and event["type"] in SUBSCRIPTION_TYPES
        return {str(_subscription_id(event))} if became and mine else set()

    def _has_lost(self, tenant: str, after: "_View") -> bool:
        """Whether a tenant would have access if no subscription had moved away from it."""
        [known] = [each for each in self.history.tenants if each.id == tenant]
        stayed = replace(after.placement, moved_away={})
        return record_of(self.history, stayed, known, self.now).access.state != "none"

    def _mail_trial_end(self, arriving: int, after: "_View") -> None:
        """The trial has not ended, and no newer event has ended or extended it."""
        event = self.history.events[arriving]
        if event["type"] != "customer.subscription.trial_will_end":
            return
        tenant = _org(event) or self.links.get(_customer(event) or "")
        end = _object(event).get("trial_end")
        if tenant not in after.folds or end is None or end <= self.now:
            return
        newer = [
            _object(self.history.events[position])
            for position, owner in after.placement.tenant_of.items()
            if position > arriving
            and _subscription_id(self.history.events[position]) == _object(event)["id"]
            and self.history.events[position]["type"] in SUBSCRIPTION_TYPES
        ]
        if all(one["status"] == "trialing" and one.get("trial_end") == end for one in newer):
            mail = ExpectedMail("trial_ending", str(tenant), f"{_object(event)['id']} {end}")
            if after.status_of(str(tenant), _object(event)["id"]) in {"trialing", "none"}:
                self.notices.add(mail)
            else:
                self.optional.add(mail)  # whether a failed payment ends a trial is not documented


@dataclass(frozen=True)
class _View:
    """All tenants after some arrivals."""

    placement: Placement
    records: dict[str, ExpectedTenant]
    folds: dict[str, dict[str, Folded]]

    def has_given(self, tenant: str) -> bool:
        """Whether a subscription of a tenant gave it access: one of which only invoices are known
        has given nothing.
        """
        return any(
            state.reported is not None and state.access != "none"
            for state in self.folds[tenant].values()
        )

    def is_moved(self, tenant: str, subscription: str) -> bool:
        """Whether a subscription of a tenant has moved to another one."""
        state = self.folds[tenant].get(subscription)
        return state is not None and state.is_moved

    def status_of(self, tenant: str, subscription: str) -> str:
        """Return the status of a subscription; in `any` the tenant's."""
        states = self.folds[tenant]
        state = states.get(subscription) or states.get("")
        return state.status if state else "none"

    def status_for(self, invoice_event: Event, tenant: str) -> str:
        """Return the status of an invoice's subscription; in `any`, and without one, the
        tenant's.
        """
        states = self.folds[tenant]
        state = states.get(_subscription_id(invoice_event) or "")
        return state.status if state else self.records[tenant].subscription_status


def _misleading_moves(history: History) -> set[str]:
    """Return the subscriptions with two moves in a second, before which an older event arrived too
    late.

    Without that event, the other payloads may prove another order: what is mailed until it arrives
    is not documented.
    """
    found = set()
    arrived = list(dict.fromkeys(history.arrivals))
    events = [history.events[position] for position in arrived]
    named = [
        (str(_subscription_id(one)), one["created"], _org(one))
        for one in events
        if _org(one) and one["type"] in SUBSCRIPTION_TYPES
    ]
    seconds = Counter((subscription, created) for subscription, created, _ in set(named))
    for place, (subscription, created, _) in enumerate(named):
        earlier = [second for other, second, _ in named[:place] if other == subscription]
        if any(seconds[subscription, second] > 1 for second in earlier if second > created):
            found.add(subscription)
    return found


def judge(history: History, now: int) -> Verdict:
    """Return what a history must end in, if its arrivals come at `now`, with all notices turned
    on.
    """
    arrivals = _Arrivals(history, now)
    for position in history.arrivals:
        arrivals.take(position)
    view = arrivals.view
    mails = Counter(
        ExpectedMail("payment_failed", tenant, history.events[position]["id"])
        for position, tenant in arrivals.failure_mails.items()
    )
    mails.update(arrivals.notices)
    mails.update(arrivals.ends)
    arrivals.optional |= {
        ExpectedMail("subscription_ended", tenant.id, subscription)
        for subscription in _misleading_moves(history)
        for tenant in history.tenants
    }
    return Verdict(view.records, mails, arrivals.optional)
