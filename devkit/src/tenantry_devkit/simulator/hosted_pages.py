"""The hosted pages of the simulated provider (checkout, portal, invoice), and its control page."""

import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

import msgspec

from tenantry.common.encoding import NOT_JSON
from tenantry_devkit.simulator.api_requests import ApiError, Parameters, found
from tenantry_devkit.simulator.delivery import Misbehaviour
from tenantry_devkit.simulator.engine import Engine
from tenantry_devkit.simulator.http import Answer, Html, Request, redirect
from tenantry_devkit.simulator.objects import Card, CheckoutSession, Invoice, PortalSession
from tenantry_devkit.simulator.subscriptions import ItemChange

CHECKOUT: Final = "/c/pay/"
PORTAL: Final = "/p/session/"
INVOICE: Final = "/i/"


class HostedPages:
    """Forms that work without script. Who knows the address of a page may use it."""

    def __init__(self, engine: Engine, html: Html) -> None:
        self._engine = engine
        self._account = engine.account
        self._html = html
        self._pages: dict[str, Callable[[str, Parameters | None], Answer]] = {
            CHECKOUT: self._checkout,
            PORTAL: self._portal,
            INVOICE: self._invoice,
        }

    def answer(self, request: Request) -> Answer | None:
        """The answer, if the address is that of a hosted page."""
        for prefix, page in self._pages.items():
            if request.path.startswith(prefix):
                form = Parameters.parse(request.body.decode("utf-8", "replace")) if request.method == "POST" else None
                try:
                    return page(request.path.removeprefix(prefix), form)
                except ApiError as error:
                    return self._html.message("This does not work", str(error), error.status)
        return None

    def _checkout(self, session_id: str, form: Parameters | None) -> Answer:
        session = found(self._account.checkout_sessions, "checkout.session", session_id)
        if form is None:
            return self._checkout_page(session)
        card = Card.DECLINES if form.text("card") == Card.DECLINES else Card.WORKS
        try:
            done = self._engine.checkouts.complete(session_id, card)
        except ApiError as error:
            if error.error.get("code") != "card_declined":
                raise
            return self._checkout_page(session, str(error))
        return redirect(done.success_url or session.url or "/")

    def _checkout_page(self, session: CheckoutSession, problem: str | None = None) -> Answer:
        if session.status != "open":
            return self._html.message("Checkout", f"This session is {session.status}.")
        return self._html.page("checkout.html", leads_to=session.success_url, session=session, problem=problem)

    def _portal(self, session_id: str, form: Parameters | None) -> Answer:
        session = found(self._account.portal_sessions, "portal session", session_id)
        if form is None:
            return self._portal_page(session)
        self._change(session, form)
        return redirect(f"{PORTAL}{session_id}")

    def _portal_page(self, session: PortalSession) -> Answer:
        account = self._account
        own = [each for each in account.subscriptions.values() if each.customer == session.customer]
        return self._html.page(
            "portal.html",
            session=session,
            customer=account.customers[session.customer],
            subscriptions=[each for each in own if not each.has_ended],
            ended=[each for each in own if each.has_ended],
            invoices=[each for each in account.invoices.values() if each.customer == session.customer][::-1],
            prices=list(account.prices.values()),
        )

    def _change(self, session: PortalSession, form: Parameters) -> None:
        """Do what a button of the portal says, to the customer's own things alone."""
        subscriptions, action = self._engine.subscriptions, form.required("action")
        if action == "card":
            card = form.choice("card", tuple(Card)) or Card.WORKS
            self._engine.customers.use_card(session.customer, Card(card))
            return
        subscription = subscriptions.living(form.required("subscription"))
        if subscription.customer != session.customer:
            raise ApiError(404, "There is no such subscription.")
        if action == "change":
            price = found(self._account.prices, "price", form.required("price"), param="price")
            subscriptions.update(subscription.id, items=[ItemChange(subscription.items[0].id, price)])
        elif action == "cancel_at_period_end":
            subscriptions.update(subscription.id, cancel_at_period_end=True)
        elif action == "resume":
            subscriptions.update(subscription.id, cancel_at_period_end=False)
        elif action == "cancel":
            subscriptions.cancel(subscription.id)
        else:
            raise ApiError(400, "There is no such action.")

    def _invoice(self, invoice_id: str, form: Parameters | None) -> Answer:
        invoice = found(self._account.invoices, "invoice", invoice_id)
        if form is None:
            return self._invoice_page(invoice)
        try:
            self._engine.subscriptions.pay(invoice_id)
        except ApiError as error:
            return self._invoice_page(self._account.invoices[invoice_id], str(error))
        return redirect(f"{INVOICE}{invoice_id}")

    def _invoice_page(self, invoice: Invoice, problem: str | None = None) -> Answer:
        return self._html.page("invoice.html", invoice=invoice, problem=problem)


_PREFIX: Final = "/_simulator/"
_SHOWN_EVENTS: Final = 50
_FORM: Final = "application/x-www-form-urlencoded"

B = TypeVar("B", bound=msgspec.Struct)


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    """What a request may say; of a form, empty fields are left out."""


class _Advance(_Body):
    days: float = 0
    hours: float = 0
    minutes: float = 0
    seconds: float = 0


class _CardBody(_Body):
    card: Card


class _Resend(_Body):
    endpoint: str | None = None


class _Misbehave(_Body):
    drop: float = 0.0
    duplicates: int = 0
    reorder: bool = False
    delay_seconds: float | tuple[float, float] = 0.0
    endpoint: str | None = None
    types: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


class _Nothing(_Body):
    pass


Handler = Callable[[Request, str], Awaitable[object]]


class Control:
    """The overview at ``/``, and the commands under ``/_simulator/``, which take JSON or the overview's forms."""

    def __init__(self, engine: Engine, html: Html) -> None:
        self._engine = engine
        self._account = engine.account
        self._html = html
        self._commands: list[tuple[str, re.Pattern[str], Handler]] = [
            ("GET", re.compile("clock"), self._clock),
            ("POST", re.compile("clock/advance"), self._advance),
            ("POST", re.compile("customers/([^/]+)/card"), self._card),
            ("POST", re.compile("customers/([^/]+)/portal"), self._portal),
            ("POST", re.compile("events/([^/]+)/resend"), self._resend),
            ("POST", re.compile("deliver"), self._deliver),
            ("POST", re.compile("misbehave"), self._misbehave),
            ("POST", re.compile("behave"), self._behave),
            ("GET", re.compile("deliveries"), self._deliveries),
        ]

    async def answer(self, request: Request) -> Answer | None:
        """The answer, if the address is one of these."""
        if request.path == "/":
            return self._overview()
        if not request.path.startswith(_PREFIX):
            return None
        try:
            result = await self._run(request)
        except ApiError as error:
            return self._refuse(request, error)
        except NOT_JSON as error:
            return self._refuse(request, ApiError(400, str(error)))
        if _is_form(request):
            return redirect(result["url"] if isinstance(result, dict) and "url" in result else "/")
        return Answer.json(result)

    def _refuse(self, request: Request, error: ApiError) -> Answer:
        if _is_form(request):
            return self._html.message("This does not work", str(error), error.status)
        return Answer.json(error.body(), error.status)

    async def _run(self, request: Request) -> object:
        command = request.path.removeprefix(_PREFIX)
        for method, pattern, handler in self._commands:
            match = pattern.fullmatch(command)
            if match is not None and method == request.method:
                return await handler(request, match[1] if match.re.groups else "")
        raise ApiError(404, f"There is no {request.method} {request.path}.")

    def _overview(self) -> Answer:
        account, courier = self._account, self._engine.courier
        states: dict[str, list[str]] = {}
        for delivery in courier.log:
            states.setdefault(delivery.event, []).append(delivery.state)
        return self._html.page(
            "overview.html",
            now=account.now,
            customers=[customer for customer in account.customers.values() if not customer.deleted][::-1],
            subscriptions=list(account.subscriptions.values()),
            sessions=[session for session in account.checkout_sessions.values() if session.status == "open"],
            endpoints=list(account.endpoints.values()),
            events=list(account.events.values())[-_SHOWN_EVENTS:][::-1],
            states=states,
            rules=[rule.in_words() for rule in courier.rules],
        )

    async def _clock(self, _request: Request, _: str) -> dict[str, object]:
        return {"now": self._account.now}

    async def _advance(self, request: Request, _: str) -> dict[str, object]:
        by = _body(request, _Advance)
        delta = timedelta(days=by.days, hours=by.hours, minutes=by.minutes, seconds=by.seconds)
        if delta < timedelta(0):
            raise ApiError(400, "Time does not go back.")
        await self._engine.advance(delta)
        return {"now": self._account.now}

    async def _card(self, request: Request, customer_id: str) -> dict[str, object]:
        card = _body(request, _CardBody).card
        return {"id": self._engine.customers.use_card(customer_id, card).id, "card": card}

    async def _portal(self, request: Request, customer_id: str) -> dict[str, object]:
        _body(request, _Nothing)
        return {"url": self._engine.open_portal(customer_id, f"{self._account.url}/").url}

    async def _resend(self, request: Request, event_id: str) -> dict[str, object]:
        deliveries = await self._engine.resend(event_id, _body(request, _Resend).endpoint)
        return {"deliveries": deliveries}

    async def _deliver(self, request: Request, _: str) -> dict[str, object]:
        _body(request, _Nothing)
        return {"requests": await self._engine.deliver()}

    async def _misbehave(self, request: Request, _: str) -> dict[str, object]:
        wanted = _body(request, _Misbehave)
        delay = wanted.delay_seconds if isinstance(wanted.delay_seconds, tuple) else (wanted.delay_seconds,) * 2
        self._engine.courier.rules.append(
            Misbehaviour(
                drop=wanted.drop,
                duplicates=wanted.duplicates,
                reorder=wanted.reorder,
                delay=(timedelta(seconds=delay[0]), timedelta(seconds=delay[1])),
                endpoint=wanted.endpoint,
                types=wanted.types,
                events=wanted.events,
            )
        )
        return {"rules": len(self._engine.courier.rules)}

    async def _behave(self, request: Request, _: str) -> dict[str, object]:
        _body(request, _Nothing)
        self._engine.courier.rules.clear()
        return {"rules": 0}

    async def _deliveries(self, _request: Request, _: str) -> dict[str, object]:
        return {"deliveries": self._engine.courier.log}


def _is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM


def _body(request: Request, kind: type[B]) -> B:
    """The body's fields; raises those of `NOT_JSON`."""
    if not _is_form(request):
        return msgspec.json.decode(request.body or b"{}", type=kind)
    fields = Parameters.parse(request.body.decode("utf-8", "replace")).values
    return msgspec.convert({name: value for name, value in fields.items() if value}, kind, strict=False)
