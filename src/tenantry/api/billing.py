"""Routes of billing: state, events, checkout and portal sessions."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from litestar import MediaType, Response, get, post
from litestar.params import JSONBody, QueryParameter
from msgspec import UNSET, UnsetType

from tenantry.api.guards import (
    AnyRequest,
    Caller,
    ChangeAuthor,
    IdempotencyClaim,
    has_caller,
    needs,
    needs_operator,
    needs_plan_access,
    raises,
)
from tenantry.api.operator import PATH as OPERATOR
from tenantry.api.parameters import DEFAULT_LIMIT, WEB_ADDRESS, Cursor, Limit, path_parameter
from tenantry.api.services import Services
from tenantry.api.tenants import TenantId
from tenantry.billing.checkout import LONGEST_URL
from tenantry.billing.prices import PriceList
from tenantry.common.encoding import doc
from tenantry.db.pagination import Page
from tenantry.domain.billing.explanation import BillingEventView, BillingExplanation
from tenantry.domain.checkout import (
    CURRENCY,
    MOST_ADDONS,
    AddonOrder,
    CheckoutOrder,
    Quantity,
)
from tenantry.domain.features import FeatureValue
from tenantry.domain.plans import Catalog, Limits, Plan
from tenantry.domain.prices import PlanPrice
from tenantry.server.compression import PublicBody
from tenantry.server.waiting_paths import MAY_WAIT

PLANS_PATH: Final = "/api/v1/plans"
EVENTS_PATH: Final = "/api/v1/billing/events"
CHECKOUT_PATH: Final = "/api/v1/billing/checkout-sessions"
PORTAL_PATH: Final = "/api/v1/billing/portal-sessions"
_MOST_EXPLAINED: Final = 10_000
_PUBLIC: Final = "public, max-age=300"
_NOT_KEPT: Final = "no-store"
"""Until the prices are known: a cache would hide them for minutes."""

_operator = needs_operator()

EventId = Annotated[str, path_parameter("The provider's event id.", "evt_1SQk7xLm3Rk2pXw7")]
WebAddress = Annotated[
    str,
    msgspec.Meta(max_length=LONGEST_URL, pattern=WEB_ADDRESS, description="An http(s) address."),
]


class PlanView(msgspec.Struct, frozen=True, rename="camel"):
    """A plan of the catalog. ``stripePriceId`` is the first of its prices, null where it has
    none.
    """

    id: Annotated[str, doc("The plan's id, as in a tenant's `plan`.", "pro")]
    name: Annotated[str, doc("The display name.", "Pro")]
    stripe_price_id: Annotated[
        str | None,
        doc(
            "The first price of the payment provider that means this plan; null if there is none.",
            "price_pro",
        ),
    ]
    limits: Annotated[Limits, doc("What the plan allows; an absent limit means no limit.")]
    prices: Annotated[
        tuple[PlanPrice, ...] | UnsetType,
        doc(
            "The prices at which the plan is sold, read from the payment provider at the start and "
            "every hour; absent until they are known, and without `PROVIDER_SECRET_KEY`.",
            [
                {
                    "id": "price_pro",
                    "interval": "month",
                    "intervalCount": 1,
                    "currency": "eur",
                    "amount": 2900,
                    "currencies": [
                        {"currency": "eur", "amount": 2900},
                        {"currency": "usd", "amount": 3100},
                    ],
                }
            ],
        ),
    ] = UNSET
    features: Annotated[
        Mapping[str, FeatureValue] | UnsetType,
        doc(
            "What the plan gives of each feature: a number, or true, which has no limit. An absent "
            "feature is denied. Absent where the catalog has no features.",
            {"sso": True, "seats": 5},
        ),
    ] = UNSET


class NewCheckoutSession(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The plan to subscribe to, with its price, quantity and add-ons, and where the provider sends
    the buyer afterwards (by default to this service).
    """

    plan: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=64,
            description="The id of a plan with a price.",
            examples=["pro"],
        ),
    ]
    price: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None,
        doc("One of the plan's prices; by default its first.", "price_pro_yearly"),
    ] = None
    quantity: Annotated[
        Quantity | None,
        doc(
            "How many of the plan, only 1 of a metered price; by default 1, or the active members "
            "where its seats follow them.",
            5,
        ),
    ] = None
    addons: Annotated[
        tuple[AddonOrder, ...],
        msgspec.Meta(
            max_length=MOST_ADDONS,
            description="Add-ons of the catalog, each once; each is sold at its first price.",
        ),
    ] = ()
    currency: Annotated[
        Annotated[str, msgspec.Meta(min_length=3, max_length=3, pattern=CURRENCY)] | None,
        doc(
            "One of the price's `currencies`; by default the payment provider decides.",
            "usd",
        ),
    ] = None
    success_url: Annotated[WebAddress | None, doc(example="https://app.acme.example/welcome")] = (
        None
    )
    cancel_url: Annotated[WebAddress | None, doc(example="https://app.acme.example/plans")] = None


class NewPortalSession(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Where the provider's portal sends the user back to (by default to this service)."""

    return_url: Annotated[WebAddress | None, doc(example="https://app.acme.example/settings")] = (
        None
    )


class SessionAddress(msgspec.Struct, frozen=True):
    """The address of a provider session."""

    url: Annotated[
        str,
        doc(
            "The address to send the browser to. It expires, and anyone who has it acts for the tenant there.",
            "https://checkout.stripe.com/c/pay/cs_live_a1B2c3",
        ),
    ]


@get(PLANS_PATH, guards=[needs_plan_access()], summary="List the plans")
async def list_plans(request: AnyRequest, services: Services) -> Response[Page[PlanView]]:
    """List the plans of the catalog on one page.

    With `PUBLIC_PLANS=true` this needs no credential.
    """
    page = Page(_plan_views(services.catalog, services.prices), None)
    if has_caller(request):
        return Response(page)
    return _public(page, request, _NOT_KEPT if services.prices.is_awaited else _PUBLIC)


def _public(page: Page[PlanView], request: AnyRequest, caching: str) -> Response[Any]:
    """Return the answer to a client without a credential: compressed, and for shared caches."""
    body = PublicBody.for_once(msgspec.json.encode(page))
    headers = {"Content-Type": MediaType.JSON, "Cache-Control": caching}
    return body.response(request, headers)


def _plan_views(catalog: Catalog, price_list: PriceList) -> list[PlanView]:
    return [_plan_view(plan, catalog, price_list) for plan in catalog.plans]


def _plan_view(plan: Plan, catalog: Catalog, price_list: PriceList) -> PlanView:
    prices = price_list.of_plan(plan)
    return PlanView(
        plan.id,
        plan.name,
        next(iter(plan.stripe_price_ids), None),
        plan.limits,
        UNSET if prices is None else prices,
        plan.features if catalog.features else UNSET,
    )


@get(EVENTS_PATH, guards=[needs("billing:read")], summary="List billing events")
async def list_billing_events(
    services: Services, principal: Caller, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[BillingEventView]:
    """List the tenant's billing events and their effect, newest first."""
    return await services.billing.list_events(principal, limit, cursor)


@get(
    EVENTS_PATH + "/{event_id:str}",
    guards=[needs("billing:read")],
    summary="Get a billing event",
)
async def get_billing_event(
    services: Services, principal: Caller, event_id: EventId
) -> BillingEventView:
    """Return one event of the caller's tenant by the provider's id."""
    return await services.billing.get_event(principal, event_id)


@get(
    OPERATOR + "/tenants/{tenant_id:str}/explanation",
    guards=[_operator],
    summary="Explain a tenant's billing state (operator)",
)
async def explain_tenant(
    services: Services,
    tenant_id: TenantId,
    limit: Annotated[
        int,
        QueryParameter(
            name="limit",
            ge=1,
            le=_MOST_EXPLAINED,
            description="At most this many events, the newest.",
        ),
    ] = 100,
) -> BillingExplanation:
    """Return why a tenant, also an ended one, has its plan and status: each event, oldest first,
    what it changed and why.
    """
    return await services.operator_ledger.explain(tenant_id, limit)


@get(
    OPERATOR + "/billing-events/{event_id:str}/body",
    guards=[_operator],
    summary="Get the body of a billing event (operator)",
)
async def get_billing_event_body(services: Services, event_id: EventId) -> Response[Any]:
    """Return what the provider sent for an event of any tenant, byte for byte.

    `RAW_BODIES` says whose bodies are stored, `RAW_BODY_DAYS` how long.
    """
    return Response(
        await services.operator_ledger.get_body(event_id), headers={"Cache-Control": "no-store"}
    )


@post(
    CHECKOUT_PATH,
    guards=[needs("billing:write", in_quota=False, is_use=True)],
    summary="Begin a checkout",
    opt=raises(
        "currency_not_available",
        "subscription_exists",
        "provider_not_configured",
        "provider_refused",
        "provider_unavailable",
    )
    | MAY_WAIT,
)
async def create_checkout_session(
    services: Services,
    principal: Caller,
    author: ChangeAuthor,
    claim: IdempotencyClaim,
    data: JSONBody[NewCheckoutSession],
) -> Response[SessionAddress]:
    """Create a checkout at the payment provider for a plan.

    Send the browser to `url`. Prices, quantities and add-ons are those of the request; the amounts
    are the provider's. A plan of the catalog with `trial_days` begins with a trial, once in a
    tenant's life. The plan changes when the provider's event arrives. A tenant with
    a subscription that has not ended changes it in the customer portal; only with
    `SUBSCRIPTIONS=each` may it begin another. Without `each`, a new checkout ends the tenant's
    earlier one: its page has expired.
    """
    url = await services.checkout.create_checkout(
        principal,
        author,
        CheckoutOrder(data.plan, data.price, data.quantity, data.addons, data.currency),
        success_url=data.success_url,
        cancel_url=data.cancel_url,
        claim=claim,
    )
    return _shown(url)


@post(
    PORTAL_PATH,
    guards=[needs("billing:write", in_quota=False, is_use=True)],
    summary="Open the customer portal",
    opt=raises(
        "no_customer",
        "provider_not_configured",
        "provider_refused",
        "provider_unavailable",
    )
    | MAY_WAIT,
)
async def create_portal_session(
    services: Services,
    principal: Caller,
    author: ChangeAuthor,
    claim: IdempotencyClaim,
    data: JSONBody[NewPortalSession | None] = None,
) -> Response[SessionAddress]:
    """Open the payment provider's portal, in which the tenant changes its payment method or
    cancels.
    """
    return_url = data.return_url if data else None
    return _shown(
        await services.checkout.create_portal(
            principal,
            author,
            return_url=return_url,
            claim=claim,
        )
    )


def _shown(url: str) -> Response[SessionAddress]:
    return Response(SessionAddress(url), headers={"Cache-Control": "no-store"})
