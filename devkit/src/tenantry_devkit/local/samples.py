"""Sample events, and overrides of their fields."""

import difflib
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
from tenantry.integrations.stripe.api import ORG_ID
from tenantry_devkit.simulator import NEW_VERSION, OLD_VERSION, Simulator, render_event
from tenantry_devkit.simulator.objects import BillingObject, CheckoutSession, Ids, Invoice, Subscription

API_VERSIONS: Final = {"new": NEW_VERSION, "old": OLD_VERSION}
"""An API version of each shape."""
_OPEN_OBJECTS: Final = frozenset({"metadata", "previous_attributes"})
"""Objects that accept new names."""
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
        root: Any = event
        if names[0] == "event" and len(names) > 1:
            names = names[1:]
        elif isinstance(event["data"], dict) and "object" in event["data"]:
            root = event["data"]["object"]
        else:
            raise OverrideError(f"{text!r}: the event has no object any more")
        decoded: object = value
        try:
            decoded = msgspec.json.decode(value)
        except UnicodeEncodeError:
            raise OverrideError(f"{text!r}: is not UTF-8") from None
        except (msgspec.DecodeError, RecursionError):
            pass  # a string without quotes
        _set(root, names, decoded, text)


def _set(target: object, names: Sequence[str], value: object, text: str) -> None:
    *parents, last = names
    done, is_open = "", False
    for name in parents:
        is_open = is_open or name in _OPEN_OBJECTS
        if is_open and isinstance(target, dict):
            target.setdefault(name, {})
        container, key = _slot(target, name, done, text)
        target, done = container[key], f"{done}.{name}" if done else name
    container, key = _slot(target, last, done, text, accepts_new=is_open)
    container[key] = value


def _slot(target: object, name: str, done: str, text: str, *, accepts_new: bool = False) -> tuple[Any, str | int]:
    """Return the container that the path has reached, and the key or position of ``name`` in it."""
    if isinstance(target, list):
        if name.isascii() and name.isdigit() and int(name) < len(target):
            return target, int(name)
        raise OverrideError(f"{text!r}: {done} is a list of {len(target)}, and has no {name!r}")
    if not isinstance(target, dict):
        kinds = {type(None): "null", bool: "true or false", str: "a string"}
        raise OverrideError(f"{text!r}: {done} is {kinds.get(type(target), 'a number')}: nothing is below it")
    if name in target or accepts_new:
        return target, name
    close = difflib.get_close_matches(name, list(target), n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(target))}"
    raise OverrideError(f"{text!r}: there is no {name!r}{f' in {done}' if done else ''}; {hint}")


class EventSubject(Struct, frozen=True):
    """What events are about: a tenant, its customer, and its monthly price, in euro cents."""

    tenant: str
    customer: str
    price: str
    amount: int = 2900

    @property
    def metadata(self) -> dict[str, str]:
        return {ORG_ID: self.tenant}

    def simulator(
        self,
        start: int,
        *,
        prices: Mapping[str, int] | None = None,
        fresh_ids: bool = False,
        api_version: str = NEW_VERSION,
        client: httpx2.AsyncClient | None = None,
    ) -> Simulator:
        """Return a provider with this customer, at this second. Ids depend on the tenant unless they are fresh."""
        simulator = Simulator(
            prices=prices or {self.price: self.amount},
            seed=secrets.randbits(64) if fresh_ids else _seed(self.tenant),
            start=from_epoch(start),
            api_version=api_version,
            client=client,
            url=_HOSTED_PAGES,
        )
        simulator.customer(self.customer, email=f"billing@{self.tenant.lower()}.example", name=self.tenant)
        return simulator


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
    simulator = subject.simulator(created - int(_LONGEST_MONTH.total_seconds()) if is_invoice else created)
    if event_type == ev.CHECKOUT_COMPLETED:
        session = simulator.checkout(subject.price, metadata=subject.metadata, customer=subject.customer)
        simulator.complete(session)
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
    thing = event.object
    if isinstance(thing, Subscription) and event_type == ev.SUBSCRIPTION_UPDATED:
        thing = replace(thing, status=status)
    event = replace(event, id=_fresh("evt"), created=created, object=_with_fresh_id(thing), pending_webhooks=1)
    return render_event(event, API_VERSIONS[shape])


def _with_fresh_id(thing: BillingObject) -> BillingObject:
    """Give an invoice or session a new id: a second payment is not one of the same invoice."""
    if isinstance(thing, CheckoutSession):
        return replace(thing, id=_fresh("cs_test"))
    if not isinstance(thing, Invoice):
        return thing
    fresh = _fresh("in")
    url = thing.hosted_invoice_url and thing.hosted_invoice_url.replace(thing.id, fresh)
    return replace(thing, id=fresh, hosted_invoice_url=url)


def _fresh(prefix: str) -> str:
    return Ids(secrets.randbits(64)).new(prefix)
