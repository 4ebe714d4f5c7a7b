"""Routes of billing: the plans and the tenant's ledger."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter

from tenantry.api.guards import Access, Caller
from tenantry.api.parameters import DEFAULT_LIMIT, Cursor, Limit
from tenantry.billing.reads import BillingEventView, BillingService
from tenantry.domain.pages import Page
from tenantry.domain.plans import Catalog, Limits

PLANS_PATH: Final = "/api/v1/plans"
EVENTS_PATH: Final = "/api/v1/billing/events"

EventId = Annotated[str, PathParameter(description="The provider's event id.")]


class PlanView(msgspec.Struct, frozen=True, rename="camel"):
    """A plan of the catalog. ``stripePriceId`` is the first of its prices, null where it has none."""

    id: str
    name: str
    stripe_price_id: str | None
    limits: Limits


def billing_routes(billing: BillingService, catalog: Catalog, access: Access) -> Sequence[HTTPRouteHandler]:
    """The routes that read plans and the ledger."""

    @get(PLANS_PATH, guards=[access.needs(None)], summary="List the plans")
    async def list_plans() -> Page[PlanView]:
        plans = [
            PlanView(plan.id, plan.name, next(iter(plan.stripe_price_ids), None), plan.limits) for plan in catalog.plans
        ]
        return Page(plans, None)

    @get(EVENTS_PATH, guards=[access.needs("billing:read")], summary="List billing events")
    async def list_billing_events(
        principal: Caller, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
    ) -> Page[BillingEventView]:
        return await billing.list_events(principal, limit, cursor)

    @get(EVENTS_PATH + "/{event_id:str}", guards=[access.needs("billing:read")], summary="Get a billing event")
    async def get_billing_event(principal: Caller, event_id: EventId) -> BillingEventView:
        return await billing.get_event(principal, event_id)

    return [list_plans, list_billing_events, get_billing_event]
