"""The payment provider, the identity provider and the mails of a test."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx2

from tenantry.common.clock import system_clock
from tenantry.domain.plans import Catalog
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry_devkit.identity_provider import DEFAULT_SCOPE, DemoUser, SigningKey, mint_access_token
from tenantry_devkit.inbox import Inbox, Mail
from tenantry_devkit.simulator import CheckoutSession, Customer, Invoice, Price, Simulator, Subscription
from tenantry_devkit.simulator.http import Receive, Scope, Send
from tenantry_devkit.testing.database import Notice, Rows
from tenantry_devkit.testing.errors import Credential, MailError

LIFETIME = timedelta(hours=1)


class Issuer:
    """Makes access tokens; ``users``, which the provider serves, learns of everyone who gets one."""

    def __init__(self, config: OidcConfig, signing_key: SigningKey, users: list[DemoUser]) -> None:
        self._config = config
        self._signing_key = signing_key
        self._users = users

    def token(
        self,
        user: str,
        org_id: str | None,
        *,
        role: str | None,
        scope: str | None,
        expires_in: timedelta | float,
        email: str | None,
        claims: Mapping[str, Any],
    ) -> Credential:
        """An access token; one that ends in the past was issued an hour before."""
        config = self._config
        known = DemoUser(user, user, email, org_id, role)
        self._users[:] = [other for other in self._users if other.sub != user] + [known]
        organization = {config.org_claim: org_id, config.role_claim: role}
        lifetime = expires_in if isinstance(expires_in, timedelta) else timedelta(seconds=expires_in)
        late = timedelta(0) if lifetime > timedelta(0) else LIFETIME - lifetime
        minted = mint_access_token(
            self._signing_key,
            issuer=config.issuer,
            audience=config.audience,
            client_id=config.client_id or "",
            user=DemoUser(user, user, email),
            lifetime=lifetime if lifetime > timedelta(0) else LIFETIME,
            scope=DEFAULT_SCOPE if scope is None else scope,
            clock=lambda: system_clock() - late,
            more_claims={**{name: text for name, text in organization.items() if text is not None}, **claims},
        )
        return Credential(minted)


class Mails:
    """Finds the mails of tenants: which ones there must be says the database, and the inbox what was in them.

    It is the session's: of each mail it remembers what it is for, so that none is read by every test that follows.
    """

    def __init__(self, inbox: Inbox, rows: Rows) -> None:
        self._inbox = inbox
        self._rows = rows
        self._delivers: dict[str, str] = {}

    def of(self, tenants: Sequence[str], *, within: float) -> Sequence[Mail]:
        """Every mail that these tenants' owners were to get so far, oldest first, once all of them have come.

        A mail is asked for in the transaction that handles its event, so that none can be missed that is still on its
        way, and no waiting is needed to know that there is none. Raises `MailError` after ``within`` seconds.
        """
        notices = self._rows.notices(tenants)
        wanted = [str(notice.id) for notice in notices]
        if not self._inbox.wait_until(lambda: set(wanted) <= self._arrived().keys(), within):
            raise MailError(self._missing(self._rows.notices(tenants), within))
        arrived = self._arrived()
        found = (self._inbox.mail(mail_id) for notice in wanted for mail_id in arrived[notice])
        return [mail for mail in found if mail is not None]

    def _arrived(self) -> dict[str, list[str]]:
        """The ids of all mails by the notification that they deliver; a mail that was sent twice is there twice."""
        arrived: dict[str, list[str]] = {}
        for mail_id in reversed(self._inbox.ids()):
            if mail_id not in self._delivers and (mail := self._inbox.mail(mail_id)) is not None:
                self._delivers[mail_id] = _notification_of(mail)
            arrived.setdefault(self._delivers.get(mail_id, ""), []).append(mail_id)
        return arrived

    def _missing(self, notices: Sequence[Notice], within: float) -> str:
        arrived = self._arrived()
        missing = [notice for notice in notices if str(notice.id) not in arrived]
        states = "; ".join(
            f"{notice.id} is {notice.status}{f' ({notice.error})' if notice.error else ''}" for notice in missing
        )
        return f"{len(missing)} of {len(notices)} mails have not arrived within {within:g} s: {states}"


def _notification_of(mail: Mail) -> str:
    """The id that its ``Message-ID`` begins with."""
    headers = {name.lower(): text for name, text in mail.headers}
    return headers.get("message-id", "").strip("<>").partition("@")[0]


P = ParamSpec("P")
R = TypeVar("R")

_DELIVERY_SECONDS = 20.0
_PRICE = 2900


class ProviderPort:
    """Where the service finds the payment provider: the simulator attached last; it has a thread's event loop."""

    def __init__(self) -> None:
        self.url = ""
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._client: httpx2.AsyncClient | None = None
        self._attached: list[Simulator] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        simulator = next(reversed(self._attached), None) or Simulator(url=self.url)
        await simulator(scope, receive, send)

    async def run(self) -> None:
        """Hold what simulators share, until cancelled."""
        async with new_http_client(_DELIVERY_SECONDS) as client:
            self._client = client
            self._loop.set_result(asyncio.get_running_loop())
            await asyncio.Event().wait()

    def attach(self, make: Callable[[httpx2.AsyncClient], Simulator]) -> Simulator:
        """Make a simulator, and answer with it from now on, until another is attached or this one is detached."""

        async def attaching() -> Simulator:
            assert self._client is not None  # noqa: S101
            simulator = make(self._client)
            self._attached.append(simulator)
            return simulator

        return self.call(attaching())

    def detach(self, simulator: Simulator) -> None:
        """Answer with the one attached before it, if it is the last."""
        if simulator in self._attached:
            self._attached.remove(simulator)

    def call(self, acting: Coroutine[Any, Any, R]) -> R:
        """Do something in the event loop, and wait for it."""
        # with no context of the caller's, who may be in an event loop of another kind
        scheduled = Context().run(asyncio.run_coroutine_threadsafe, acting, self._loop.result())
        return scheduled.result()


def _at_once(method: Callable[Concatenate[Simulator, P], R]) -> "Callable[Concatenate[Provider, P], R]":
    """A method of the simulator's that returns at once."""

    @functools.wraps(method)
    def call(self: "Provider", /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def acting() -> R:
            return method(self._simulator, *args, **kwargs)

        return self._port.call(acting())

    return call


def _awaited(
    method: Callable[Concatenate[Simulator, P], Coroutine[Any, Any, R]],
) -> "Callable[Concatenate[Provider, P], R]":
    """A method of the simulator's that takes until it is done."""

    @functools.wraps(method)
    def call(self: "Provider", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._port.call(method(self._simulator, *args, **kwargs))

    return call


class Provider:
    """The simulated payment provider of a test, attached to the service.

    Its methods are those of `tenantry_devkit.simulator.Simulator`, but none needs ``await``. Its clock begins at the
    present and stands still until `advance` moves it.
    """

    def __init__(
        self, port: ProviderPort, catalog: Catalog, *, secret_key: str, seed: int, endpoint: str, endpoint_secret: str,
        enabled_events: frozenset[str],
    ) -> None:  # fmt: skip
        def make(client: httpx2.AsyncClient) -> Simulator:
            simulator = Simulator(secret_key=secret_key, prices={}, seed=seed, client=client, url=port.url)
            for number, plan in enumerate(catalog.plans):
                for price_id in plan.stripe_price_ids:
                    simulator.price(price_id, _PRICE * number)
            simulator.add_endpoint(endpoint, endpoint_secret, enabled_events=enabled_events)
            return simulator

        self._port = port
        self._simulator = port.attach(make)

    def detach(self) -> None:
        """Leave its place to the one that was attached before."""
        self._port.detach(self._simulator)

    @property
    def url(self) -> str:
        """Where its API and its pages are."""
        return self._port.url

    advance = _awaited(Simulator.advance)
    deliver = _awaited(Simulator.deliver)
    resend = _awaited(Simulator.resend)

    add_endpoint = _at_once(Simulator.add_endpoint)
    behave = _at_once(Simulator.behave)
    cancel = _at_once(Simulator.cancel)
    card_declines = _at_once(Simulator.card_declines)
    card_works = _at_once(Simulator.card_works)
    change_plan = _at_once(Simulator.change_plan)
    checkout = _at_once(Simulator.checkout)
    complete = _at_once(Simulator.complete)
    customer = _at_once(Simulator.customer)
    delete_customer = _at_once(Simulator.delete_customer)
    deliveries = _at_once(Simulator.deliveries)
    end_trial = _at_once(Simulator.end_trial)
    events = _at_once(Simulator.events)
    expire = _at_once(Simulator.expire)
    misbehave = _at_once(Simulator.misbehave)
    pay = _at_once(Simulator.pay)
    portal = _at_once(Simulator.portal)
    price = _at_once(Simulator.price)
    resume = _at_once(Simulator.resume)
    set_metadata = _at_once(Simulator.set_metadata)
    subscribe = _at_once(Simulator.subscribe)

    @property
    def now(self) -> datetime:
        """The simulated moment."""
        return self._simulator.now

    @property
    def prices(self) -> Mapping[str, Price]:
        """All prices by id, oldest first."""
        return dict(self._simulator.prices)

    @property
    def customers(self) -> Mapping[str, Customer]:
        """All customers by id, oldest first."""
        return dict(self._simulator.customers)

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """All subscriptions by id, oldest first, ended ones too."""
        return dict(self._simulator.subscriptions)

    @property
    def invoices(self) -> Mapping[str, Invoice]:
        """All invoices by id, oldest first."""
        return dict(self._simulator.invoices)

    @property
    def checkout_sessions(self) -> Mapping[str, CheckoutSession]:
        """All checkout sessions by id, oldest first."""
        return dict(self._simulator.checkout_sessions)
