"""Single events of the provider, made up but whole: the simulator's objects in either API shape."""

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import httpx2
from msgspec import Struct
from msgspec.structs import replace

from tenantry.common.clock import from_epoch
from tenantry.domain.billing import events as ev
from tenantry.integrations.stripe.api import ORG_ID
from tenantry_devkit.simulator import NEW_VERSION, OLD_VERSION, Event, Simulator, render_event
from tenantry_devkit.simulator.ids import Ids
from tenantry_devkit.simulator.objects import CheckoutSession, Invoice, Subscription, Thing

API_VERSIONS: Final = {"new": NEW_VERSION, "old": OLD_VERSION}
"""A version of each shape."""
_HOSTED: Final = "https://pay.example"
"""Where hosted pages would be; nobody serves those of made-up objects."""
_LONGEST_MONTH: Final = timedelta(days=31)
_TRIAL_DAYS: Final = 14
_TRIALING: Final = "trialing"
_AMOUNT: Final = 2900

Json = dict[str, Any]


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
