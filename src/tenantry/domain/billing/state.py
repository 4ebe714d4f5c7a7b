"""The state of a fold, and what one event does to it (SPEC 3)."""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from tenantry.domain.access import NO_SUBSCRIPTION
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import (
    NO_DETAILS,
    BillingEvent,
    SubscriptionDetails,
    SubscriptionItem,
)
from tenantry.domain.billing_months import BillingMonths, Month
from tenantry.domain.grants import HeldGrant, terms_words
from tenantry.domain.owner_mails import OwnerNotice
from tenantry.domain.plans import FREE, OVER, Catalog

PAST_DUE: Final = "past_due"
CANCELED: Final = "canceled"
UNPAID: Final = "unpaid"
VOID: Final = "void"
"""The behavior of a pause of payments in which the tenant does not get the service."""
ACTIVE: Final = "active"
TRIALING: Final = "trialing"
INCOMPLETE: Final = "incomplete"
OWING: Final = frozenset({PAST_DUE, UNPAID})
"""The statuses of a subscription with an unpaid invoice."""
UNBEGUN_OR_OVER: Final = OVER | {INCOMPLETE}
"""The statuses of a subscription that waits for its first payment, or has ended."""


class SubscriptionRule(StrEnum):
    """How the events of several subscriptions of one tenant count (the setting SUBSCRIPTIONS)."""

    ANY = "any"
    """Every event changes the tenant's one state (SPEC 3)."""
    EACH = "each"
    """Each subscription has its own state, and one of them is chosen."""


class RawBodies(StrEnum):
    """Whose raw bodies the ledger stores beside the facts (RAW_BODIES)."""

    OFF = "off"
    FAILED = "failed"
    """Those of malformed events: all that decoding again needs, since other entries hold all
    facts.
    """
    ALL = "all"

    def stores_body_of(self, event: BillingEvent) -> bool:
        if self is RawBodies.FAILED:
            return event.problem is not None
        return self is RawBodies.ALL


class BillingPolicy(msgspec.Struct, frozen=True):
    catalog: Catalog
    subscriptions: SubscriptionRule = SubscriptionRule.ANY
    checkout_reference_links: bool = False
    parked_mail_hours: int = 72
    livemode: bool | None = None
    """The mode that events should be of; None if unknown."""
    ignores_other_mode: bool = False
    """Whether events of the other mode than ``livemode`` are ignored (PROVIDER_LIVEMODE)."""
    accounts: frozenset[str] = frozenset()
    """The connected accounts whose events count (PROVIDER_ACCOUNTS)."""
    past_due_grace: int = 65 * 86_400
    """Seconds of access after a subscription became past due (PAST_DUE_GRACE_DAYS)."""
    notices: frozenset[OwnerNotice] = frozenset()
    """The billing notices that owners get beside those of failed payments (OWNER_NOTICES)."""
    raw_bodies: RawBodies = RawBodies.ALL
    asks_provider: bool = False
    """Whether the provider is asked where events do not say enough (PROVIDER_SECRET_KEY)."""

    is_each: bool = False
    """Whether each subscription has its own state; follows from ``subscriptions``."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "is_each", self.subscriptions is SubscriptionRule.EACH)


WHOLE_TENANT: Final = ""
"""The key of the tenant's one fold with `SubscriptionRule.ANY`; with ``EACH``, of a subscription
without id.
"""


_GRANT_KEY: Final = "grant:"


def grant_key(name: str) -> str:
    """Return the key of the fold of a tenant's grant."""
    return _GRANT_KEY + name


def is_grant_key(key: str) -> bool:
    """Whether a fold is of a grant, not of subscriptions."""
    return key.startswith(_GRANT_KEY)


def fold_key(event: BillingEvent, policy: BillingPolicy) -> str | None:
    """Return the key of the fold that an event belongs to; None if it changes no state."""
    if event.type not in ev.FOLDED_TYPES:
        return None
    if event.grant is not None:
        return grant_key(event.grant.name)
    if not policy.is_each:
        return WHOLE_TENANT
    return event.subscription_id or (None if event.type in ev.INVOICE_TYPES else WHOLE_TENANT)


class KnownSubscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of one subscription as its newest event reports them."""

    id: str
    status: str | None = None
    plan: str = FREE
    current_period_end: int | None = None
    cancel_at_period_end: bool = False


class UnpaidInvoice(NamedTuple):
    """An invoice whose payment failed, and the second of that."""

    id: str
    failed_at: int


class BillingState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a fold: of a tenant, or of one subscription with `SubscriptionRule.EACH`; and of
    a grant.

    The first four fields are those of the tenant record. ``provider_status`` is the status that the
    subscription events last gave, at ``reported_at``. ``subscription_id`` and
    ``subscription_created`` name the subscription that gave it; for a tenant only until it ends.
    ``customer_id`` and ``reported_at`` are of a subscription's fold only. ``seats`` is the quantity
    of the plan item, None without one. ``unpaid_invoices`` are those that made it past due, by id.
    ``paid_until`` is the end of the paid period if payments are paused (`VOID`). ``others`` are the
    tenant's other subscriptions, ended ones included, by id: the order of their events depends on
    them (`order`). Of more than `MOST_OTHERS`, ended ones are left out first. ``running_month`` is
    that of `BillingMonths`, where quotas follow these. The state of a grant has only ``grant`` and
    its plan; it has no status.
    """

    plan: str = FREE
    subscription_status: str = NO_SUBSCRIPTION
    current_period_end: int | None = None
    cancel_at_period_end: bool = False
    provider_status: str | None = None
    subscription_id: str | None = None
    subscription_created: int | None = None
    others: tuple[KnownSubscription, ...] = ()
    customer_id: str | None = None
    seats: int | None = None
    details: SubscriptionDetails = NO_DETAILS
    past_due_since: int | None = None
    unpaid_invoices: tuple[UnpaidInvoice, ...] = ()
    paid_until: int | None = None
    reported_at: int | None = None
    grant: HeldGrant | None = None
    running_month: Month | None = None


MOST_OTHERS: Final = 50


def known_of(state: BillingState, subscription_id: str | None) -> KnownSubscription | None:
    """Return the facts of a subscription; None if no event has reported any."""
    for known in state.others:
        if known.id == subscription_id:
            return known
    if subscription_id is None or subscription_id != state.subscription_id:
        return None
    return KnownSubscription(
        subscription_id,
        state.provider_status,
        state.plan,
        state.current_period_end,
        state.cancel_at_period_end,
    )


reported: Final = attrgetter(
    "plan",
    "subscription_status",
    "current_period_end",
    "cancel_at_period_end",
    "provider_status",
    "subscription_id",
    "subscription_created",
    "seats",
    "details",
    "grant",
    "running_month",
)
"""Return what an event can change in a state that users can see, or that later events depend on."""


class Transition(NamedTuple):
    """The state after an event, and the reason."""

    state: BillingState
    reason: str


def apply(state: BillingState, event: BillingEvent, policy: BillingPolicy) -> Transition:
    """Apply an event to a state; types other than `FOLDED_TYPES` leave it unchanged."""
    handler = _HANDLERS.get(event.type)
    if handler is None:
        return Transition(state, "This type says nothing about billing.")
    return handler(state, event, policy)


def _subscription_updated(
    state: BillingState, event: BillingEvent, policy: BillingPolicy
) -> Transition:
    status = event.status or NO_SUBSCRIPTION
    event = with_known_items(event, state)
    chosen = plan_item(event, policy)
    details = kept_details(event, policy)
    updated = BillingState(
        plan=chosen.plan,
        subscription_status=status,
        current_period_end=chosen.period_end,
        cancel_at_period_end=bool(event.cancel_at_period_end),
        provider_status=status,
        subscription_id=event.subscription_id,
        subscription_created=event.subscription_created,
        customer_id=event.customer_id or state.customer_id,
        seats=chosen.seats,
        details=details,
        past_due_since=_past_due_since(state, status, event.created),
        unpaid_invoices=_still_unpaid(state, status, event.created),
        paid_until=_paid_until(state, details, chosen.period_end, policy),
        reported_at=event.created,
        running_month=_running_month(state, event, details.anchor),
    )
    if not policy.is_each:
        updated = _of_tenant(updated, state, known_of(updated, event.subscription_id))
    return Transition(updated, f"The subscription is {status}: {chosen.reason}.")


def with_known_items(event: BillingEvent, state: BillingState) -> BillingEvent:
    """Add what is known of the items that the provider left out of an event: those of the
    subscription that the event lists neither by id nor by price.

    An item keeps its id when its price changes. The provider may not give the id, and a price whose
    item was replaced by another one counts once.
    """
    details = event.details
    if not details.is_truncated or state.subscription_id != event.subscription_id:
        return event
    ids = {item.id for item in details.items if item.id}
    prices = {item.price_id for item in details.items}
    known = [
        item for item in state.details.items if item.id not in ids and item.price_id not in prices
    ]
    items = (*details.items, *known)
    return msgspec.structs.replace(event, details=msgspec.structs.replace(details, items=items))


def _of_tenant(
    after: BillingState, before: BillingState, known: KnownSubscription | None
) -> BillingState:
    """Return a tenant's state ``after`` an event of the ``known`` subscription, from that of the
    subscription.

    A tenant's row is its state: it names no subscription after the end.
    """
    is_over = after.subscription_status in OVER
    current = None if is_over else after.subscription_id
    return msgspec.structs.replace(
        after,
        subscription_id=current,
        subscription_created=None if is_over else after.subscription_created,
        seats=None if is_over else after.seats,
        others=_others(before, known, current),
        customer_id=None,
        reported_at=None,
    )


def kept_details(event: BillingEvent, policy: BillingPolicy) -> SubscriptionDetails:
    """Return the details that a state needs: of a tenant's, none that the record, the access and
    the periods of usage do not depend on. With `SubscriptionRule.EACH` the period begins with that
    of the plan item, as it ends with it.
    """
    details, catalog = event.details, policy.catalog
    anchor = details.anchor if catalog.has_billing_months else None
    if policy.is_each:
        start, _ = plan_period(details, event.current_period_end, policy)
        return msgspec.structs.replace(
            details, items=items_of(event), period_start=start, anchor=anchor
        )
    if catalog.addons:
        return msgspec.structs.replace(details, items=items_of(event), anchor=anchor)
    needed = details.cancel_at, details.trial_end, details.pause, details.ended_at
    is_needed = needed != _NOTHING_NEEDED or details.has_empty_item
    if is_needed or catalog.has_billing_periods or catalog.has_billing_months:
        return msgspec.structs.replace(details, anchor=anchor)
    return NO_DETAILS


_NOTHING_NEEDED: Final = (None,) * 4


def _running_month(state: BillingState, event: BillingEvent, anchor: int | None) -> Month | None:
    """Return the month of a subscription that ran when it got this ``anchor``, while it counts."""
    known = state.details.anchor
    if anchor is None or known is None or state.subscription_id != event.subscription_id:
        return None
    return BillingMonths(known, state.running_month).moved_to(anchor, event.created).running


def _paid_until(
    state: BillingState,
    details: SubscriptionDetails,
    period_end: int | None,
    policy: BillingPolicy,
) -> int | None:
    """Return the end of the period in which payments were paused: the provider voids the invoices
    of later ones.
    """
    if details.pause != VOID:
        return None
    if state.paid_until is not None:
        return state.paid_until
    return plan_period(details, period_end, policy)[1]


def _past_due_since(state: BillingState, status: str, now: int) -> int | None:
    if status not in OWING:
        return None
    return now if state.past_due_since is None and status == PAST_DUE else state.past_due_since


def _still_unpaid(state: BillingState, status: str, now: int) -> tuple[UnpaidInvoice, ...]:
    """Return the unpaid invoices after an update; one that owes nothing settles those of earlier
    seconds.
    """
    if status in OVER:
        return ()
    if status in OWING:
        return state.unpaid_invoices
    # of one second the order must not matter: the provider sends a failed payment between two
    # updates
    return tuple(invoice for invoice in state.unpaid_invoices if invoice.failed_at == now)


class PlanItem(NamedTuple):
    """The plan that an event's items mean, and the reason; ``seats`` is None if no item has a
    plan's price.

    ``is_one_of_several`` means that other items have plans too; ``unknown`` are prices that the
    catalog does not have.
    """

    plan: str
    seats: int | None
    period_end: int | None
    reason: str
    is_one_of_several: bool = False
    unknown: tuple[str, ...] = ()


def items_of(event: BillingEvent) -> tuple[SubscriptionItem, ...]:
    """Return the items of the event's subscription."""
    if event.details.items or event.price_id is None:
        return event.details.items
    return (SubscriptionItem(event.price_id),)


def plan_item(event: BillingEvent, policy: BillingPolicy) -> PlanItem:
    """Return the item that decides the plan: the first; with `SubscriptionRule.EACH` that of the
    highest plan.
    """
    catalog, items, price = policy.catalog, event.details.items, event.price_id
    if policy.is_each and items:
        return _highest_plan_item(event, catalog)
    plan = catalog.plan_of_price(price)
    why = _why(price, plan, catalog)
    if plan is None:
        unknown = unknown_prices([SubscriptionItem(price)], catalog)
        return PlanItem(FREE, None, event.current_period_end, why, unknown=unknown)
    seats = items[0].quantity if items else 1
    return PlanItem(plan, seats, event.current_period_end, why)


def _highest_plan_item(event: BillingEvent, catalog: Catalog) -> PlanItem:
    """Return the item of the highest plan, of those that have a quantity."""
    unknown = unknown_prices(event.details.items, catalog)
    with_plan = [item for item in event.details.items if catalog.plan_of_price(item.price_id)]
    counted = [item for item in with_plan if item.quantity]
    if not counted:
        why = _why_no_plan(with_plan, unknown, catalog)
        return PlanItem(FREE, None, event.current_period_end, why, unknown=unknown)
    item = _highest(counted, catalog)
    plan = catalog.plan_of_price(item.price_id) or FREE
    period_end = event.current_period_end if item.period_end is None else item.period_end
    why = _why(item.price_id, plan, catalog)
    return PlanItem(plan, item.quantity, period_end, why, len(counted) > 1, unknown)


def _highest(items: Iterable[SubscriptionItem], catalog: Catalog) -> SubscriptionItem:
    """Return the item of the highest plan; of one plan's the first."""
    return max(items, key=lambda each: catalog.rank(catalog.plan_of_price(each.price_id) or FREE))


def item_with_period(
    items: Iterable[SubscriptionItem], policy: BillingPolicy
) -> SubscriptionItem | None:
    """Return the item whose period is that of the plan; None if no item has a plan and a quantity.

    With `SubscriptionRule.EACH` it is the item that decides the plan. With ``ANY`` it is the first
    with a plan: an add-on that comes before it has a period of its own.
    """
    catalog = policy.catalog
    with_plan = [each for each in items if each.quantity and catalog.plan_of_price(each.price_id)]
    if not with_plan:
        return None
    return _highest(with_plan, catalog) if policy.is_each else with_plan[0]


def plan_period(
    details: SubscriptionDetails, period_end: int | None, policy: BillingPolicy
) -> tuple[int | None, int | None]:
    """Return the start and the end of the plan item's period. Where it has none, they are those of
    the subscription, whose end is ``period_end``.
    """
    item = item_with_period(details.items, policy)
    if item is None or item.period_end is None:
        return details.period_start, period_end
    return item.period_start, item.period_end


def unknown_prices(items: Iterable[SubscriptionItem], catalog: Catalog) -> tuple[str, ...]:
    """Return the prices of items that are neither a plan's nor an add-on's."""
    prices = [item.price_id for item in items if item.price_id is not None]
    return tuple(price for price in prices if not catalog.has_price(price))


def _why_no_plan(
    empty: Sequence[SubscriptionItem], unknown: Sequence[str], catalog: Catalog
) -> str:
    """Say why no item decides the plan; ``empty`` are those with a plan's price and quantity 0."""
    if empty:
        return f"the quantity of price {empty[0].price_id} is 0, which means plan {FREE}"
    return _why(next(iter(unknown), None), None, catalog)


def _why(price_id: str | None, plan: str | None, catalog: Catalog) -> str:
    if price_id is None:
        return f"it has no item with a price of a plan, which means plan {FREE}"
    if plan is not None:
        return f"price {price_id} means plan {plan}"
    if addon := catalog.addon_of_price(price_id):
        return f"price {price_id} is of add-on {addon}, which means plan {FREE}"
    return f"price {price_id} is not in the plan catalog, which means plan {FREE}"


def _subscription_deleted(
    state: BillingState, event: BillingEvent, policy: BillingPolicy
) -> Transition:
    ended_at = event.created if event.details.ended_at is None else event.details.ended_at
    # another tenant's events report a subscription that has moved
    reported_at = state.reported_at if event.details.has_moved else event.created
    ended = msgspec.structs.replace(
        state,
        plan=FREE,
        subscription_status=CANCELED,
        current_period_end=None,
        provider_status=CANCELED,
        subscription_id=event.subscription_id,
        subscription_created=event.subscription_created or state.subscription_created,
        customer_id=event.customer_id or state.customer_id,
        seats=None,
        details=msgspec.structs.replace(event.details, ended_at=ended_at, anchor=None),
        past_due_since=None,
        unpaid_invoices=(),
        paid_until=None,
        reported_at=reported_at,
        running_month=None,
    )
    if not policy.is_each:
        own = event.subscription_id and KnownSubscription(event.subscription_id, CANCELED)
        ended = _of_tenant(ended, state, own or None)
    return Transition(ended, "The subscription has ended.")


def _others(
    before: BillingState, known: KnownSubscription | None, current: str | None
) -> tuple[KnownSubscription, ...]:
    """Return a tenant's subscriptions other than the ``current`` one, after an event of the
    ``known`` one.
    """
    if not before.others and current and before.subscription_id in (None, current):
        return ()  # the tenant's only subscription
    former = known_of(before, before.subscription_id)
    others = {each.id: each for each in (*before.others, former, known) if each is not None}
    others.pop(current or "", None)
    return _bounded(others.values())


def _bounded(others: Iterable[KnownSubscription]) -> tuple[KnownSubscription, ...]:
    """Keep at most `MOST_OTHERS`, by id, and drop ended ones first."""
    kept = sorted(others, key=lambda each: (each.status not in OVER, each.id))[-MOST_OTHERS:]
    return tuple(sorted(kept, key=attrgetter("id")))


def _snapshot(state: BillingState, event: BillingEvent, policy: BillingPolicy) -> Transition:
    # The provider reports an end by `deleted`, so a canceled snapshot has the effect of that event.
    handler = _subscription_deleted if event.status == CANCELED else _subscription_updated
    step = handler(state, event, policy)
    return Transition(step.state, f"The provider was asked. {step.reason}")


def _payment_failed(state: BillingState, event: BillingEvent, policy: BillingPolicy) -> Transition:
    if policy.is_each and state.subscription_status in OVER:
        return Transition(state, "A payment failed; the subscription had ended.")
    customer_id = state.customer_id or event.customer_id
    failed = msgspec.structs.replace(
        state,
        subscription_status=PAST_DUE,
        past_due_since=_past_due_since(state, PAST_DUE, event.created),
        unpaid_invoices=_with_unpaid(state, event),
        customer_id=customer_id if policy.is_each else None,
    )
    return Transition(failed, "A payment failed.")


def _with_unpaid(state: BillingState, event: BillingEvent) -> tuple[UnpaidInvoice, ...]:
    if event.invoice_id is None:
        return state.unpaid_invoices
    invoices = (*_without_unpaid(state, event), UnpaidInvoice(event.invoice_id, event.created))
    return tuple(sorted(invoices)[-_MOST_INVOICES:])


def _without_unpaid(state: BillingState, event: BillingEvent) -> tuple[UnpaidInvoice, ...]:
    return tuple(invoice for invoice in state.unpaid_invoices if invoice.id != event.invoice_id)


def _payment_succeeded(
    state: BillingState, event: BillingEvent, _policy: BillingPolicy
) -> Transition:
    unpaid = _without_unpaid(state, event)
    if state.subscription_status != PAST_DUE:
        logged = msgspec.structs.replace(state, unpaid_invoices=unpaid)
        return Transition(logged, "The payment is logged; the organization was not past due.")
    restored = state.provider_status if state.provider_status not in (None, PAST_DUE) else ACTIVE
    paid = _no_longer_past_due(msgspec.structs.replace(state, unpaid_invoices=unpaid), restored)
    return Transition(paid, "A payment cleared the past-due status.")


def _no_longer_past_due(state: BillingState, status: str) -> BillingState:
    since = state.past_due_since if status in OWING else None
    return msgspec.structs.replace(state, subscription_status=status, past_due_since=since)


def _invoice_given_up(
    state: BillingState, event: BillingEvent, _policy: BillingPolicy
) -> Transition:
    """Drop the past-due status that this invoice alone has set: the provider does not collect it
    any more.
    """
    unpaid = _without_unpaid(state, event)
    left = msgspec.structs.replace(state, unpaid_invoices=unpaid)
    if state.subscription_status != PAST_DUE or unpaid == state.unpaid_invoices:
        return Transition(left, "The invoice had not made it past due.")
    if unpaid or state.provider_status in (None, PAST_DUE):
        return Transition(
            left, f"It stays past due: {'another invoice' if unpaid else 'the subscription'} is."
        )
    dropped = _no_longer_past_due(left, state.provider_status)
    return Transition(
        dropped, "The unpaid invoice is not collected any more: that cleared the past-due status."
    )


def _grant_set(state: BillingState, event: BillingEvent, _policy: BillingPolicy) -> Transition:
    terms = event.grant
    if terms is None:
        return Transition(state, "The event names no grant.")
    granted = BillingState(plan=terms.plan or FREE, grant=HeldGrant(terms, event.created))
    return Transition(granted, f"Grant {terms.name} gives {terms_words(terms)}. {terms.sentence}")


def _grant_ended(state: BillingState, event: BillingEvent, _policy: BillingPolicy) -> Transition:
    held = state.grant
    if held is None or held.ended_at is not None:
        return Transition(state, "There is no such grant.")
    ended = msgspec.structs.replace(held, ended_at=event.created)
    return Transition(BillingState(grant=ended), f"The operator ended grant {held.terms.name}.")


_MOST_INVOICES: Final = 20
_Handler = Callable[[BillingState, BillingEvent, BillingPolicy], Transition]
_HANDLERS: Final[dict[str, _Handler]] = {
    **dict.fromkeys(ev.WHOLE_SUBSCRIPTION_TYPES, _subscription_updated),
    ev.SUBSCRIPTION_DELETED: _subscription_deleted,
    ev.SNAPSHOT: _snapshot,
    ev.PAYMENT_FAILED: _payment_failed,
    **dict.fromkeys(ev.PAYMENT_TYPES, _payment_succeeded),
    ev.INVOICE_VOIDED: _invoice_given_up,
    ev.INVOICE_UNCOLLECTIBLE: _invoice_given_up,
    ev.GRANT_SET: _grant_set,
    ev.GRANT_ENDED: _grant_ended,
}
