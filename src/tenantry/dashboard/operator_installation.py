"""The operator's pages of the installation: what needs attention, and what to do about it."""

from datetime import UTC, date, datetime, time
from typing import Final

from litestar import Response, get, post

from tenantry.api.webhook_endpoints import EndpointName
from tenantry.dashboard import customer_link_form, forms
from tenantry.dashboard.context import Context, PageContext, waits_for_duplicate
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.forms import InvalidFormError
from tenantry.dashboard.guards import OPERATOR_PAGES, PageGuard
from tenantry.domain.errors import NotFoundError
from tenantry.domain.owner_mails import MAIL_KINDS
from tenantry.domain.webhook_endpoints import ListedEndpoint, WebhookTest
from tenantry.installation.findings import problems_of
from tenantry.installation.state import MOST_ENTRIES
from tenantry.server.waiting_paths import MAY_WAIT

PATH: Final = OPERATOR_PAGES + "/installation"
_CHECKS: Final = PATH + "/checks"
_EVENTS: Final = PATH + "/events"
_LINK: Final = PATH + "/link"
_WEBHOOK: Final = PATH + "/webhooks/{name:str}"
_MOST_EVENTS: Final = 10
_PAGE_SIZE: Final = 50
_PAGE: Final = ("Installation", "/installation")
_NO_EVENT: Final = "This endpoint has no such event. Events are kept for 30 days."


@get(PATH, guards=[PageGuard()])
async def show_installation(ctx: Context) -> Response[str]:
    services = ctx.services
    return ctx.render(
        "operator_installation.html",
        state=await services.installation.read_state(),
        events=await services.unplaced_events.list_rows(_MOST_EVENTS, None),
        endpoints=await services.outbound_webhooks.list_endpoints(MOST_ENTRIES),
        mail_kinds=MAIL_KINDS,
    )


@post(_CHECKS, guards=[PageGuard()], opt=MAY_WAIT)
async def check_installation(ctx: Context) -> Response[str]:
    """Show at once what the checks found: it is stored nowhere."""
    findings = await ctx.services.installation.check_all()
    return ctx.render("operator_checks.html", findings=findings, problems=problems_of(findings))


@get(_EVENTS, guards=[PageGuard()])
async def show_unplaced_events(ctx: Context) -> Response[str]:
    cursor = ctx.query("cursor") or None
    events = await ctx.services.unplaced_events.list_rows(_PAGE_SIZE, cursor)
    return ctx.render("operator_events.html", events=events)


# Customers of the payment provider


@get(_LINK, guards=[PageGuard()])
async def show_link(ctx: Context) -> Response[str]:
    return customer_link_form.show(ctx, _PAGE)


@post(_LINK, guards=[PageGuard()])
async def link_customer(ctx: Context) -> Response[str]:
    try:
        with forms.at_fields(customer_link_form.NO_TENANT):
            await customer_link_form.submit(ctx, ctx.form.text("orgId"))
    except customer_link_form.FAULTS as error:
        return customer_link_form.show(ctx, _PAGE, error)
    return ctx.redirect_with(FlashMessage.CUSTOMER_PLACED, PATH)


# Webhooks


@get(_WEBHOOK, guards=[PageGuard()])
async def show_webhook(ctx: Context, name: EndpointName) -> Response[str]:
    return await _webhook_page(ctx, name)


@post(_WEBHOOK + "/test", guards=[PageGuard()], opt=MAY_WAIT)
async def test_webhook(ctx: Context, name: EndpointName) -> Response[str]:
    """Show at once what the receiver answered: it is stored nowhere."""
    tested = await ctx.services.outbound_webhooks.test(ctx.author, name)
    return await _webhook_page(ctx, name, tested=tested)


@post(_WEBHOOK + "/enable", guards=[PageGuard()], opt=MAY_WAIT)
async def enable_webhook(ctx: Context, name: EndpointName) -> Response[str]:
    await ctx.services.outbound_webhooks.enable(ctx.author, name)
    return ctx.redirect_with(FlashMessage.WEBHOOK_ENABLED, _address(name))


@post(_WEBHOOK + "/resend", guards=[PageGuard()], opt=MAY_WAIT)
@waits_for_duplicate
async def resend_webhooks(ctx: Context, name: EndpointName) -> Response[str]:
    await _endpoint(ctx, name)  # a missing one is no fault of a field
    which = ctx.form.text("which")
    try:
        with forms.at_fields({NotFoundError: ("event", _NO_EVENT)}):
            await ctx.services.outbound_webhooks.resend(
                ctx.author,
                name,
                event=_required(ctx, "event", "Enter the id of an event.")
                if which == "event"
                else None,
                since=_day(ctx) if which == "since" else None,
                claim=ctx.claim(),
            )
    except InvalidFormError as error:
        return await _webhook_page(ctx, name, error)
    return ctx.redirect_with(FlashMessage.WEBHOOK_RESENT, _address(name))


def _required(ctx: PageContext, field: str, fault: str) -> str:
    """Return the text of a field. Raises `InvalidFormError` for none."""
    text = ctx.form.text(field)
    if not text:
        raise InvalidFormError({field: fault})
    return text


def _day(ctx: PageContext) -> datetime:
    """Return the beginning of the day to send again from, in UTC. Raises `InvalidFormError`."""
    text = ctx.form.text("since")
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    except ValueError as error:
        raise InvalidFormError({"since": forms.day_fault(text)}) from error


async def _webhook_page(
    ctx: PageContext,
    name: str,
    error: Exception | None = None,
    *,
    tested: WebhookTest | None = None,
) -> Response[str]:
    values = ctx.submitted.over({"which": "undelivered", "event": "", "since": ""})
    return ctx.render(
        "operator_webhook.html",
        error,
        endpoint=await _endpoint(ctx, name),
        tested=tested,
        values=values,
    )


async def _endpoint(ctx: PageContext, name: str) -> ListedEndpoint:
    """Return an endpoint of the catalog. Raises `NotFoundError`."""
    listed = await ctx.services.outbound_webhooks.list_endpoints(MOST_ENTRIES)
    found = next((each for each in listed if each.name == name), None)
    if found is None:
        raise NotFoundError("webhook in the plan catalog")
    return found


def _address(name: str) -> str:
    return f"{PATH}/webhooks/{name}"
