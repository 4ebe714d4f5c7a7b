"""Everything that a simulated account consists of, as one value that can be written to a file and read back.

Not part of it: misbehaviour that was asked for, idempotency keys, and the seed. A restored account makes new ids.
"""

import msgspec

from tenantry.common.encoding import NOT_JSON
from tenantry_devkit.simulator.clock import Task
from tenantry_devkit.simulator.delivery import Delivery
from tenantry_devkit.simulator.engine import Engine
from tenantry_devkit.simulator.objects import (
    CheckoutSession,
    Customer,
    Event,
    Invoice,
    PortalSession,
    Price,
    Subscription,
    WebhookEndpoint,
)


class AccountState(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated account at the simulated moment ``now``, in seconds since the Unix epoch."""

    now: int
    url: str
    tasks: list[Task]
    prices: list[Price]
    customers: list[Customer]
    subscriptions: list[Subscription]
    invoices: list[Invoice]
    invoice_numbers: dict[str, int]
    checkout_sessions: list[CheckoutSession]
    portal_sessions: list[PortalSession]
    endpoints: list[WebhookEndpoint]
    events: list[Event]
    deliveries: list[Delivery]


def state_of(engine: Engine) -> AccountState:
    """The account as it is now."""
    account = engine.account
    return AccountState(
        now=account.now,
        url=account.url,
        tasks=account.agenda.tasks(),
        prices=list(account.prices.values()),
        customers=list(account.customers.values()),
        subscriptions=list(account.subscriptions.values()),
        invoices=list(account.invoices.values()),
        invoice_numbers=engine.subscriptions.invoicing.numbers,
        checkout_sessions=list(account.checkout_sessions.values()),
        portal_sessions=list(account.portal_sessions.values()),
        endpoints=list(account.endpoints.values()),
        events=list(account.events.values()),
        deliveries=engine.courier.log,
    )


def moved_to(state: AccountState, url: str) -> AccountState:
    """The same account served at another address: the addresses of its hosted pages begin with ``url``."""
    before, after = (msgspec.json.encode(f"{address}/")[:-1] for address in (state.url, url))
    return decoded(encoded(state).replace(before, after))


def encoded(state: AccountState) -> bytes:
    """The state as JSON."""
    return msgspec.json.encode(state)


def decoded(content: bytes) -> AccountState:
    """The state that `encoded` gave; raises `ValueError` for anything else."""
    try:
        return msgspec.json.decode(content, type=AccountState)
    except NOT_JSON as error:
        raise ValueError(f"this is not the state of a simulated account: {error}") from error


def restore(engine: Engine, state: AccountState) -> None:
    """Fill an empty account. Its clock is not moved; what is due by its present moment happens at the next advance."""
    account = engine.account
    account.agenda.restore(state.tasks)
    account.prices.update((price.id, price) for price in state.prices)
    account.customers.update((customer.id, customer) for customer in state.customers)
    account.subscriptions.update((subscription.id, subscription) for subscription in state.subscriptions)
    account.invoices.update((invoice.id, invoice) for invoice in state.invoices)
    account.checkout_sessions.update((session.id, session) for session in state.checkout_sessions)
    account.portal_sessions.update((session.id, session) for session in state.portal_sessions)
    account.endpoints.update((endpoint.id, endpoint) for endpoint in state.endpoints)
    account.events.update((event.id, event) for event in state.events)
    engine.subscriptions.invoicing.numbers.update(state.invoice_numbers)
    engine.courier.restore(state.deliveries)
