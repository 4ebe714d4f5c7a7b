"""The operator's pages about one customer: who it is, what it has and needs, and its mails."""

from collections.abc import Iterable
from typing import Final

from litestar import Response, get, post

from tenantry.billing.ledger_queries import HistoryEntry
from tenantry.dashboard import forms, overview
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.forms import InvalidFormError
from tenantry.dashboard.guards import OPERATOR_PAGES, ORG, PageGuard
from tenantry.dashboard.labels import shown_name
from tenantry.dashboard.operator_questions import Question, ask, author_with_reason
from tenantry.dashboard.pager import requested_page
from tenantry.dashboard.rejections import latest_rejections
from tenantry.domain.billing.events import SNAPSHOT, Anomaly
from tenantry.domain.errors import ValidationError

PATH: Final = OPERATOR_PAGES + ORG
_NEWEST_ENTRIES: Final = 5
_LATEST_REJECTIONS: Final = 3
_MAILS_ON_A_PAGE: Final = 25
_PAGE: Final = ("Customer", "/")
_FAULTS: Final = (InvalidFormError, ValidationError)
_SUSPEND: Final = Question(
    title="Suspend {}?",
    effects=(
        "Requests with its API keys and of its users are refused from now on, with 403 org_suspended.",
        "Billing events still count, and nothing is deleted. You can resume it at any time.",
    ),
    button="Suspend",
    busy="Suspending",
    page=_PAGE,
    reason_help="The customer sees it: on all pages, in each refusal of the API, and later in the audit trail.",
    needs_reason=True,
    is_danger=True,
)
_RESUME: Final = Question(
    title="Resume {}?",
    effects=("Its API keys and users are accepted again, from the next request on.",),
    button="Resume",
    busy="Resuming",
    page=_PAGE,
)
_VERIFY: Final = Question(
    title="Mark the owner's address as verified?",
    effects=(
        "Security notices, such as those of leaked keys, go to it from now on.",
        "Do it only if you know that the owner reads mail there.",
    ),
    button="Mark as verified",
    busy="Saving",
    page=_PAGE,
)

_operator = PageGuard()


@get(PATH, guards=[_operator])
async def show_customer(ctx: Context) -> Response[str]:
    services = ctx.services
    org_id = ctx.principal.org_id
    first = await services.overview.read(ctx.principal)
    return ctx.render(
        "operator_customer.html",
        **await overview.summary(ctx, first),
        anomalous=_by_anomaly(first.events[:_NEWEST_ENTRIES]),
        customer=await services.tenants.show(org_id),
        entries=first.events[:_NEWEST_ENTRIES],
        outline=await services.operator_ledger.outline(org_id),
        rejections=await latest_rejections(ctx, _LATEST_REJECTIONS),
    )


@get(PATH + "/mails", guards=[_operator])
async def show_mails(ctx: Context) -> Response[str]:
    request = requested_page(ctx, _MAILS_ON_A_PAGE)
    page = await ctx.services.mail_history.read_page(ctx.principal.org_id, request)
    return ctx.render("operator_mails.html", page=page)


@get(PATH + "/suspend", guards=[_operator])
async def show_suspend(ctx: Context) -> Response[str]:
    return await _ask_to_suspend(ctx)


@post(PATH + "/suspend", guards=[_operator])
async def suspend(ctx: Context) -> Response[str]:
    typed = ctx.form.text("reason")
    current = {"reason": await _suspension(ctx)}
    edits = forms.find_edits(ctx.form, {"reason": typed}, current, as_a_whole=True)
    try:
        if not typed:
            raise InvalidFormError({"reason": "Enter a reason."})
        if edits.conflicts:
            raise InvalidFormError(edits.conflicts)
        await ctx.services.tenants.suspend(
            author_with_reason(ctx), ctx.principal.org_id, suspended=True
        )
    except _FAULTS as error:
        return await _ask_to_suspend(ctx, error)
    return ctx.redirect_with(FlashMessage.CUSTOMER_SUSPENDED, ctx.user.base)


@get(PATH + "/resume", guards=[_operator])
async def show_resume(ctx: Context) -> Response[str]:
    return await _ask_to_resume(ctx)


@post(PATH + "/resume", guards=[_operator])
async def resume(ctx: Context) -> Response[str]:
    suspension = await _suspension(ctx)
    edits = forms.find_edits(ctx.form, {"suspension": ""}, {"suspension": suspension})
    try:
        if edits.conflicts:
            again = f"It was suspended for another reason: {suspension} Submit again to resume it."
            raise InvalidFormError({"reason": again})
        await ctx.services.tenants.suspend(
            author_with_reason(ctx), ctx.principal.org_id, suspended=False
        )
    except _FAULTS as error:
        return await _ask_to_resume(ctx, error)
    return ctx.redirect_with(FlashMessage.CUSTOMER_RESUMED, ctx.user.base)


@get(PATH + "/verify-owner-address", guards=[_operator])
async def show_verify_owner_address(ctx: Context) -> Response[str]:
    return await _ask_to_verify(ctx)


@post(PATH + "/verify-owner-address", guards=[_operator])
async def verify_owner_address(ctx: Context) -> Response[str]:
    try:
        await ctx.services.confirmations.verify(
            author_with_reason(ctx), ctx.principal.org_id, email=ctx.form.text("email")
        )
    except ValidationError as error:
        return await _ask_to_verify(ctx, error)
    return ctx.redirect_with(FlashMessage.ADDRESS_MARKED, ctx.user.base)


def _name(ctx: PageContext) -> str:
    tenant = ctx.user.tenant
    return shown_name(tenant.name, tenant.id) if tenant else ctx.principal.org_id


async def _suspension(ctx: PageContext) -> str:
    """Return the reason of the suspension; empty without one, or without a suspension."""
    tenant = await ctx.services.tenants.show(ctx.principal.org_id)
    return tenant.suspension_reason or ""


async def _ask_to_suspend(ctx: PageContext, error: Exception | None = None) -> Response[str]:
    reason = await _suspension(ctx)
    digests = forms.field_digests({"reason": reason})
    return ask(ctx, _SUSPEND.about(_name(ctx)), error, reason=reason, digests=digests)


async def _ask_to_resume(ctx: PageContext, error: Exception | None = None) -> Response[str]:
    digests = forms.field_digests({"suspension": await _suspension(ctx)})
    return ask(ctx, _RESUME.about(_name(ctx)), error, digests=digests)


async def _ask_to_verify(ctx: PageContext, error: Exception | None = None) -> Response[str]:
    address = await ctx.services.confirmations.of_tenant(ctx.principal)
    return ask(ctx, _VERIFY, error, "operator_verify_address.html", email=address.email)


def _by_anomaly(events: Iterable[HistoryEntry]) -> dict[str, list[HistoryEntry]]:
    """Return the events, given newest first, that have an anomaly, by the first one of each. A
    later answer of the provider resolves an ambiguous order.
    """
    found: dict[str, list[HistoryEntry]] = {}
    is_answered = False
    for event in events:
        is_answered = is_answered or event.type == SNAPSHOT
        anomalies = [
            each for each in event.anomalies if each != Anomaly.AMBIGUOUS_ORDER or not is_answered
        ]
        if anomalies:
            found.setdefault(anomalies[0], []).append(event)
    return found
