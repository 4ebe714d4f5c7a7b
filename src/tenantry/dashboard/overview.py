"""The overview of a tenant, and the start page, which redirects to one."""

from typing import Final

from litestar import Response, get

from tenantry.dashboard.context import Context
from tenantry.dashboard.guards import ORG, needs
from tenantry.dashboard.labels import EventLabels, role_label, subscription_status_label, will_end
from tenantry.domain.api_keys import SOON

_PROBLEMS: Final = {
    "unpaid": "The provider has stopped collecting the last invoice.",
    "incomplete": "The first payment is pending.",
    "incomplete_expired": "The first payment failed, so the subscription did not start.",
    "paused": "The subscription is paused at the provider.",
}


@get("/", guards=[needs()])
async def show_start(ctx: Context) -> Response[str]:
    user = ctx.user
    if not user.tenants:
        return ctx.redirect("/memberships") if user.invitations else ctx.render("no_organization.html")
    # the page of a suspended tenant is an error page, whose links lead back here
    tenants = [one.id for one in user.tenants if not one.suspended] or [one.id for one in user.tenants]
    preferred = (user.session.tenant_id, user.claims.org_id)  # the last visited one, then the provider's
    tenant_id = next((one for one in preferred if one in tenants), tenants[0])
    return ctx.redirect(f"/orgs/{tenant_id}/")


@get(ORG, guards=[needs()])
async def show_overview(ctx: Context) -> Response[str]:
    services, user = ctx.services, ctx.user
    overview = await services.overview.read(user.principal)
    tenant = overview.billing.tenant
    return ctx.render(
        "overview.html",
        tenant=tenant,
        overview=overview,
        use=overview.billing.use,
        plan=services.catalog.name(tenant.plan),
        limits=services.catalog.limits(tenant.plan),
        status=subscription_status_label(tenant.subscription_status),
        ends=will_end(tenant),
        problem=_PROBLEMS.get(tenant.subscription_status),
        role=role_label(user.role, user.principal),
        soon=SOON,
        owner_address=await services.confirmations.of_tenant(user.principal),
        anomalous=[event for event in overview.events if event.anomalies],
        is_new=not overview.events and not any(key.last_used_at for key in overview.keys),
        base_url=services.base_url,
        labels=EventLabels(services.catalog),
    )
