"""The overview: a tenant's first page."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Final

import msgspec
from litestar import Response, get

from tenantry.accounts.overview import Overview
from tenantry.auth.usage import UsageSeries
from tenantry.billing.ledger_queries import BillingEventView
from tenantry.dashboard.audit_entries import ShownEntry, names_of_users, shown_entries
from tenantry.dashboard.billing import is_ending, is_last_period
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.guards import ORG, needs
from tenantry.dashboard.labels import Change, changes
from tenantry.domain.audit import Action
from tenantry.domain.billing.customer_account import NextCharge
from tenantry.domain.plans import Catalog
from tenantry.domain.tenants import Tenant

_MOST_CHANGES: Final = 8
_NEWEST_EVENTS: Final = 5
"""Only anomalies of these are an alert."""
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
    """A change of a tenant: by a billing event, with the fields that it changed, or by an author,
    as an entry of the audit trail.
    """

    at: datetime
    event: BillingEventView | None = None
    fields: Sequence[Change] = ()
    entry: ShownEntry | None = None


@get(ORG, guards=[needs()])
async def show_overview(ctx: Context) -> Response[str]:
    services = ctx.services
    overview = await services.overview.read(ctx.principal)
    tenant = overview.billing.tenant
    entries = shown_entries(overview.entries, overview.names)
    return ctx.render(
        "overview.html",
        tenant=tenant,
        overview=overview,
        ends=is_ending(tenant),
        is_last_period=is_last_period(tenant),
        next_charges=_next_charges(ctx, tenant),
        requests=await _requests(ctx),
        by_mail=services.invitations.is_enabled,
        sells=services.checkout.is_configured,
        owner_address=await services.confirmations.of_tenant(ctx.principal),
        anomalous=_by_anomaly(overview.events[:_NEWEST_EVENTS]),
        latest=_latest_changes(overview, entries, services.catalog),
        users=await names_of_users(ctx, entries),
    )


async def _requests(ctx: PageContext) -> UsageSeries | None:
    """Return the requests of the last 24 hours, if the user may read them."""
    if not ctx.user.may("usage:read"):
        return None
    return await ctx.services.usage.recent_hours(ctx.principal)


def _next_charges(ctx: PageContext, tenant: Tenant) -> Sequence[NextCharge]:
    """Return the next charges, if the provider told them lately: this page does not wait for it."""
    customer_id = tenant.stripe_customer_id
    is_shown = ctx.services.checkout.is_configured and ctx.user.may("billing:read")
    if customer_id is None or not is_shown:
        return ()
    account = ctx.services.customer_accounts.known(customer_id, tenant.updated_at)
    return account.next_charges if account else ()


def _by_anomaly(events: Iterable[BillingEventView]) -> dict[str, list[BillingEventView]]:
    """Return the events that have an anomaly, by the first one of each."""
    found: dict[str, list[BillingEventView]] = {}
    for event in events:
        if event.anomalies:
            found.setdefault(event.anomalies[0], []).append(event)
    return found


def _latest_changes(
    overview: Overview, entries: Iterable[ShownEntry], catalog: Catalog
) -> list[LatestChange]:
    """Return what changed last, newest first: by events, and by users, keys and the operator."""
    by_events = [_by_event(event, catalog) for event in overview.events]
    by_people = [
        LatestChange(entry.event.at, entry=entry)
        for entry in entries
        if entry.event.action not in _NOT_CHANGES
    ]
    visible = [change for change in by_events if change.fields]
    return sorted([*visible, *by_people], key=_AT, reverse=True)[:_MOST_CHANGES]


def _by_event(event: BillingEventView, catalog: Catalog) -> LatestChange:
    return LatestChange(event.created, event, changes(event.before, event.after, catalog))
