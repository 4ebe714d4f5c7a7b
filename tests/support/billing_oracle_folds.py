"""The state that a subscription's events lead to, in the billing oracle.

In mode `any` all events of a tenant make one state, in `each` those of a subscription.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.support.billing_oracle_events import (
    DELETED_TYPE,
    FAILED_TYPE,
    FULL_STATE_TYPES,
    INVOICE_TYPES,
    PAID_TYPES,
    invoice_id_of,
    object_of,
)
from tests.support.provider_world import ADDON_PRICE, DAY, Event

PLAN_OF_PRICE = {"price_pro": "pro", "price_pro_yearly": "pro", "price_business": "business"}
RANKS = {"free": 0, "pro": 1, "business": 2}
# Its price is in the catalog too, so that it is no unknown one.
ADDON_PRICES = {ADDON_PRICE}

PAST_DUE_GRACE_DAYS = 65
ANNOUNCED_END_DAYS = 3

AccessState = Literal["full", "grace", "none"]
GIVEN_BY_OPERATOR = "given by the operator"


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
        if self.status in {"trialing", "active", GIVEN_BY_OPERATOR}:
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
    payload = object_of(event)
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
    payload = object_of(event)
    told = replace(
        state,
        id=payload.get("id") or "",
        created=payload.get("created") or 0,
        cancel_at=payload.get("cancel_at"),
    )
    return end_subscription(told, payload.get("ended_at") or event["created"])


def end_subscription(state: Folded, ended_at: int) -> Folded:
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
        unpaid_invoices=failed.unpaid_invoices | {invoice_id_of(event)},
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
    mine = invoice_id_of(event)
    others = state.unpaid_invoices - {mine}
    if state.status != "past_due" or mine not in state.unpaid_invoices:
        return state
    if others or state.reported in {None, "past_due"}:
        return replace(state, unpaid_invoices=others)
    return _with_status(state, str(state.reported), event["created"], grace=False)
