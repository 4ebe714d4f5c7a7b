"""The first page of a tenant, and where one goes from the root."""

from collections.abc import Sequence
from typing import Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from tenantry.accounts.overview import Overview, OverviewService
from tenantry.accounts.owner_addresses import OwnerConfirmations
from tenantry.common.clock import Clock
from tenantry.dashboard.api_key_pages import may_replace
from tenantry.dashboard.guards import ORG, SessionGuard, SignedIn
from tenantry.dashboard.labels import LedgerWords, role_in_words, status_in_words, will_end
from tenantry.dashboard.memberships import PATH as MEMBERSHIPS
from tenantry.dashboard.renderer import Renderer
from tenantry.domain.api_keys import SOON
from tenantry.domain.plans import Catalog

_TROUBLE: Final = {
    "unpaid": "The provider has given up collecting the last invoice.",
    "incomplete": "The first payment has not come in yet.",
    "incomplete_expired": "The first payment never came, so the subscription did not begin.",
    "paused": "The subscription is paused at the provider.",
}


def overview_pages(
    overview: OverviewService,
    confirmations: OwnerConfirmations,
    catalog: Catalog,
    door: SessionGuard,
    look: Renderer,
    *,
    base_url: str,
    clock: Clock,
) -> Sequence[HTTPRouteHandler]:
    """The routes of the root and of a tenant's first page."""
    words = LedgerWords(catalog)

    @get("/", guards=[door.needs()])
    async def show_start(visitor: SignedIn) -> Response[str]:
        if not visitor.tenants:
            return look.redirect(MEMBERSHIPS) if visitor.invitations else look.page("no_tenant.html", visitor=visitor)
        # a suspended one shows nothing, so every way back would lead to nothing again
        tenants = [one.id for one in visitor.tenants if not one.suspended] or [one.id for one in visitor.tenants]
        # the one of last time, then the provider's own
        wanted = (visitor.session.tenant_id, visitor.claims.org_id)
        known = next((one for one in wanted if one in tenants), tenants[0])
        return look.redirect(f"/orgs/{known}/")

    @get(ORG, guards=[door.needs()])
    async def show_overview(visitor: SignedIn) -> Response[str]:
        found = await overview.read(visitor.principal)
        tenant = found.billing.tenant
        return look.page(
            "overview.html",
            visitor=visitor,
            section="/",
            tenant=tenant,
            use=found.billing.use,
            plan=catalog.name(tenant.plan),
            limits=catalog.limits(tenant.plan),
            status=status_in_words(tenant),
            ends=will_end(tenant),
            trouble=_TROUBLE.get(tenant.subscription_status),
            role=role_in_words(visitor.role, visitor.principal),
            found=found,
            soon=SOON,
            may_replace=lambda key: may_replace(visitor, key),
            owner_address=await confirmations.of_tenant(visitor.principal),
            odd=[event for event in found.events if event.anomalies],
            is_new=_is_new(found),
            base_url=base_url,
            now=clock(),
            words=words,
        )

    return [show_start, show_overview]


def _is_new(found: Overview) -> bool:
    """Whether nothing has been done with the tenant yet."""
    return not found.events and not any(key.last_used_at for key in found.keys)
