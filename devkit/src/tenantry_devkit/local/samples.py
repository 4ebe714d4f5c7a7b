"""Sample events, and overrides of their fields."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tenantry.common.clock import from_epoch
from tenantry.domain.billing import events as ev
from tenantry.domain.plans import Catalog
from tenantry.integrations.stripe.client import ORG_ID
from tenantry_devkit.simulator import NEW_VERSION, Simulator, render_event
from tenantry_devkit.simulator.invoices import DAY
from tenantry_devkit.simulator.objects import (
    BillingObject,
    CheckoutSession,
    Customer,
    Ids,
    Invoice,
    ProviderEvent,
    Subscription,
)

TENANT: Final = "demo"
"""The id of the demo's tenant, and of the one that a dry run is about."""
_OPEN_OBJECTS: Final = frozenset({"metadata", "previous_attributes"})
"""Objects that accept new names."""
AMOUNT: Final = 2900
_HOSTED_PAGES: Final = "https://pay.example"
_ADDON_AMOUNT: Final = 500
TYPES: Final = {
    ev.SUBSCRIPTION_UPDATED: "a subscription changed or was renewed",
    ev.SUBSCRIPTION_DELETED: "a subscription ended",
    ev.PAYMENT_SUCCEEDED: "a renewal was paid",
    ev.PAYMENT_FAILED: "the payment of a renewal failed",
    ev.CHECKOUT_COMPLETED: "a customer completed a checkout",
    ev.SUBSCRIPTION_CREATED: "a subscription began",
    ev.SUBSCRIPTION_PAUSED: "a trial ended without a card",
    ev.SUBSCRIPTION_RESUMED: "a paused subscription was paid",
    ev.TRIAL_WILL_END: "a trial ends in three days",
    ev.INVOICE_PAID: "a renewal was paid",
    ev.INVOICE_VOIDED: "an unpaid invoice was voided",
    ev.INVOICE_UNCOLLECTIBLE: "an unpaid invoice was written off",
    ev.ASYNC_PAYMENT_SUCCEEDED: "a bank debit was paid",
    ev.ASYNC_PAYMENT_FAILED: "a bank debit failed",
    ev.CUSTOMER_DELETED: "a customer was deleted",
}
"""The types that the service handles, with their meaning: first those that it needs."""

Json = dict[str, Any]


class OverrideError(ValueError):
    """An override is malformed, or its path does not exist in the event."""


def override(event: Json, texts: Sequence[str]) -> None:
    """Set values in an event, in place. Raises `OverrideError`, whose message quotes the faulty
    text.

    A path leads into the event's object, by names and list positions separated by dots; ``event.``
    leads into the event itself. It must exist; only objects in `_OPEN_OBJECTS` accept new names. A
    value is JSON, or else a string.
    """
    for text in texts:
        path, equals, value = text.partition("=")
        names = path.split(".")
        if not equals or not all(names):
            raise OverrideError(f"{text!r}: must be path=value, such as cancel_at_period_end=true")
        decoded = _decoded(value, text)
        names = names[1:] if names[0] == "event" and len(names) > 1 else ["data", "object", *names]
        _set(event, names, decoded, text)


def _decoded(value: str, text: str) -> Any:  # noqa: ANN401  # any JSON
    """Decode JSON, or return a string without quotes as it is."""
    try:
        return msgspec.json.decode(value)
    except UnicodeEncodeError:
        raise OverrideError(f"{text!r}: is not UTF-8") from None
    except (msgspec.DecodeError, RecursionError):
        return value


def _set(target: Any, names: Sequence[str], value: object, text: str) -> None:  # noqa: ANN401  # a dict or a list
    *parents, last = names
    is_open = False
    for name in parents:
        is_open = is_open or name in _OPEN_OBJECTS
        key = _key(target, name, text, accepts_new=is_open)
        target = target.setdefault(key, {}) if isinstance(target, dict) else target[key]
    target[_key(target, last, text, accepts_new=is_open)] = value


def _key(target: object, name: str, text: str, *, accepts_new: bool) -> Any:  # noqa: ANN401  # as above
    """Return the key or position of ``name`` in what the path has reached."""
    known: dict[str, str | int] = {}
    if isinstance(target, dict):
        known = dict(zip(target, target, strict=True))
        if accepts_new:
            known[name] = name
    elif isinstance(target, list):
        known = {str(position): position for position in range(len(target))}
    if name not in known:
        there_are = f"there are {', '.join(sorted(known))}" if known else "nothing is below it"
        raise OverrideError(f"{text!r}: there is no {name!r}; {there_are}")
    return known[name]


class EventSubject(Struct, frozen=True):
    """What events are about: a tenant, its customer, and its monthly price, in euro cents."""

    tenant: str
    customer: str
    price: str
    amount: int = AMOUNT

    @property
    def metadata(self) -> dict[str, str]:
        return {ORG_ID: self.tenant}

    def simulator(self, start: int, *, prices: Mapping[str, int] | None = None) -> Simulator:
        """Return a provider with this customer, at this second, with new ids: a ledger may have
        those of other runs.
        """
        simulator = Simulator(
            prices=prices or {self.price: self.amount},
            seed=secrets.randbits(64),
            start=from_epoch(start),
            url=_HOSTED_PAGES,
        )
        simulator.customer(
            self.customer,
            email=f"billing@{self.tenant.lower()}.example",
            name=self.tenant,
        )
        return simulator


def subscribe(
    simulator: Simulator,
    subject: EventSubject,
    price: str | None = None,
    *,
    trial_days: int = 0,
) -> Subscription:
    """Complete a checkout of the subject's customer, by default at the subject's price, and return
    the subscription.
    """
    session = simulator.checkout(
        price or subject.price,
        metadata=subject.metadata,
        customer=subject.customer,
        trial_days=trial_days,
    )
    return simulator.subscriptions[simulator.complete(session).subscription or ""]


def interval_of(price_id: str) -> str:
    """Return the interval of a price of the demo: a year if its id says so."""
    return "year" if "year" in price_id else "month"


def plan_prices(catalog: Catalog) -> dict[str, int]:
    """Return an amount for each price of the catalog's plans, in cents: the later the plan, the
    more.
    """
    plans = enumerate(catalog.plans)
    return {price: number * AMOUNT for number, plan in plans for price in plan.stripe_price_ids}


def catalog_prices(catalog: Catalog) -> dict[str, int]:
    """Return an amount for each price of the catalog's plans and add-ons, in cents."""
    addons = {price: _ADDON_AMOUNT for addon in catalog.addons for price in addon.stripe_price_ids}
    return plan_prices(catalog) | addons


def customer_of(tenant_id: str) -> str:
    """Return the customer id of a tenant that has none yet: always the same one, so that events
    match.
    """
    return Ids(_seed(tenant_id)).new("cus")


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


class SampleObjects(NamedTuple):
    """What a completed checkout creates: a paid, active subscription."""

    customer: Customer
    subscription: Subscription
    invoice: Invoice
    session: CheckoutSession


def sample_objects(subject: EventSubject, created: int, subscription_id: str) -> SampleObjects:
    """Return the objects of a checkout at this second; the invoice is that of a renewal."""
    simulator = subject.simulator(created)
    subscription = replace(subscribe(simulator, subject), id=subscription_id)
    [invoice], [session] = simulator.invoices.values(), simulator.checkout_sessions.values()
    renewal = {"subscription": subscription_id, "billing_reason": "subscription_cycle"}
    return SampleObjects(
        simulator.customers[subject.customer],
        subscription,
        replace(invoice, **renewal),
        replace(session, subscription=subscription_id),
    )


def _event_fields(event_type: str, created: int) -> dict[str, Any]:
    """Return the fields of an event's object in which it differs from `SampleObjects`."""
    unpaid = {"amount_paid": 0, "paid_at": None}
    in_three_days = created + 3 * DAY
    trial = {"trial_start": created - 11 * DAY, "trial_end": in_three_days}
    fields: dict[str, dict[str, Any]] = {
        ev.SUBSCRIPTION_DELETED: {
            "status": "canceled",
            "canceled_at": created,
            "ended_at": created,
        },
        ev.SUBSCRIPTION_PAUSED: {"status": "paused", "period_end": created},
        ev.TRIAL_WILL_END: {"status": "trialing", "period_end": in_three_days, **trial},
        ev.PAYMENT_FAILED: {"status": "open", **unpaid},
        ev.INVOICE_VOIDED: {"status": "void", "voided_at": created, **unpaid},
        ev.INVOICE_UNCOLLECTIBLE: {
            "status": "uncollectible",
            "marked_uncollectible_at": created,
            **unpaid,
        },
        ev.ASYNC_PAYMENT_FAILED: {"payment_status": "unpaid"},
    }
    return fields.get(event_type, {})


def sample_event(
    event_type: str, subject: EventSubject, *, created: int, status: str = "active"
) -> Json:
    """Return an event of one of the handled types, ``created`` at this second.

    ``status`` is the subscription's in ``customer.subscription.updated``. A tenant always has the
    same subscription; events, invoices and checkout sessions are new each time.
    """
    objects = sample_objects(subject, created, Ids(_seed(subject.tenant)).new("sub"))
    fields = {"status": status} if event_type == ev.SUBSCRIPTION_UPDATED else {}
    return render_event(event_about(objects, event_type, created, **fields), NEW_VERSION)


def event_about(
    objects: SampleObjects, event_type: str, created: int, **fields: object
) -> ProviderEvent:
    """Return a new event about one of the objects, with the fields of an event of this type, and
    with these.
    """
    fields = {**_event_fields(event_type, created), **fields}
    return ProviderEvent(
        id=Ids(secrets.randbits(64)).new("evt"),
        type=event_type,
        created=created,
        object=replace(_object_of(event_type, objects), **fields),
        pending_webhooks=1,
    )


def _object_of(event_type: str, objects: SampleObjects) -> BillingObject:
    if event_type in ev.CHECKOUT_TYPES:
        return objects.session
    if event_type in ev.INVOICE_TYPES:
        return objects.invoice
    return objects.customer if event_type == ev.CUSTOMER_DELETED else objects.subscription
