"""What a tenant's record must say, computed from what happened, in the order in which it did.

Written from docs/explanation/subscriptions.md alone. Nothing is folded and nothing is kept: each
answer looks through the history of one subscription again. `SUBSCRIPTIONS=any` is the case of one
subscription, to which everything happens. The only order here is that of the list, so it says
nothing about late events or batches.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tenantry.domain.billing.events import BillingEvent, SubscriptionDetails, SubscriptionItem
from tenantry.domain.billing.state import SubscriptionRule
from tenantry.domain.plans import Catalog

DAY: Final = 24 * 3600
GRACE_DAYS: Final = 65
LATE_DAYS: Final = 3
"""How long access lasts after an announced end whose event did not come."""

_UPDATED: Final = "customer.subscription.updated"
_DELETED: Final = "customer.subscription.deleted"
_SNAPSHOT: Final = "tenantry.subscription.snapshot"
_GRANT_SET: Final = "tenantry.grant.set"
_FAILED: Final = "invoice.payment_failed"
_WHOLE: Final = {
    _UPDATED,
    "customer.subscription.created",
    "customer.subscription.paused",
    "customer.subscription.resumed",
}
_PAID: Final = {"invoice.payment_succeeded", "invoice.paid"}
_GIVEN_UP: Final = {"invoice.voided", "invoice.marked_uncollectible"}
_TYPES: Final = {_DELETED, _SNAPSHOT, _FAILED} | _WHOLE | _PAID | _GIVEN_UP
_OVER: Final = {"canceled", "incomplete_expired"}
_OWING: Final = {"past_due", "unpaid"}
_ACCESS_ORDER: Final = ("over", "none", "grace", "full")

_NOTHING: Final = BillingEvent(id="", type="", created=0)


class ExpectedRecord(NamedTuple):
    """The fields of a tenant's record that its subscriptions decide; times are seconds since the
    epoch.
    """

    plan: str
    subscription_status: str
    current_period_end: int | None
    cancel_at_period_end: bool
    cancel_at: int | None
    ends_at: int | None
    seats: int | None


class ExpectedAccess(NamedTuple):
    """A tenant's access at one moment; ``addons`` are ids with the total quantity of each,
    ``features`` and ``limits`` those of grants.
    """

    state: str
    plan: str
    until: int | None
    addons: "Named"
    features: "Named" = ()
    limits: "Named" = ()


Named = tuple[tuple[str, Any], ...]


class Rules(NamedTuple):
    """How the service is set up."""

    catalog: Catalog
    grace_days: int = GRACE_DAYS
    subscriptions: SubscriptionRule = SubscriptionRule.EACH

    @property
    def is_each(self) -> bool:
        """Whether each subscription has its own state."""
        return self.subscriptions is SubscriptionRule.EACH


class ExpectedSubscription:
    """One subscription; ``history`` are its events, invoices' included, as they happened.

    In ``any`` it is all that a tenant has, and ``first_plan`` what that was before the first event.
    """

    def __init__(
        self,
        subscription_id: str,
        history: Sequence[BillingEvent],
        rules: Rules,
        first_plan: str = "free",
    ) -> None:
        self.id = subscription_id
        self._history = history
        self._rules = rules
        self._first_plan = first_plan
        self._statuses: list[str | None] = []
        for place in range(len(history)):
            self._statuses.append(
                self._status_after(place, self._statuses[-1] if self._statuses else None)
            )
        own = [event for event in history if event.type.startswith(("customer.", "tenantry."))]
        whole = [event for event in own if not _is_end(event)]
        self._last = own[-1] if own else _NOTHING
        self._last_whole = whole[-1] if whole else _NOTHING
        created_times = (event.subscription_created for event in own)
        self._created = next((created for created in created_times if created is not None), None)

    def _status_after(self, place: int, before: str | None) -> str | None:
        event = self._history[place]
        if not event.type.startswith("invoice."):
            return "canceled" if _is_end(event) else event.status
        if before in _OVER and self._rules.is_each:
            return before
        if event.type == _FAILED:
            return "past_due"
        if before != "past_due":
            return before
        given = self._status_given_before(place)
        if event.type in _PAID:
            return given if given not in {None, "past_due"} else "active"
        clears = self._open_before(place) == {event.invoice_id}
        return given if clears and given not in {None, "past_due"} else before

    def _status_given_before(self, place: int) -> str | None:
        """The status that the subscription events last gave."""
        given = [event for event in self._history[:place] if not event.type.startswith("invoice.")]
        return given[-1].status if given else None

    def _open_before(self, place: int) -> set[str | None]:
        """The invoices whose payment failed, and that nothing settled since.

        A payment settles an invoice, giving it up does, and so does a subscription event of a later
        second whose status owes nothing.
        """
        before = self._history[:place]
        newest = {event.invoice_id: event for event in before if event.type.startswith("invoice.")}
        settled = [
            event.created
            for event in before
            if not event.type.startswith("invoice.") and event.status not in _OWING
        ]
        return {
            invoice
            for invoice, event in newest.items()
            if event.type == _FAILED and event.created >= max(settled, default=0)
        }

    @property
    def is_known(self) -> bool:
        """Whether any event gave it a status."""
        return self.status != "none"

    @property
    def status(self) -> str:
        """The status after everything that happened."""
        return (self._statuses[-1] if self._statuses else None) or "none"

    @property
    def _has_ended(self) -> bool:
        return _is_end(self._last)

    @property
    def _items(self) -> Sequence[SubscriptionItem]:
        if self._has_ended:
            return ()
        price = self._last.price_id
        return self._last.details.items or ([] if price is None else [SubscriptionItem(price)])

    @property
    def _plan_item(self) -> tuple[str, SubscriptionItem] | None:
        """The item that determines plan and seats: in ``any`` the first, whatever its quantity."""
        return self._plan_item_of(self._counting if self._rules.is_each else self._items)

    @property
    def _access_item(self) -> tuple[str, SubscriptionItem] | None:
        """The item that determines the plan of the access."""
        return self._plan_item_of(self._counting)

    @property
    def _counting(self) -> Sequence[SubscriptionItem]:
        return [item for item in self._items if item.quantity > 0]

    def _plan_item_of(
        self, items: Sequence[SubscriptionItem]
    ) -> tuple[str, SubscriptionItem] | None:
        catalog = self._rules.catalog
        considered = items if self._rules.is_each else items[:1]
        plans = [
            (catalog.plan_of_price(item.price_id), item)
            for item in considered
            if item.price_id is not None
        ]
        found = [(plan, item) for plan, item in plans if plan is not None]
        # max() returns the first of equals, which is the one that counts
        return max(found, key=lambda each: catalog.rank(each[0]), default=None)

    @property
    def addons(self) -> Counter[str]:
        """Its add-ons, with quantities."""
        addons: Counter[str] = Counter()
        for item in self._counting:
            addon = (
                None if item.price_id is None else self._rules.catalog.addon_of_price(item.price_id)
            )
            if addon is not None:
                addons[addon] += item.quantity
        return addons

    @property
    def record(self) -> ExpectedRecord:
        """The tenant's record if this subscription is chosen."""
        period_end = None if self._has_ended else self._last.current_period_end
        details, cancels = self._last.details, self._last_whole.cancel_at_period_end or False
        seats = (
            None
            if self._plan_item is None or self.reported_status in _OVER
            else self._plan_item[1].quantity
        )
        ends_at = self._ends_at(details, cancels, period_end)
        return ExpectedRecord(
            self.plan, self.status, period_end, cancels, details.cancel_at, ends_at, seats
        )

    @property
    def plan(self) -> str:
        """The plan by its items, ``free`` without one."""
        if self._last is _NOTHING:
            return self._first_plan
        return "free" if self._plan_item is None else self._plan_item[0]

    @property
    def access_plan(self) -> str:
        """The plan of the access that it gives."""
        return "free" if self._access_item is None else self._access_item[0]

    def _ends_at(
        self, details: SubscriptionDetails, cancels: bool, period_end: int | None
    ) -> int | None:
        if self.status == "past_due" and self.reported_status in _OVER:
            return None  # a payment that fails after the end (`any`): this is not documented
        if self._has_ended:
            ended = self._last.details.ended_at
            return self._last.created if ended is None else ended
        if details.ended_at is not None:
            return details.ended_at
        if details.cancel_at is not None:
            return details.cancel_at
        return period_end if cancels else None

    @property
    def _paid_until(self) -> int | None:
        """The end of the period in which payments were paused, by the pause that goes on."""
        paused: list[BillingEvent] = []
        for event in reversed(
            [event for event in self._history if not event.type.startswith("invoice.")]
        ):
            if event.details.pause != "void":
                break
            paused.insert(0, event)
        return next(
            (event.current_period_end for event in paused if event.current_period_end is not None),
            None,
        )

    @property
    def past_due_since(self) -> int | None:
        """When it became past due, if it has been past due or unpaid ever since."""
        since = None
        for event, status in zip(reversed(self._history), reversed(self._statuses), strict=True):
            if status not in _OWING:
                break
            if status == "past_due":
                since = event.created
        return since

    @property
    def access_by_status(self) -> tuple[str, int | None]:
        """The access that the status gives, and when it turns to none by itself."""
        state = self._state_by_status
        if state not in {"full", "grace"}:
            return state, None
        ends = [each + LATE_DAYS * DAY for each in self._announced_ends]
        since = self.past_due_since
        if state == "grace" and since is not None:
            ends.append(since + self._rules.grace_days * DAY)
        if (
            self._status_without_failure == "active"
            and "active" not in self._rules.catalog.access
            and self._last.details.pause == "void"
        ):
            ends += [] if self._paid_until is None else [self._paid_until]
        return state, min(ends, default=None)

    @property
    def reported_status(self) -> str | None:
        """The status that the subscription events last gave; None if there are none."""
        return self._status_given_before(len(self._history))

    @property
    def _status_without_failure(self) -> str | None:
        return self.reported_status if self.status == "past_due" else self.status

    @property
    def _state_by_status(self) -> str:
        """What the status gives: no more than what the subscription events gave, and nothing
        without a quantity.
        """
        if self.status in _OVER:
            return "over"
        state = self._given_by(self.status)
        if self.status == "past_due":
            reported = self.reported_status
            before = "none" if reported is None else self._given_by(reported)
            state = min(state, before, key=_ACCESS_ORDER.index)
        is_empty = bool(self._items) and all(item.quantity == 0 for item in self._items)
        return "none" if is_empty else state

    def _given_by(self, status: str) -> str:
        usual = {"past_due": "grace", "active": "full", "trialing": "full"}.get(status, "none")
        return self._rules.catalog.access.get(status, usual)

    @property
    def _announced_ends(self) -> list[int]:
        details, period_end = self._last.details, self._last.current_period_end
        ends = [details.cancel_at]
        ends += [period_end] if self._last.cancel_at_period_end else []
        ends += [details.trial_end] if self._status_without_failure == "trialing" else []
        return [end for end in ends if end is not None]

    def access_at(self, moment: int) -> str:
        """``full``, ``grace``, ``none`` or ``over`` at a moment."""
        state, until = self.access_by_status
        return "none" if until is not None and moment >= until else state

    def place(self, access: str) -> tuple[bool, int, bool, int, int, str]:
        """Its place among others if this is its access: the greatest counts."""
        has_plan = self._access_item is not None
        created = -1 if self._created is None else self._created
        gives_plan = has_plan and access in {"full", "grace"}
        rank = self._rules.catalog.rank(self.access_plan)
        return gives_plan, _ACCESS_ORDER.index(access), has_plan, rank, created, self.id


class ExpectedGrant(NamedTuple):
    """A grant that the operator has not ended."""

    plan: str
    until: int | None
    features: tuple[tuple[str, int | None], ...] = ()
    limits: tuple[tuple[str, int], ...] = ()

    def counts_at(self, moment: int) -> bool:
        """Whether it has not ended by time."""
        return self.until is None or moment < self.until


def grants_after(happened: Sequence[BillingEvent]) -> list[ExpectedGrant]:
    """The grants that are left after everything that happened: the last event of each decides."""
    last = {event.grant.name: event for event in happened if event.grant is not None}
    set_last = [last[name] for name in sorted(last) if last[name].type == _GRANT_SET]
    given = [event.grant for event in set_last if event.grant is not None]
    return [
        ExpectedGrant(terms.plan or "free", terms.until, terms.features, terms.limits)
        for terms in given
    ]


def greatest(values: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """Of each name the greatest value; None has no limit."""
    found: dict[str, Any] = {}
    for name, value in values:
        before = found.get(name, 0)
        found[name] = None if value is None or before is None else max(value, before)
    return tuple(sorted(found.items()))


class Expected:
    """A tenant with everything that happened to it, in order; ``plan`` is what the operator gave it
    for good when creating it.
    """

    def __init__(self, happened: Sequence[BillingEvent], rules: Rules, plan: str = "free") -> None:
        self._catalog = rules.catalog
        self._is_each = rules.is_each
        counted = [event for event in happened if event.type in _TYPES]
        self.named = (
            _each_of(counted, rules) if rules.is_each else {"": _all_of(counted, rules, plan)}
        )
        """Its subscriptions by id, those without a status too. In ``any`` there is one, named
        "".
        """
        self.subscriptions = [each for each in self.named.values() if each.is_known]
        self.grants = [ExpectedGrant(plan, None), *grants_after(happened)]

    @property
    def record(self) -> ExpectedRecord:
        """The fields of the tenant's record."""
        first = max(
            self.subscriptions, key=lambda each: each.place(each.access_by_status[0]), default=None
        )
        if first is None:
            return self._record_of(self._highest(self.grants))
        plan = self._highest([each for each in self.grants if each.until is None])
        if self._is_each and self._place_of(plan) > first.place(first.access_by_status[0]):
            return self._record_of(plan)
        return first.record

    def _record_of(self, plan: str) -> ExpectedRecord:
        return ExpectedRecord(plan, "none", None, False, None, None, None)

    def _highest(self, grants: Sequence[ExpectedGrant]) -> str:
        """The plan of the highest rank that these grants give."""
        plans = [each.plan for each in grants if each.plan != "free"]
        return max(plans, key=self._catalog.rank, default="free")

    def _place_of(self, plan: str) -> tuple[bool, int, bool, int, int, str]:
        """The place of a grant's plan: that of a subscription with full access, the oldest of
        all.
        """
        if plan == "free":
            return False, -1, False, -1, -1, ""
        return True, _ACCESS_ORDER.index("full"), True, self._catalog.rank(plan), -1, ""

    @property
    def turns(self) -> list[int]:
        """The moments at which a grant, or the access of some subscription, ends by itself."""
        ends = {each.access_by_status[1] for each in self.subscriptions}
        ends |= {each.until for each in self.grants}
        return sorted(end for end in ends if end is not None)

    def access_at(self, moment: int) -> ExpectedAccess:
        """The tenant's access at a moment."""
        given = self._given_at(moment)
        later = (turn for turn in self.turns if turn > moment)
        until = next((turn for turn in later if self._given_at(turn) != given), None)
        state, plan, addons, features, limits = given
        return ExpectedAccess(state, plan, until, addons, features, limits)

    def _given_at(self, moment: int) -> tuple[str, str, Named, Named, Named]:
        addons: Counter[str] = Counter()
        for each in self.subscriptions:
            if each.access_at(moment) in {"full", "grace"}:
                addons += each.addons
        granted = [each for each in self.grants if each.counts_at(moment)]
        features = greatest(pair for each in granted for pair in each.features)
        limits = greatest(pair for each in granted for pair in each.limits)
        return *self._state_and_plan(moment), tuple(sorted(addons.items())), features, limits

    def _state_and_plan(self, moment: int) -> tuple[str, str]:
        chosen = max(
            self.subscriptions, key=lambda each: each.place(each.access_at(moment)), default=None
        )
        plan = self._highest([each for each in self.grants if each.counts_at(moment)])
        if chosen is None or self._place_of(plan) > chosen.place(chosen.access_at(moment)):
            return ("none" if plan == "free" else "full"), plan
        state = chosen.access_at(moment)
        return (state, chosen.access_plan) if state in {"full", "grace"} else ("none", "free")

    def accesses(self, moments: Sequence[int]) -> Mapping[int, ExpectedAccess]:
        """The tenant's access at each of these moments."""
        return {moment: self.access_at(moment) for moment in moments}


def _each_of(counted: Sequence[BillingEvent], rules: Rules) -> dict[str, ExpectedSubscription]:
    ids = sorted({event.subscription_id for event in counted if event.subscription_id is not None})
    return {
        each: ExpectedSubscription(
            each, [event for event in counted if event.subscription_id == each], rules
        )
        for each in ids
    }


def _all_of(counted: Sequence[BillingEvent], rules: Rules, plan: str) -> ExpectedSubscription:
    reports = [event.subscription_id for event in counted if not event.type.startswith("invoice.")]
    return ExpectedSubscription((reports[-1] or "") if reports else "", counted, rules, plan)


def _is_end(event: BillingEvent) -> bool:
    """Whether the event is `deleted`, or a snapshot that has its effect."""
    return event.type == _DELETED or (event.type == _SNAPSHOT and event.status == "canceled")
