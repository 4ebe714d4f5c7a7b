"""The hosted pages (checkout, portal, invoice), the overview at ``/``, and the control commands."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from msgspec import Struct

from tenantry.common.encoding import NOT_JSON
from tenantry.domain.plan_words import format_amount
from tenantry_devkit.html import Pages, form_action_to, redirect
from tenantry_devkit.simulator.account import ApiError
from tenantry_devkit.simulator.engine import SimulationEngine
from tenantry_devkit.simulator.objects import (
    Card,
    CheckoutSession,
    Invoice,
    PortalSession,
    Subscription,
)
from tenantry_devkit.simulator.parameters import FORM, json_response
from tenantry_devkit.simulator.subscriptions import ItemChange

_SHOWN_EVENTS: Final = 50
_SHOWN_PROBLEMS: Final = ("card_declined", "promotion_code_invalid")
"""The errors that the checkout's page shows."""

AnyRequest = Request[Any, Any, Any]
Engine = NamedDependency[SimulationEngine]
S = TypeVar("S", bound=Struct)


@cache
def pages() -> Pages:
    made = Pages(Path(__file__).with_name("pages"))
    made.templates.filters["money"] = lambda amount, currency: (
        format_amount(amount, currency) or ""
    ).replace(",", "")
    made.templates.filters["time"] = lambda moment: (
        f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S UTC}"
    )
    return made


@get("/simulator.css")
async def style_sheet() -> Response[str]:
    return pages().style_sheet()


async def _read(request: AnyRequest, kind: type[S]) -> S:
    """Decode JSON or a form, without its empty fields; raises `ApiError`."""
    try:
        if request.content_type[0] != FORM:
            return msgspec.json.decode(await request.body() or b"{}", type=kind)
        form = {name: value for name, value in (await request.form()).items() if value}
        return msgspec.convert(form, kind, strict=False)
    except NOT_JSON as error:
        raise ApiError(400, str(error)) from error


# Hosted pages: forms for customers. The address of a page is its only secret.


class _CheckoutForm(Struct):
    card: Card = Card.WORKS
    async_payment: bool = False
    promotion_code: str | None = None
    applies: bool = False
    tax_id: str | None = None


class _PortalForm(Struct):
    action: str
    subscription: str = ""
    price: str = ""
    card: Card = Card.WORKS


def _checkout_page(session: CheckoutSession, problem: str | None = None) -> Response[str]:
    if session.status != "open":
        return pages().message("Checkout", f"This session is {session.status}.")
    policy = form_action_to(session.success_url)
    return pages().page(
        "checkout.html",
        form_action=policy,
        session=session,
        problem=problem,
    )


@get("/c/pay/{session_id:str}")
async def show_checkout(session_id: FromPath[str], engine: Engine) -> Response[str]:
    return _checkout_page(engine.account.find(CheckoutSession, session_id))


@post("/c/pay/{session_id:str}")
async def complete_checkout(
    request: AnyRequest, session_id: FromPath[str], engine: Engine
) -> Response[str]:
    form = await _read(request, _CheckoutForm)
    try:
        if form.promotion_code:
            engine.apply_promotion_code(session_id, form.promotion_code)
        if form.applies:
            return _checkout_page(engine.account.find(CheckoutSession, session_id))
        done = engine.complete(
            session_id,
            form.card,
            async_payment=form.async_payment,
            tax_id=form.tax_id,
        )
    except ApiError as error:
        if error.error.get("code") not in _SHOWN_PROBLEMS:
            raise
        return _checkout_page(engine.account.find(CheckoutSession, session_id), str(error))
    return redirect(done.success_url or "/")


@get("/p/session/{session_id:str}")
async def show_portal(session_id: FromPath[str], engine: Engine) -> Response[str]:
    session = engine.account.find(PortalSession, session_id)
    customer = engine.customers[session.customer]
    flow = session.flow
    return pages().page(
        "portal_flow.html" if flow else "portal.html",
        form_action=form_action_to(flow.return_url if flow else None),
        session=session,
        customer=customer,
        engine=engine,
    )


@post("/p/session/{session_id:str}")
async def change_subscription(
    request: AnyRequest, session_id: FromPath[str], engine: Engine
) -> Response[str]:
    """Perform a button's action on the customer's own objects."""
    form = await _read(request, _PortalForm)
    session = engine.account.find(PortalSession, session_id)
    if form.action == "card":
        engine.account.set_card(session.customer, form.card)
    elif form.action == "confirm":
        _confirm_update(session, engine)
    else:
        _change_subscription_of(session.customer, form, engine)
    return redirect((session.flow and session.flow.return_url) or f"/p/session/{session_id}")


def _confirm_update(session: PortalSession, engine: SimulationEngine) -> None:
    flow = session.flow
    if flow is None or flow.subscription is None:
        raise ApiError(400, "There is nothing to confirm.")
    change = ItemChange(flow.item, flow.price, flow.quantity)
    engine.update_subscription(flow.subscription, items=[change])


def _change_subscription_of(customer: str, form: _PortalForm, engine: SimulationEngine) -> None:
    subscription = engine.account.find(Subscription, form.subscription)
    if subscription.customer != customer:
        raise ApiError(404, "There is no such subscription.")
    match form.action:
        case "change":
            engine.change_plan(subscription, form.price)
        case "cancel":
            engine.cancel(subscription)
        case "cancel_at_period_end":
            engine.cancel_in_portal(subscription)
        case "resume":
            engine.resume(subscription)
        case _:
            raise ApiError(400, "There is no such action.")


@get("/i/{invoice_id:str}")
async def show_invoice(invoice_id: FromPath[str], engine: Engine) -> Response[str]:
    return _invoice_page(engine, invoice_id)


def _invoice_page(
    engine: SimulationEngine, invoice_id: str, problem: str | None = None
) -> Response[str]:
    return pages().page(
        "invoice.html",
        form_action="'self'",
        invoice=engine.account.find(Invoice, invoice_id),
        problem=problem,
    )


@post("/i/{invoice_id:str}")
async def pay_invoice(invoice_id: FromPath[str], engine: Engine) -> Response[str]:
    try:
        engine.pay(invoice_id)
    except ApiError as error:
        return _invoice_page(engine, invoice_id, str(error))
    return redirect(f"/i/{invoice_id}")


# Control: the overview, and the commands under ``/_simulator/``, which take JSON or the overview's
# forms


class _NoBody(Struct, forbid_unknown_fields=True):
    pass


class _AdvanceBody(_NoBody):
    days: float = 0
    hours: float = 0
    minutes: float = 0
    seconds: float = 0


class _CardBody(_NoBody):
    card: Card


class _PaymentBody(_NoBody):
    succeeds: bool


class _RuleBody(_NoBody):
    drop: float = 0.0
    duplicates: int = 0
    reorder: bool = False
    delay_seconds: float | tuple[float, float] = 0.0
    types: tuple[str, ...] = ()


def _answer(request: AnyRequest, result: Mapping[str, object], page: str = "/") -> Response[Any]:
    """Return the result as JSON, or redirect a form to a page."""
    return redirect(page) if request.content_type[0] == FORM else json_response(result)


@get("/")
async def overview(engine: Engine) -> Response[str]:
    events = engine.events()[-_SHOWN_EVENTS:][::-1]
    return pages().page(
        "overview.html",
        form_action="'self'",
        engine=engine,
        events=events,
    )


@get("/_simulator/clock")
async def clock(engine: Engine) -> Response[bytes]:
    return json_response({"now": engine.account.now})


@post("/_simulator/clock/advance")
async def advance(request: AnyRequest, engine: Engine) -> Response[Any]:
    by = timedelta(**msgspec.structs.asdict(await _read(request, _AdvanceBody)))
    if by < timedelta(0):
        raise ApiError(400, "Time does not go back.")
    await engine.advance(by)
    return _answer(request, {"now": engine.account.now})


@post("/_simulator/customers/{customer_id:str}/card")
async def set_card(
    request: AnyRequest, customer_id: FromPath[str], engine: Engine
) -> Response[Any]:
    customer = engine.account.set_card(customer_id, (await _read(request, _CardBody)).card)
    return _answer(request, {"id": customer.id, "card": customer.card})


@post("/_simulator/customers/{customer_id:str}/portal")
async def open_portal(
    request: AnyRequest, customer_id: FromPath[str], engine: Engine
) -> Response[Any]:
    url = engine.portal(customer_id, f"{engine.url}/").url
    return _answer(request, {"url": url}, url)


@post("/_simulator/checkouts/{session_id:str}/payment")
async def decide_payment(
    request: AnyRequest, session_id: FromPath[str], engine: Engine
) -> Response[Any]:
    body = await _read(request, _PaymentBody)
    decide = engine.async_payment_succeeds if body.succeeds else engine.async_payment_fails
    session = decide(session_id)
    return _answer(request, {"id": session.id, "payment_status": session.payment_status})


@post("/_simulator/events/{event_id:str}/resend")
async def resend(request: AnyRequest, event_id: FromPath[str], engine: Engine) -> Response[Any]:
    return _answer(request, {"deliveries": await engine.resend(event_id)})


@post("/_simulator/misbehave")
async def misbehave(request: AnyRequest, engine: Engine) -> Response[Any]:
    fields = msgspec.structs.asdict(await _read(request, _RuleBody))
    seconds = fields.pop("delay_seconds")
    least, most = seconds if isinstance(seconds, tuple) else (seconds, seconds)
    engine.misbehave(**fields, delay=(timedelta(seconds=least), timedelta(seconds=most)))
    return _answer(request, {"rules": len(engine.courier.rules)})


@post("/_simulator/behave")
async def behave(request: AnyRequest, engine: Engine) -> Response[Any]:
    engine.behave()
    return _answer(request, {"rules": len(engine.courier.rules)})


ROUTES: Final = (
    style_sheet,
    show_checkout,
    complete_checkout,
    show_portal,
    change_subscription,
    show_invoice,
    pay_invoice,
    overview,
    clock,
    advance,
    set_card,
    open_portal,
    decide_payment,
    resend,
    misbehave,
    behave,
)
