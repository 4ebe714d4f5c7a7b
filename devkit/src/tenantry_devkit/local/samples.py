"""Sample events, and overrides of their fields."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import httpx2
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tenantry.common.clock import from_epoch
from tenantry.domain.billing import events as ev
from tenantry.domain.plans import Catalog
from tenantry.integrations.stripe.client import ORG_ID
from tenantry_devkit.simulator import NEW_VERSION, OLD_VERSION, Simulator, render_event
from tenantry_devkit.simulator.objects import CheckoutSession, Ids, Invoice, Subscription

API_VERSIONS: Final = {"new": NEW_VERSION, "old": OLD_VERSION}
"""An API version of each shape."""
_OPEN_OBJECTS: Final = frozenset({"metadata", "previous_attributes"})
"""Objects that accept new names."""
_AMOUNT: Final = 2900
_HOSTED_PAGES: Final = "https://pay.example"
_LONGEST_MONTH: Final = timedelta(days=31)

Json = dict[str, Any]


class OverrideError(ValueError):
    """An override is malformed, or its path does not exist in the event."""


def override(event: Json, texts: Sequence[str]) -> None:
    """Set values in an event, in place. Raises `OverrideError`, whose message quotes the faulty text.

    A path leads into the event's object, by names and list positions separated by dots; ``event.`` leads into the event
    itself. It must exist; only objects in `_OPEN_OBJECTS` accept new names. A value is JSON, or else a string.
    """
    for text in texts:
        path, equals, value = text.partition("=")
        names = path.split(".")
        if not equals or not all(names):
            raise OverrideError(f"{text!r}: must be path=value, such as cancel_at_period_end=true")
        try:
            decoded = msgspec.json.decode(value)
        except UnicodeEncodeError:
            raise OverrideError(f"{text!r}: is not UTF-8") from None
        except (msgspec.DecodeError, RecursionError):
            decoded = value  # a string without quotes
        names = names[1:] if names[0] == "event" and len(names) > 1 else ["data", "object", *names]
        _set(event, names, decoded, text)


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
        known = {key: key for key in target} | ({name: name} if accepts_new else {})
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
    amount: int = _AMOUNT

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
        """Return a provider with this customer, at this second, with new ids: a ledger may have those of other runs."""
        simulator = Simulator(
            prices=prices or {self.price: self.amount},
            seed=secrets.randbits(64),
            start=from_epoch(start),
            api_version=api_version,
            client=client,
            url=_HOSTED_PAGES,
        )
        simulator.customer(self.customer, email=f"billing@{self.tenant.lower()}.example", name=self.tenant)
        return simulator


def subscribe(
    simulator: Simulator, subject: EventSubject, price: str | None = None, *, trial_days: int = 0
) -> Subscription:
    """Complete a checkout of the subject's customer, by default at the subject's price, and return the subscription."""
    session = simulator.checkout(
        price or subject.price, metadata=subject.metadata, customer=subject.customer, trial_days=trial_days
    )
    return simulator.subscriptions[simulator.complete(session).subscription or ""]


def catalog_prices(catalog: Catalog) -> dict[str, int]:
    """Return an amount for each price of a plan catalog, in cents: the later the plan, the more."""
    plans = enumerate(catalog.plans)
    return {price: number * _AMOUNT for number, plan in plans for price in plan.stripe_price_ids}


def customer_of(tenant_id: str) -> str:
    """Return the customer id of a tenant that has none yet: always the same one, so that events match."""
    return Ids(_seed(tenant_id)).new("cus")


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


async def sample_event(
    event_type: str, subject: EventSubject, *, created: int, shape: str = "new", status: str = "active"
) -> Json:
    """Return an event of one of the five types, ``created`` at this second, in the ``new`` or the ``old`` shape.

    ``status`` is the subscription's in ``customer.subscription.updated``. A tenant always has the same subscription;
    events, invoices and checkout sessions are new each time.
    """
    is_invoice = event_type in ev.INVOICE_TYPES
    start = created - int(_LONGEST_MONTH.total_seconds()) if is_invoice else created
    simulator = subject.simulator(start)
    if event_type == ev.CHECKOUT_COMPLETED:
        subscribe(simulator, subject)
    else:
        trial_days = 14 if event_type == ev.SUBSCRIPTION_UPDATED and status == "trialing" else 0
        subscription = simulator.subscribe(
            subject.customer, subject.price, metadata=subject.metadata, trial_days=trial_days
        )
        if event_type == ev.SUBSCRIPTION_DELETED:
            simulator.cancel(subscription)
    if event_type == ev.PAYMENT_FAILED:
        simulator.card_declines(subject.customer)
    if is_invoice:
        await simulator.advance(_LONGEST_MONTH)  # to the renewal
    event = simulator.events(event_type)[0 if event_type == ev.PAYMENT_FAILED else -1]
    thing, own_id = event.object, Ids(_seed(subject.tenant)).new("sub")
    if isinstance(thing, Subscription):
        thing = replace(thing, id=own_id, **({"status": status} if event_type == ev.SUBSCRIPTION_UPDATED else {}))
    elif isinstance(thing, Invoice | CheckoutSession):
        thing = replace(thing, subscription=own_id)
    return render_event(replace(event, created=created, object=thing, pending_webhooks=1), API_VERSIONS[shape])
