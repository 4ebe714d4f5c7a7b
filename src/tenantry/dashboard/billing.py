"""The pages of the plan and of invoices, and the redirects to the payment provider and back."""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec
from litestar import Response, get, post

from tenantry.accounts.overview import BillingOverview
from tenantry.billing.ledger_queries import PAYER_SCOPE, is_link
from tenantry.dashboard.context import Context, PageContext, waits_for_duplicate
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.guards import ORG, PageGuard
from tenantry.dashboard.plan_cards import CardSituation, PlanCards, plan_cards
from tenantry.domain import errors
from tenantry.domain.access import NO_SUBSCRIPTION, is_subscribed
from tenantry.domain.billing.customer_account import CustomerAccount
from tenantry.domain.billing.state import INCOMPLETE
from tenantry.domain.billing.subscription_overview import SubscriptionLine
from tenantry.domain.checkout import MOST_SEATS, CheckoutOrder
from tenantry.domain.grants import given_words
from tenantry.domain.portal import NEW_PAYMENT_METHOD, PortalAction, cancellation, change_of
from tenantry.domain.tenants import Tenant
from tenantry.server.problems import STATUSES
from tenantry.server.waiting_paths import MAY_WAIT

PATH: Final = f"{ORG}/billing"
_CHECKOUT: Final = "/billing/checkout"
_PORTAL: Final = "/billing/portal"


def is_ending(tenant: Tenant) -> bool:
    """Whether the tenant has a subscription that will end."""
    has_end = tenant.ends_at is not None or tenant.cancel_at_period_end
    return has_end and is_subscribed(tenant.subscription_status)


def is_last_period(tenant: Tenant) -> bool:
    """Whether the tenant's subscription will end with the current period, or before."""
    ends_at = tenant.ends_at
    period_end = tenant.current_period_end
    ends_before = ends_at is not None and period_end is not None and ends_at <= period_end
    return is_ending(tenant) and (tenant.cancel_at_period_end or ends_before)


@get(PATH, guards=[PageGuard("billing:read")])
async def show_billing(ctx: Context) -> Response[str]:
    return await _billing_page(ctx, awaits=ctx.query("awaits"))


@get(PATH + "/invoices", guards=[PageGuard("billing:read")])
async def show_invoices(ctx: Context) -> Response[str]:
    tenant = await ctx.tenant()
    provided = await _ask_provider(ctx, tenant, None)
    return ctx.render(
        "invoices.html",
        tenant=tenant,
        account=provided.account,
        account_problem=provided.problem,
        may_pay=ctx.user.may(PAYER_SCOPE),
        is_configured=ctx.services.checkout.is_configured,
    )


@get(PATH + "/back", guards=[PageGuard("billing:read")])
async def return_from_provider(ctx: Context) -> Response[str]:
    path = f"{ctx.user.base}/billing"
    plan = ctx.query("plan")
    message = ctx.cookies.verified_flash(ctx.user.session, f"{path}/back", ctx.query("notice"))
    if message is None:
        return ctx.redirect(path)
    await _forget_account(ctx)
    return ctx.redirect_with(message, path, f"?awaits={quote(plan, safe='')}" if plan else "")


async def _forget_account(ctx: PageContext) -> None:
    """Let the next page show what the user has changed at the provider."""
    tenant = await ctx.tenant()
    if tenant.stripe_customer_id is not None:
        ctx.services.customer_accounts.forget(tenant.stripe_customer_id)


@post(ORG + _CHECKOUT, guards=[PageGuard("billing:write")], opt=MAY_WAIT)
async def start_checkout(ctx: Context) -> Response[str]:
    return await _redirect_to_provider(ctx, _checkout_url)


@post(ORG + _PORTAL, guards=[PageGuard("billing:write")], opt=MAY_WAIT)
async def open_portal(ctx: Context) -> Response[str]:
    return await _redirect_to_provider(ctx, _portal_url)


@waits_for_duplicate
async def _checkout_url(ctx: PageContext) -> str:
    plan = ctx.form.text("plan")
    order = CheckoutOrder(
        plan,
        ctx.form.text("price") or None,
        _quantity(ctx),
        currency=ctx.form.text("currency") or None,
    )
    bought = f"{_return_url(ctx, FlashMessage.CHECKED_OUT)}&plan={quote(plan, safe='')}"
    return await ctx.services.checkout.create_checkout(
        ctx.principal,
        ctx.author,
        order,
        success_url=bought,
        cancel_url=_return_url(ctx, FlashMessage.CHECKOUT_LEFT),
        claim=ctx.claim(),
    )


@waits_for_duplicate
async def _portal_url(ctx: PageContext) -> str:
    return await ctx.services.checkout.create_portal(
        ctx.principal,
        ctx.author,
        return_url=_return_url(ctx, FlashMessage.PORTAL_LEFT),
        claim=ctx.claim(),
        action=await _portal_action(ctx),
    )


async def _portal_action(ctx: PageContext) -> PortalAction | None:
    """Return the one action that a form is for; None opens the whole portal. Raises
    `ValidationError`, and the errors of `CustomerAccounts.find`.
    """
    match ctx.form.text("action"):
        case "payment_method":
            return NEW_PAYMENT_METHOD
        case "cancel":
            return cancellation(await _account_of_form(ctx))
        case "change":
            account = await _account_of_form(ctx)
            price_id = ctx.form.text("price")
            return change_of(account, price_id, _quantity(ctx), ctx.services.catalog)
    return None


async def _account_of_form(ctx: PageContext) -> CustomerAccount:
    tenant = await ctx.tenant()
    if tenant.stripe_customer_id is None:
        return CustomerAccount()
    return await ctx.services.customer_accounts.find(tenant.stripe_customer_id, tenant.updated_at)


def _quantity(ctx: PageContext) -> int | None:
    """Return the seats that a form asks for; None leaves them to the service. Raises
    `ValidationError`.
    """
    text = ctx.form.text("quantity")
    if not text:
        return None
    quantity = int(text) if text.isdecimal() and len(text) <= len(str(MOST_SEATS)) else 0
    if not 1 <= quantity <= MOST_SEATS:
        raise errors.ValidationError(("quantity", f"the seats must be 1 to {MOST_SEATS:,}"))
    return quantity


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
    current = next((one for one in billing.subscriptions if one.counts), None)
    provided = await _ask_provider(ctx, tenant, problem)
    return ctx.render(
        "billing.html",
        STATUSES[type(problem)] if problem else 200,
        tenant=tenant,
        billing=billing,
        grants=[(terms, given_words(terms, catalog)) for terms in billing.grants],
        features=catalog.features,
        entitlements=await services.entitlements.list_all(ctx.principal),
        current=current,
        offers=_offers(ctx, billing, current, provided.account),
        had_trial=await services.checkout.had_trial(ctx.principal),
        account=provided.account,
        account_problem=provided.problem,
        ends=is_ending(tenant),
        is_last_period=is_last_period(tenant),
        newest=newest,
        is_subscribed=billing.is_subscribed,
        is_configured=is_configured,
        problem=_error_text(ctx, problem) if problem else "",
        awaited=awaits if awaits in catalog else None,
    )


class _Provided(NamedTuple):
    """What the provider reported about the customer, or why it reported nothing."""

    account: CustomerAccount | None = None
    problem: str = ""


async def _ask_provider(
    ctx: PageContext, tenant: Tenant, problem: errors.DomainError | None
) -> _Provided:
    """Ask the provider about the customer, unless the page already reports an error of it."""
    customer_id = tenant.stripe_customer_id
    is_asked = problem is None or isinstance(problem, errors.ValidationError)
    if customer_id is None or not is_asked or not ctx.services.checkout.is_configured:
        return _Provided()
    try:
        account = await ctx.services.customer_accounts.find(customer_id, tenant.updated_at)
    except errors.DomainError as error:
        return _Provided(problem=error.detail)
    return _Provided(_shown_account(account, may_pay=ctx.user.may("billing:write")))


def _shown_account(account: CustomerAccount, *, may_pay: bool) -> CustomerAccount:
    """Leave out invalid addresses and, for users who may not pay, what is the payer's: the payment
    method, and the pages of invoices.
    """
    invoices = [
        each if may_pay and is_link(each.url) else msgspec.structs.replace(each, url=None)
        for each in account.invoices
    ]
    method = account.payment_method if may_pay else None
    return msgspec.structs.replace(account, payment_method=method, invoices=tuple(invoices))


def _offers(
    ctx: PageContext,
    billing: BillingOverview,
    current: SubscriptionLine | None,
    account: CustomerAccount | None,
) -> PlanCards:
    services = ctx.services
    is_configured = services.checkout.is_configured
    may_pay = is_configured and ctx.user.may("billing:write")
    sells = services.checkout.sells_to(is_subscribed=billing.is_subscribed)
    is_unknown = current is not None and not current.plan and bool(current.unknown_prices)
    tenant = billing.tenant
    situation = CardSituation(
        current=None if is_unknown else tenant.plan,
        account=account,
        may_subscribe=may_pay and sells,
        may_change=may_pay and not sells,
        is_lent=tenant.subscription_status == NO_SUBSCRIPTION and billing.plan_end is not None,
        lacks_role=is_configured and not may_pay,
        owes=bool(billing.debts) or tenant.subscription_status == INCOMPLETE,
    )
    return plan_cards(
        services.catalog,
        services.prices.of_plan,
        situation,
        ctx.query("every"),
        ctx.query("currency"),
    )


def _error_text(ctx: PageContext, problem: errors.DomainError) -> str:
    if isinstance(problem, errors.ValidationError):
        is_change = ctx.request.url.path.endswith(_PORTAL)
        what = "Nothing was changed" if is_change else "You cannot subscribe to this plan"
        return f"{what}: {'; '.join(message for _, message in problem.faults)}."
    if isinstance(problem, errors.IdempotencyMismatchError):
        return "This form was submitted before, and its details have changed since. Submit it again from this page."
    return problem.detail
