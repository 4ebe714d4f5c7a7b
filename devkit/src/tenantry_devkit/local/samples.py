"""Sample events, and overriding their fields."""

import difflib
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import httpx2
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tenantry.common.clock import from_epoch
from tenantry.domain.billing import events as ev
from tenantry.integrations.stripe.api import ORG_ID
from tenantry_devkit.simulator import NEW_VERSION, OLD_VERSION, Event, Simulator, render_event
from tenantry_devkit.simulator.objects import CheckoutSession, Ids, Invoice, Subscription, Thing

_EVENT: Final = "event"
_FREE: Final = frozenset({"metadata", "previous_attributes"})
"""What takes any name: the account's owner decides what is in them."""

Json = dict[str, Any]


class OverrideError(ValueError):
    """A path that does not lead to a value of the event, or a text that is no override."""


def override(event: Json, texts: Sequence[str]) -> None:
    """Set values in an event, in place. Raises `OverrideError`, with the text that is at fault in its message.

    A path leads into the event's object by names and, in lists, numbers, with dots between them; one that begins with
    ``event.`` leads into the event itself. It must lead to something that is there; only in ``metadata`` (and in
    ``event.data.previous_attributes``) names may be new. A value is JSON, or else a text.
    """
    for text in texts:
        path, equals, value = text.partition("=")
        names = path.split(".")
        if not equals or not all(names):
            raise OverrideError(f"{text!r}: must be path=value, such as cancel_at_period_end=true")
        root: Any = event
        if names[0] == _EVENT and len(names) > 1:
            names = names[1:]
        elif isinstance(event["data"], dict) and "object" in event["data"]:
            root = event["data"]["object"]
        else:
            raise OverrideError(f"{text!r}: the event has no object any more")
        _set(root, names, _value(value), text)


def _value(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    except UnicodeEncodeError:
        raise OverrideError(f"{text!r}: is not UTF-8") from None


def _set(place: object, names: Sequence[str], value: object, text: str) -> None:
    *way, last = names
    done = ""
    is_free = False
    for name in way:
        is_free = is_free or name in _FREE
        if is_free and isinstance(place, dict):
            place.setdefault(name, {})
        container, key = _slot(place, name, done, text)
        place = container[key]
        done = f"{done}.{name}" if done else name
    container, key = _slot(place, last, done, text, takes_new=is_free)
    container[key] = value


def _slot(
    place: object, name: str, done: str, text: str, *, takes_new: bool = False
) -> tuple[Any, str | int]:  # fmt: skip
    """The object or list that the path has led to so far, and its key or position that is meant by ``name``."""
    if isinstance(place, list):
        if name.isascii() and name.isdigit() and int(name) < len(place):
            return place, int(name)
        raise OverrideError(f"{text!r}: {done} is a list of {len(place)}, and has no {name!r}")
    if not isinstance(place, dict):
        raise OverrideError(f"{text!r}: {done} is {_kind(place)}: nothing is below it")
    if name in place or takes_new:
        return place, name
    close = difflib.get_close_matches(name, list(place), n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(place))}"
    raise OverrideError(f"{text!r}: there is no {name!r}{f' in {done}' if done else ''}; {hint}")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "a text"
        case _:
            return "a number"


API_VERSIONS: Final = {"new": NEW_VERSION, "old": OLD_VERSION}
"""A version of each shape."""
_HOSTED: Final = "https://pay.example"
"""Where hosted pages would be; nobody serves those of made-up objects."""
_LONGEST_MONTH: Final = timedelta(days=31)
_TRIAL_DAYS: Final = 14
_TRIALING: Final = "trialing"
_AMOUNT: Final = 2900


class Subject(Struct, frozen=True):
    """Whom made-up events are about: a tenant, its customer, and the price that it pays, monthly, in euro cents."""

    tenant: str
    customer: str
    price: str
    amount: int = _AMOUNT

    @property
    def metadata(self) -> dict[str, str]:
        """What the tenant is found by."""
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
        """A provider that has this customer, at this second, and these ``prices``, or the subject's own.

        Ids are the same for the same tenant, unless they are to be fresh.
        """
        simulator = Simulator(
            prices=prices or {self.price: self.amount},
            seed=secrets.randbits(64) if fresh_ids else _number(self.tenant),
            start=from_epoch(start),
            api_version=api_version,
            client=client,
            url=_HOSTED,
        )
        simulator.customer(self.customer, email=f"billing@{self.tenant.lower()}.example", name=self.tenant)
        return simulator


def customer_of(tenant_id: str) -> str:
    """The customer of a tenant that has none yet: always the same one, so that events find each other."""
    return Ids(_number(tenant_id)).new("cus")


async def sample_event(
    event_type: str, subject: Subject, *, created: int, shape: str = "new", status: str = "active"
) -> Json:
    """An event of one of the five types, ``created`` at this second, in the ``new`` or the ``old`` shape.

    ``status`` is that of the subscription in ``customer.subscription.updated``. The subscription of a tenant is always
    the same one; events, invoices and checkout sessions are new each time.
    """
    event = await _MAKERS[event_type](subject, created, status)
    event = replace(event, id=_fresh("evt"), created=created, object=_unheard_of(event.object), pending_webhooks=1)
    return render_event(event, API_VERSIONS[shape])


async def _updated(subject: Subject, created: int, status: str) -> Event:
    simulator = subject.simulator(created)
    trial_days = _TRIAL_DAYS if status == _TRIALING else 0
    simulator.subscribe(subject.customer, subject.price, metadata=subject.metadata, trial_days=trial_days)
    event = simulator.events(ev.SUBSCRIPTION_UPDATED)[-1]
    assert isinstance(event.object, Subscription)  # noqa: S101  # as the type of the event says
    return replace(event, object=replace(event.object, status=status))


async def _deleted(subject: Subject, created: int, _status: str) -> Event:
    simulator = subject.simulator(created)
    simulator.cancel(simulator.subscribe(subject.customer, subject.price, metadata=subject.metadata))
    return simulator.events(ev.SUBSCRIPTION_DELETED)[0]


async def _completed(subject: Subject, created: int, _status: str) -> Event:
    simulator = subject.simulator(created)
    session = simulator.checkout(subject.price, metadata=subject.metadata, customer=subject.customer)
    simulator.complete(session)
    return simulator.events(ev.CHECKOUT_COMPLETED)[0]


async def _succeeded(subject: Subject, created: int, _status: str) -> Event:
    simulator = await _renewed(subject, created, declines=False)
    return simulator.events(ev.PAYMENT_SUCCEEDED)[-1]


async def _failed(subject: Subject, created: int, _status: str) -> Event:
    simulator = await _renewed(subject, created, declines=True)
    return simulator.events(ev.PAYMENT_FAILED)[0]


async def _renewed(subject: Subject, created: int, *, declines: bool) -> Simulator:
    """A month after a subscription: its renewal has been tried."""
    simulator = subject.simulator(created - int(_LONGEST_MONTH.total_seconds()))
    simulator.subscribe(subject.customer, subject.price, metadata=subject.metadata)
    if declines:
        simulator.card_declines(subject.customer)
    await simulator.advance(_LONGEST_MONTH)
    return simulator


_MAKERS: Final[Mapping[str, Callable[[Subject, int, str], Awaitable[Event]]]] = {
    ev.SUBSCRIPTION_UPDATED: _updated,
    ev.SUBSCRIPTION_DELETED: _deleted,
    ev.CHECKOUT_COMPLETED: _completed,
    ev.PAYMENT_SUCCEEDED: _succeeded,
    ev.PAYMENT_FAILED: _failed,
}


def _unheard_of(thing: Thing) -> Thing:
    """Invoices and sessions with ids of their own: a second payment is not one of the same invoice."""
    match thing:
        case Invoice():
            fresh = _fresh("in")
            url = thing.hosted_invoice_url and thing.hosted_invoice_url.replace(thing.id, fresh)
            return replace(thing, id=fresh, hosted_invoice_url=url)
        case CheckoutSession():
            return replace(thing, id=_fresh("cs_test"))
        case _:
            return thing


def _fresh(prefix: str) -> str:
    return Ids(secrets.randbits(64)).new(prefix)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
