"""The hosted pages (checkout, portal, invoice), the overview at ``/``, and the control commands."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from tenantry.common.encoding import NOT_JSON
from tenantry_devkit.html import HEADERS, Pages, form_action_to, page_headers
from tenantry_devkit.simulator.billing import ItemChange
from tenantry_devkit.simulator.delivery import DeliveryRule
from tenantry_devkit.simulator.engine import SimulationEngine
from tenantry_devkit.simulator.objects import Card, CheckoutSession, Invoice
from tenantry_devkit.simulator.requests import FORM, ApiError, HttpRequest, HttpResponse, Parameters, Routes, found

_SHOWN_EVENTS: Final = 50
_FAILED: Final = "This does not work"

B = TypeVar("B", bound=msgspec.Struct)
Json = dict[str, object]
Command = Callable[..., Awaitable[Json]]


class SimulatorPages:
    def __init__(self) -> None:
        self._pages = Pages(Path(__file__).with_name("pages"), "simulator.css")
        self._pages.templates.filters["money"] = lambda amount, currency: f"{amount / 100:.2f} {currency.upper()}"
        self._pages.templates.filters["time"] = lambda moment: (
            f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S UTC}"
        )

    def page(
        self, template: str, *, status: int = 200, redirects_to: str | None = None, **context: object
    ) -> HttpResponse:
        """Render a page, whose forms go to this server and redirect to ``redirects_to``."""
        content = self._pages.render(template, **context).encode()
        return HttpResponse(status, content, "text/html; charset=utf-8", page_headers(form_action_to(redirects_to)))

    def message(self, title: str, message: str, status: int = 200) -> HttpResponse:
        return self.page("message.html", status=status, title=title, message=message)

    def style_sheet(self) -> HttpResponse:
        return HttpResponse(200, self._pages.style_sheet().encode(), "text/css; charset=utf-8", dict(HEADERS))


def _redirect(location: str) -> HttpResponse:
    return HttpResponse(303, b"", "text/plain", {**HEADERS, "Location": location})


class HostedPages:
    """Forms for customers. The address of a page is its only secret."""

    def __init__(self, engine: SimulationEngine, pages: SimulatorPages) -> None:
        self._engine = engine
        self._account = engine.account
        self._pages = pages
        self._handlers: dict[str, Callable[[str, Parameters | None], HttpResponse]] = {
            "/c/pay/": self._checkout,
            "/p/session/": self._portal,
            "/i/": self._invoice,
        }

    def respond(self, request: HttpRequest) -> HttpResponse | None:
        """Answer a request for a hosted page; None for any other."""
        for prefix, handler in self._handlers.items():
            if request.path.startswith(prefix):
                form = Parameters.parse(request.text) if request.method == "POST" else None
                try:
                    return handler(request.path.removeprefix(prefix), form)
                except ApiError as error:
                    return self._pages.message(_FAILED, str(error), error.status)
        return None

    def _checkout(self, session_id: str, form: Parameters | None) -> HttpResponse:
        session = found(self._account.checkout_sessions, "checkout.session", session_id)
        if form is None:
            return self._checkout_page(session)
        card = Card.DECLINES if form.text("card") == Card.DECLINES else Card.WORKS
        try:
            done = self._engine.storefront.complete_checkout(session_id, card)
        except ApiError as error:
            if error.error.get("code") != "card_declined":
                raise
            return self._checkout_page(session, str(error))
        return _redirect(done.success_url or session.url or "/")

    def _checkout_page(self, session: CheckoutSession, problem: str | None = None) -> HttpResponse:
        if session.status != "open":
            return self._pages.message("Checkout", f"This session is {session.status}.")
        return self._pages.page("checkout.html", redirects_to=session.success_url, session=session, problem=problem)

    def _portal(self, session_id: str, form: Parameters | None) -> HttpResponse:
        account, session = self._account, found(self._account.portal_sessions, "portal session", session_id)
        if form is not None:
            self._change(session.customer, form)
            return _redirect(f"/p/session/{session_id}")
        own = [each for each in account.subscriptions.values() if each.customer == session.customer]
        return self._pages.page(
            "portal.html",
            session=session,
            customer=account.customers[session.customer],
            subscriptions=[each for each in own if not each.has_ended],
            ended=[each for each in own if each.has_ended],
            invoices=[each for each in account.invoices.values() if each.customer == session.customer][::-1],
            prices=list(account.prices.values()),
        )

    def _change(self, customer: str, form: Parameters) -> None:
        """Perform a button's action on the customer's own objects."""
        billing, action = self._engine.billing, form.required("action")
        if action == "card":
            card = form.choice("card", tuple(Card)) or Card.WORKS
            self._engine.storefront.set_card(customer, Card(card))
            return
        subscription = billing.active_subscription(form.required("subscription"))
        if subscription.customer != customer:
            raise ApiError(404, "There is no such subscription.")
        if action == "change":
            price = found(self._account.prices, "price", form.required("price"), param="price")
            billing.update_subscription(subscription.id, items=[ItemChange(subscription.items[0].id, price)])
        elif action in {"cancel_at_period_end", "resume"}:
            billing.update_subscription(subscription.id, cancel_at_period_end=action == "cancel_at_period_end")
        elif action == "cancel":
            billing.cancel_subscription(subscription.id)
        else:
            raise ApiError(400, "There is no such action.")

    def _invoice(self, invoice_id: str, form: Parameters | None) -> HttpResponse:
        invoice = found(self._account.invoices, "invoice", invoice_id)
        if form is None:
            return self._invoice_page(invoice)
        try:
            self._engine.billing.pay(invoice_id)
        except ApiError as error:
            return self._invoice_page(self._account.invoices[invoice_id], str(error))
        return _redirect(f"/i/{invoice_id}")

    def _invoice_page(self, invoice: Invoice, problem: str | None = None) -> HttpResponse:
        return self._pages.page("invoice.html", invoice=invoice, problem=problem)


class _NoBody(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _AdvanceBody(_NoBody):
    days: float = 0
    hours: float = 0
    minutes: float = 0
    seconds: float = 0


class _CardBody(_NoBody):
    card: Card


class _ResendBody(_NoBody):
    endpoint: str | None = None


class _RuleBody(_NoBody):
    drop: float = 0.0
    duplicates: int = 0
    reorder: bool = False
    delay_seconds: float | tuple[float, float] = 0.0
    endpoint: str | None = None
    types: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


class Control:
    """The overview, and the commands under ``/_simulator/``, which take JSON or the overview's forms."""

    def __init__(self, engine: SimulationEngine, pages: SimulatorPages) -> None:
        self._engine = engine
        self._account = engine.account
        self._pages = pages
        commands: dict[str, tuple[Command, type[msgspec.Struct]]] = {
            "GET /_simulator/clock": (self._clock, _NoBody),
            "POST /_simulator/clock/advance": (self._advance, _AdvanceBody),
            "POST /_simulator/customers/{}/card": (self._card, _CardBody),
            "POST /_simulator/customers/{}/portal": (self._portal, _NoBody),
            "POST /_simulator/events/{}/resend": (self._resend, _ResendBody),
            "POST /_simulator/deliver": (self._deliver, _NoBody),
            "POST /_simulator/misbehave": (self._misbehave, _RuleBody),
            "POST /_simulator/behave": (self._behave, _NoBody),
            "GET /_simulator/deliveries": (self._deliveries, _NoBody),
        }
        self._commands = Routes(commands)

    async def respond(self, request: HttpRequest) -> HttpResponse | None:
        """Answer a request for the overview or a command; None for any other."""
        if request.path == "/":
            return self._overview()
        if not request.path.startswith("/_simulator/"):
            return None
        is_form = request.media_type == FORM
        try:
            result = await self._run(request)
        except (ApiError, *NOT_JSON) as raised:
            error = raised if isinstance(raised, ApiError) else ApiError(400, str(raised))
            if is_form:
                return self._pages.message(_FAILED, str(error), error.status)
            return HttpResponse.of_error(error)
        return _redirect(str(result.get("url", "/"))) if is_form else HttpResponse.json(result)

    async def _run(self, request: HttpRequest) -> Json:
        route = self._commands.find(request.method, request.path)
        if route is None:
            raise ApiError(404, f"There is no {request.method} {request.path}.")
        (command, kind), ids = route
        return await command(_read_body(request, kind), *ids)

    def _overview(self) -> HttpResponse:
        account, courier = self._account, self._engine.courier
        states: dict[str, list[str]] = {}
        for delivery in courier.log:
            states.setdefault(delivery.event, []).append(delivery.state)
        return self._pages.page(
            "overview.html",
            now=account.now,
            customers=[customer for customer in account.customers.values() if not customer.deleted][::-1],
            subscriptions=list(account.subscriptions.values()),
            sessions=[session for session in account.checkout_sessions.values() if session.status == "open"],
            endpoints=list(account.endpoints.values()),
            events=list(account.events.values())[-_SHOWN_EVENTS:][::-1],
            states=states,
            rules=list(map(str, courier.rules)),
        )

    async def _clock(self, _: _NoBody) -> Json:
        return {"now": self._account.now}

    async def _advance(self, body: _AdvanceBody) -> Json:
        by = timedelta(**msgspec.structs.asdict(body))
        if by < timedelta(0):
            raise ApiError(400, "Time does not go back.")
        await self._engine.advance(by)
        return {"now": self._account.now}

    async def _card(self, body: _CardBody, customer_id: str) -> Json:
        return {"id": self._engine.storefront.set_card(customer_id, body.card).id, "card": body.card}

    async def _portal(self, _: _NoBody, customer_id: str) -> Json:
        return {"url": self._engine.storefront.open_portal(customer_id, f"{self._account.url}/").url}

    async def _resend(self, body: _ResendBody, event_id: str) -> Json:
        return {"deliveries": await self._engine.resend(event_id, body.endpoint)}

    async def _deliver(self, _: _NoBody) -> Json:
        return {"requests": await self._engine.deliver()}

    async def _misbehave(self, body: _RuleBody) -> Json:
        fields: dict[str, Any] = msgspec.structs.asdict(body)
        seconds = fields.pop("delay_seconds")
        least, most = seconds if isinstance(seconds, tuple) else (seconds, seconds)
        rules = self._engine.courier.rules
        rules.append(DeliveryRule(**fields, delay=(timedelta(seconds=least), timedelta(seconds=most))))
        return {"rules": len(rules)}

    async def _behave(self, _: _NoBody) -> Json:
        self._engine.courier.rules.clear()
        return {"rules": 0}

    async def _deliveries(self, _: _NoBody) -> Json:
        return {"deliveries": self._engine.courier.log}


def _read_body(request: HttpRequest, kind: type[B]) -> B:
    """Decode JSON or a form, without its empty fields; raises the errors of `NOT_JSON`."""
    if request.media_type != FORM:
        return msgspec.json.decode(request.body or b"{}", type=kind)
    fields = Parameters.parse(request.text).values
    return msgspec.convert({name: value for name, value in fields.items() if value}, kind, strict=False)
