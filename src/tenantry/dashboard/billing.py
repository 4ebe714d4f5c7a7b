"""The billing page, and the redirects to the payment provider and back."""

from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import quote

from litestar import Response, get, post

from tenantry.dashboard.context import Context, PageContext, waits_for_duplicate
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.guards import ORG, needs
from tenantry.domain import errors
from tenantry.domain.access import is_subscribed
from tenantry.domain.checkout import CheckoutOrder
from tenantry.domain.plans import FREE, Catalog
from tenantry.domain.tenants import Tenant
from tenantry.server.problems import STATUSES

PATH: Final = f"{ORG}/billing"
_CHECKOUT: Final = "/billing/checkout"
_PORTAL: Final = "/billing/portal"


def has_subscription(tenant: Tenant) -> bool:
    """Whether the tenant has a subscription that has not ended."""
    return is_subscribed(tenant.subscription_status)


def is_ending(tenant: Tenant) -> bool:
    """Whether the tenant's subscription will end."""
    return has_subscription(tenant) and (tenant.ends_at is not None or tenant.cancel_at_period_end)


def is_last_period(tenant: Tenant) -> bool:
    """Whether the tenant's subscription will end with the current period, or before."""
    ends_at = tenant.ends_at
    period_end = tenant.current_period_end
    ends_before = ends_at is not None and period_end is not None and ends_at <= period_end
    return is_ending(tenant) and (tenant.cancel_at_period_end or ends_before)


def waits_for_provider(path: str) -> bool:
    """Whether a path waits for the payment provider, which may take longer than the database."""
    return path.startswith("/orgs/") and path.endswith((_CHECKOUT, _PORTAL))


@get(PATH, guards=[needs("billing:read")])
async def show_billing(ctx: Context) -> Response[str]:
    return await _billing_page(ctx, awaits=ctx.query("awaits"))


@get(PATH + "/back", guards=[needs("billing:read")])
async def return_from_provider(ctx: Context) -> Response[str]:
    path = f"{ctx.user.base}/billing"
    plan = ctx.query("plan")
    message = ctx.cookies.verified_flash(ctx.user.session, f"{path}/back", ctx.query("notice"))
    if message is None:
        return ctx.redirect(path)
    return ctx.redirect_with(message, path, f"?awaits={quote(plan, safe='')}" if plan else "")


@post(ORG + _CHECKOUT, guards=[needs("billing:write")])
async def start_checkout(ctx: Context) -> Response[str]:
    return await _redirect_to_provider(ctx, _checkout_url)


@post(ORG + _PORTAL, guards=[needs("billing:write")])
async def open_portal(ctx: Context) -> Response[str]:
    return await _redirect_to_provider(ctx, _portal_url)


@waits_for_duplicate
async def _checkout_url(ctx: PageContext) -> str:
    plan = ctx.form.text("plan")
    bought = f"{_return_url(ctx, FlashMessage.CHECKED_OUT)}&plan={quote(plan, safe='')}"
    return await ctx.services.checkout.create_checkout(
        ctx.principal,
        ctx.author,
        CheckoutOrder(plan),
        success_url=bought,
        cancel_url=_return_url(ctx, FlashMessage.CHECKOUT_LEFT),
        claim=await ctx.claim(),
    )


@waits_for_duplicate
async def _portal_url(ctx: PageContext) -> str:
    return await ctx.services.checkout.create_portal(
        ctx.principal,
        ctx.author,
        return_url=_return_url(ctx, FlashMessage.PORTAL_LEFT),
        claim=await ctx.claim(),
    )


def _return_url(ctx: PageContext, message: FlashMessage) -> str:
    """Return the address to which the provider redirects this user, where a message tells the
    result.
    """
    path = f"{ctx.user.base}/billing/back"
    notice = ctx.cookies.signed_flash(ctx.user.session, path, message)
    return f"{ctx.services.base_url}{path}?notice={notice}"


async def _redirect_to_provider(
    ctx: PageContext, get_url: Callable[[PageContext], Awaitable[str]]
) -> Response[str]:
    """Redirect by a page: the answer to a form must not redirect to another origin (CSP
    form-action).
    """
    try:
        url = await get_url(ctx)
        _check_is_address(url)
    except errors.DatabaseUnavailableError:
        raise
    except errors.DomainError as error:
        return await _billing_page(ctx, problem=error)
    response = ctx.renderer.page("provider_redirect.html", url=url, back=f"{ctx.user.base}/billing")
    response.headers["Refresh"] = f"0; url={url}"
    return response


def _check_is_address(url: str) -> None:
    is_plain = url.isascii() and url.isprintable()
    if not is_plain or not url.startswith(("https://", "http://")):
        raise errors.ProviderRefusedError("The payment provider answered with an invalid address.")


async def _billing_page(
    ctx: PageContext, *, awaits: str = "", problem: errors.DomainError | None = None
) -> Response[str]:
    services = ctx.services
    catalog = ctx.services.catalog
    # First, so that the stream repeats events rather than skip one. A page with an error is not
    # updated.
    newest = None if problem else await services.billing.newest_arrival(ctx.principal)
    billing = await services.overview.of_billing(ctx.principal)
    tenant = billing.tenant
    is_configured = services.checkout.is_configured
    is_buyable = is_configured and services.checkout.sells_to(is_subscribed=billing.is_subscribed)
    return ctx.render(
        "billing.html",
        STATUSES[type(problem)] if problem else 200,
        tenant=tenant,
        billing=billing,
        current=next((one for one in billing.subscriptions if one.counts), None),
        ends=is_ending(tenant),
        is_last_period=is_last_period(tenant),
        newest=newest,
        is_subscribed=billing.is_subscribed,
        is_configured=is_configured,
        buyable=_with_prices(catalog) if is_buyable else set(),
        problem=_error_text(problem) if problem else "",
        awaited=awaits if awaits in catalog else None,
    )


def _with_prices(catalog: Catalog) -> set[str]:
    """Return the plans that have a price at the provider."""
    return {plan.id for plan in catalog.plans if plan.id != FREE and plan.stripe_price_ids}


def _error_text(problem: errors.DomainError) -> str:
    if isinstance(problem, errors.ValidationError):
        return (
            "You cannot subscribe to this plan: "
            + "; ".join(message for _, message in problem.faults)
            + "."
        )
    if isinstance(problem, errors.IdempotencyMismatchError):
        return "This form was submitted before, and its details have changed since. Submit it again from this page."
    return problem.detail
