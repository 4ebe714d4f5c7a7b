"""Sample events, and overrides of their fields."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx2
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tenantry.common.clock import from_epoch
from tenantry.domain.billing import events as ev
from tenantry.domain.plans import Catalog
from tenantry.integrations.stripe.client import ORG_ID
from tenantry_devkit.simulator import (
    NEW_VERSION,
    OLD_VERSION,
    Card,
    FirstPayment,
    Simulator,
    render_event,
)
from tenantry_devkit.simulator.invoices import DAY
from tenantry_devkit.simulator.objects import (
    BillingMode,
    CheckoutSession,
    Ids,
    Invoice,
    Subscription,
)

TENANT: Final = "demo"
"""The id of the demo's tenant, and of the one that a dry run is about."""
API_VERSIONS: Final = {"new": NEW_VERSION, "old": OLD_VERSION}
"""An API version of each shape."""
_OPEN_OBJECTS: Final = frozenset({"metadata", "previous_attributes"})
"""Objects that accept new names."""
AMOUNT: Final = 2900
_HOSTED_PAGES: Final = "https://pay.example"
_ADDON_AMOUNT: Final = 500
_TRIAL_DAYS: Final = 14
_TRIAL_TYPES: Final = frozenset(
    {ev.SUBSCRIPTION_PAUSED, ev.SUBSCRIPTION_RESUMED, ev.TRIAL_WILL_END}
)
_UNPAID_TYPES: Final = frozenset({ev.PAYMENT_FAILED, ev.INVOICE_VOIDED, ev.INVOICE_UNCOLLECTIBLE})
_DAYS_BEFORE: Final = {
    **dict.fromkeys(_TRIAL_TYPES, _TRIAL_DAYS),
    ev.TRIAL_WILL_END: _TRIAL_DAYS - 3,
    **dict.fromkeys(ev.INVOICE_TYPES, 31),  # the longest month: to the renewal
}
"""Days from the beginning of a subscription to an event of it."""
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

    def simulator(
        self,
        start: int,
        *,
        prices: Mapping[str, int] | None = None,
        api_version: str = NEW_VERSION,
        client: httpx2.AsyncClient | None = None,
    ) -> Simulator:
        """Return a provider with this customer, at this second, with new ids: a ledger may have
        those of other runs.
        """
        simulator = Simulator(
            prices=prices or {self.price: self.amount},
            seed=secrets.randbits(64),
            start=from_epoch(start),
            api_version=api_version,
            client=client,
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
    billing_mode: BillingMode | None = None,
) -> Subscription:
    """Complete a checkout of the subject's customer, by default at the subject's price, and return
    the subscription.
    """
    session = simulator.checkout(
        price or subject.price,
        metadata=subject.metadata,
        customer=subject.customer,
        trial_days=trial_days,
        billing_mode=billing_mode,
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


async def sample_event(
    event_type: str,
    subject: EventSubject,
    *,
    created: int,
    shape: str = "new",
    status: str = "active",
    subscription_id: str | None = None,
) -> Json:
    """Return an event of one of the handled types, ``created`` at this second, in the ``new`` or
    the ``old`` shape.

    ``status`` is the subscription's in ``customer.subscription.updated``. Without
    ``subscription_id`` a tenant always has the same subscription; events, invoices and checkout
    sessions are new each time.
    """
    simulator = subject.simulator(created - _DAYS_BEFORE.get(event_type, 0) * DAY)
    is_trial = event_type == ev.SUBSCRIPTION_UPDATED and status == "trialing"
    if event_type in ev.CHECKOUT_TYPES:
        _check_out(event_type, simulator, subject)
    else:
        await _bill(event_type, simulator, subject, is_trial=is_trial)
    event = simulator.events(event_type)[0 if event_type == ev.PAYMENT_FAILED else -1]
    thing, own_id = event.object, subscription_id or Ids(_seed(subject.tenant)).new("sub")
    if isinstance(thing, Subscription):
        is_update = event_type == ev.SUBSCRIPTION_UPDATED
        thing = replace(thing, id=own_id, status=status if is_update else thing.status)
    elif isinstance(thing, Invoice | CheckoutSession):
        thing = replace(thing, subscription=own_id)
    return render_event(
        replace(event, created=created, object=thing, pending_webhooks=1), API_VERSIONS[shape]
    )


def _check_out(event_type: str, simulator: Simulator, subject: EventSubject) -> None:
    session = simulator.checkout(
        subject.price,
        metadata=subject.metadata,
        customer=subject.customer,
    )
    simulator.complete(session, async_payment=event_type != ev.CHECKOUT_COMPLETED)
    if event_type == ev.ASYNC_PAYMENT_SUCCEEDED:
        simulator.async_payment_succeeds(session)
    elif event_type == ev.ASYNC_PAYMENT_FAILED:
        simulator.async_payment_fails(session)


async def _bill(
    event_type: str, simulator: Simulator, subject: EventSubject, *, is_trial: bool
) -> None:
    """Let an event about a subscription or an invoice happen, the last one of its type
    `_DAYS_BEFORE` after the simulator's start.
    """
    customer = subject.customer
    if event_type in _TRIAL_TYPES:
        simulator.account.set_card(customer, Card.MISSING)
        is_trial = True
    at_once = event_type == ev.SUBSCRIPTION_CREATED
    subscription = simulator.subscribe(
        customer,
        subject.price,
        metadata=subject.metadata,
        trial_days=_TRIAL_DAYS if is_trial else 0,
        missing_payment_method="pause",
        first_payment=FirstPayment.ALLOW_INCOMPLETE if at_once else FirstPayment.CHECKOUT,
    )
    if event_type in _UNPAID_TYPES:
        simulator.card_declines(customer)
    await simulator.advance(days=_DAYS_BEFORE.get(event_type, 0))
    _cause(event_type, simulator, subscription)


def _cause(event_type: str, simulator: Simulator, subscription: Subscription) -> None:
    """Do what causes an event that time alone does not bring."""
    invoice = list(simulator.invoices)[-1]
    match event_type:
        case ev.SUBSCRIPTION_DELETED:
            simulator.cancel(subscription)
        case ev.CUSTOMER_DELETED:
            simulator.delete_customer(subscription.customer)
        case ev.SUBSCRIPTION_RESUMED:
            simulator.card_works(subscription.customer)
            simulator.resume_paused(subscription)
        case ev.INVOICE_VOIDED:
            simulator.void_invoice(invoice)
        case ev.INVOICE_UNCOLLECTIBLE:
            simulator.mark_uncollectible(invoice)
