"""The operator's list of customers, and the search for one."""

from collections.abc import Sequence
from typing import Final, get_args
from urllib.parse import urlencode

import msgspec
from litestar import Response, get

from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.guards import CONFIRMED, OPERATOR_PAGES, PageGuard
from tenantry.dashboard.labels import isolated, labels
from tenantry.dashboard.pager import requested_page
from tenantry.dashboard.sign_in import start_path
from tenantry.db.numbered_pages import PageRequest
from tenantry.domain.plans import AccessState
from tenantry.domain.tenant_search import TenantFilter, TenantMatch
from tenantry.domain.tenants import ManagedTenant
from tenantry.domain.usage import UsageInterval

_PAGE_SIZE: Final = 25
_MOST_CHARACTERS: Final = 200
_MOST_EXACT: Final = 25
_MOST_SUGGESTED: Final = 5
_SUSPENDED: Final = {"yes": True, "no": False}


class ShownCustomer(msgspec.Struct, frozen=True):
    """A row of the list: a customer, and in a search what it was found by."""

    tenant: ManagedTenant
    matches: Sequence[TenantMatch] = ()


class ExactMatches(msgspec.Struct, frozen=True):
    """The customers that a search text names as a whole; ``left_out`` are more than the page
    shows.
    """

    customers: Sequence[ShownCustomer] = ()
    left_out: int = 0


@get(OPERATOR_PAGES, guards=[PageGuard()])
async def show_customers(ctx: Context) -> Response[str]:
    text = ctx.query("search")[:_MOST_CHARACTERS]
    shown = ctx.services.operator_keys.key_format.without_secret(text)
    if shown != text:  # so that a pasted secret stays in no address
        return ctx.redirect(f"{OPERATOR_PAGES}?{urlencode({'search': shown})}")
    wanted = _wanted(ctx, text)
    request = requested_page(ctx, _PAGE_SIZE)
    page = await ctx.services.directory.search_page(wanted, request)
    exact = ExactMatches()
    if wanted.search is not None and request == PageRequest(_PAGE_SIZE):
        exact = await _exact_matches(ctx, wanted, wanted.search)
    customers = [*exact.customers, *_others(page.data, exact, wanted.search)]
    ids = [each.tenant.id for each in customers]
    return ctx.render(
        "operator_customers.html",
        customers=customers,
        left_out=exact.left_out,
        page=page,
        filters=_shown_filters(ctx, wanted),
        plans=[(plan.id, isolated(plan.name)) for plan in ctx.services.catalog.plans],
        usage=await ctx.services.usage.recent_of_tenants(ids),
        this_hour=UsageInterval.HOUR.begin(ctx.services.clock()),
    )


@get(CONFIRMED, guards=[PageGuard()])
async def show_confirmed(ctx: Context) -> Response[str]:
    is_confirmed = ctx.sessions.is_confirmed(ctx.user)
    return ctx.render(
        "operator_confirmed.html",
        200 if is_confirmed else 403,
        is_confirmed=is_confirmed,
        confirm_path=start_path(CONFIRMED, again=True),
    )


async def first_customers(ctx: PageContext, text: str) -> list[ManagedTenant]:
    """Return the customers that a search shows first."""
    wanted = TenantFilter(search=text)
    exact = await _exact_matches(ctx, wanted, text)
    page = await ctx.services.directory.search_page(wanted, PageRequest(_MOST_SUGGESTED))
    rows = [*exact.customers, *_others(page.data, exact, None)]
    return [row.tenant for row in rows[:_MOST_SUGGESTED]]


def _wanted(ctx: PageContext, text: str) -> TenantFilter:
    """Return the filter of the query; a value that is none of a list's means any."""
    plan, status, access = (ctx.query(name) for name in ("plan", "status", "access"))
    return TenantFilter(
        search=text or None,
        plan=plan if plan in {each.id for each in ctx.services.catalog.plans} else None,
        status=status if status in labels().subscription_statuses else None,
        access=msgspec.convert(access, AccessState) if access in get_args(AccessState) else None,
        suspended=_SUSPENDED.get(ctx.query("suspended")),
    )


def _shown_filters(ctx: PageContext, wanted: TenantFilter) -> dict[str, str | None]:
    """Return the filter as the parameters of an address."""
    is_suspended = None if wanted.suspended is None else ctx.query("suspended")
    return {**msgspec.structs.asdict(wanted), "suspended": is_suspended}


async def _exact_matches(ctx: PageContext, wanted: TenantFilter, text: str) -> ExactMatches:
    """Find the customers that the text names, among those that match the other filters."""
    found = await ctx.services.directory.find(text, _MOST_EXACT)
    found = [match for match in found if _meets(match.tenant, wanted)]
    by_tenant = dict[str, list[TenantMatch]]()
    for match in found:
        by_tenant.setdefault(match.tenant.id, []).append(match)
    customers = [ShownCustomer(matches[0].tenant, matches) for matches in by_tenant.values()]
    return ExactMatches(customers[:_MOST_EXACT], max(0, len(customers) - _MOST_EXACT))


def _meets(tenant: ManagedTenant, wanted: TenantFilter) -> bool:
    """Whether a tenant matches the filters other than the text."""
    pairs = (
        (wanted.plan, tenant.plan),
        (wanted.status, tenant.subscription_status),
        (wanted.access, tenant.access.state),
        (wanted.suspended, tenant.suspended),
    )
    return all(given in (None, actual) for given, actual in pairs)


def _others(
    tenants: Sequence[ManagedTenant], exact: ExactMatches, text: str | None
) -> list[ShownCustomer]:
    """Return the rows of a page that are no exact matches."""
    known = {each.tenant.id for each in exact.customers}
    return [
        ShownCustomer(tenant, _parts(tenant, text.casefold())[:1] if text else ())
        for tenant in tenants
        if tenant.id not in known
    ]


def _parts(tenant: ManagedTenant, text: str) -> list[TenantMatch]:
    """Return which of a tenant's texts contain ``text``, what the list shows anyway first."""
    texts = {
        "name": tenant.name,
        "id": tenant.id,
        "email": tenant.owner_email,
        "customer": tenant.stripe_customer_id or "",
    }
    return [
        TenantMatch(found_by, given, tenant)
        for found_by, given in texts.items()
        if text in given.casefold()
    ]
