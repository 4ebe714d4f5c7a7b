"""The overview: a tenant's first page."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Final

import msgspec
from litestar import Response, get

from tenantry.accounts.overview import Overview
from tenantry.auth.usage import UsageSeries
from tenantry.billing.ledger_queries import HistoryEntry
from tenantry.dashboard.audit_entries import ShownEntry, names_of_users, shown_entries
from tenantry.dashboard.billing import is_ending, is_last_period
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.guards import ORG, PageGuard
from tenantry.domain.audit import Action
from tenantry.domain.billing.customer_account import NextCharge
from tenantry.domain.quotas import Quota
from tenantry.domain.tenants import Tenant

_MOST_CHANGES: Final = 8
_NOT_CHANGES: Final = frozenset(
    {
        Action.BILLING_CHECKOUT,
        Action.BILLING_PORTAL,
        Action.TENANT_EXPORTED,
        Action.INVITATION_ACCEPTED,
    }
)
"""Actions of the audit trail that change nothing, or nothing that another entry does not say: the
entry of the membership says that an invitation was accepted."""
_AT: Final = attrgetter("at")


class LatestChange(msgspec.Struct, frozen=True):
    """A change of a tenant: an entry of the billing history, or, by an author, of the audit
    trail.
    """

    at: datetime
    event: HistoryEntry | None = None
    entry: ShownEntry | None = None


@get(ORG, guards=[PageGuard()])
async def show_overview(ctx: Context) -> Response[str]:
    services = ctx.services
    overview = await services.overview.read(ctx.principal)
    entries = shown_entries(overview.entries, overview.names)
    return ctx.render(
        "overview.html",
        **await summary(ctx, overview),
        by_mail=services.invitations.is_enabled,
        sells=services.checkout.is_configured,
        latest=_latest_changes(overview, entries),
        users=await names_of_users(ctx, entries),
    )


async def summary(ctx: PageContext, overview: Overview) -> dict[str, object]:
    """Return the variables of the alerts and of the numbers, for the operator's page, too."""
    tenant = overview.billing.tenant
    return {
        "overview": overview,
        "tenant": tenant,
        "ends": is_ending(tenant),
        "is_last_period": is_last_period(tenant),
        "next_charges": _next_charges(ctx, tenant),
        "requests": await _requests(ctx),
        "quotas": await _quotas(ctx),
        "owner_address": await ctx.services.confirmations.of_tenant(ctx.principal),
    }


async def _requests(ctx: PageContext) -> UsageSeries | None:
    """Return the requests of the last 24 hours, if the user may read them."""
    if not ctx.user.may("usage:read"):
        return None
    return await ctx.services.usage.recent_hours(ctx.principal)


async def _quotas(ctx: PageContext) -> list[Quota]:
    """Return the quotas of the plan, if the user may read usage."""
    if not ctx.user.may("usage:read"):
        return []
    return await ctx.services.entitlements.quotas(ctx.principal)


def _next_charges(ctx: PageContext, tenant: Tenant) -> Sequence[NextCharge]:
    """Return the next charges, if the provider told them lately: this page does not wait for it."""
    customer_id = tenant.stripe_customer_id
    is_shown = ctx.services.checkout.is_configured and ctx.user.may("billing:read")
    if customer_id is None or not is_shown:
        return ()
    account = ctx.services.customer_accounts.known(customer_id, tenant.updated_at)
    return account.next_charges if account else ()


def _latest_changes(overview: Overview, entries: Iterable[ShownEntry]) -> list[LatestChange]:
    """Return what changed last, newest first: by events, and by users, keys and the operator."""
    by_events = [
        LatestChange(event.created, event)
        for event in overview.events
        if event.before != event.after
    ]
    by_people = [
        LatestChange(entry.event.at, entry=entry)
        for entry in entries
        if entry.event.action not in _NOT_CHANGES
    ]
    return sorted([*by_events, *by_people], key=_AT, reverse=True)[:_MOST_CHANGES]
