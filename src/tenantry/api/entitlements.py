"""Routes of entitlements: the features of the caller's tenant, and consuming metered ones."""

from typing import Annotated, Final

import msgspec
from litestar import get, post
from litestar.params import JSONBody

from tenantry.api.guards import Caller, IdempotencyClaim, needs, raises
from tenantry.api.parameters import path_parameter
from tenantry.api.services import Services
from tenantry.db.pagination import Page
from tenantry.domain.entitlements import MOST_AT_ONCE, Consumed, Entitlement

PATH: Final = "/api/v1/entitlements"

FeatureName = Annotated[str, path_parameter("The feature's id in the catalog.", "exports")]


class Consumption(msgspec.Struct, forbid_unknown_fields=True):
    """What to consume of a feature."""

    amount: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=MOST_AT_ONCE,
            description="How much, in the feature's unit.",
            examples=[1],
        ),
    ]


@get(PATH, guards=[needs(None, in_quota=False)], summary="List the entitlements")
async def list_entitlements(services: Services, principal: Caller) -> Page[Entitlement]:
    """List what the caller's tenant has of each feature of the catalog, on one page.

    A test-mode credential sees the use in test mode, which is counted apart.
    """
    return Page(await services.entitlements.list_all(principal), None)


@get(
    PATH + "/{feature:str}",
    guards=[needs(None, in_quota=False)],
    summary="Get an entitlement",
    opt=raises("unknown_feature"),
)
async def get_entitlement(
    services: Services, principal: Caller, feature: FeatureName
) -> Entitlement:
    """Return what the caller's tenant has of one feature."""
    return await services.entitlements.get(principal, feature)


@post(
    PATH + "/{feature:str}/consume",
    guards=[needs(None, in_quota=False)],
    status_code=200,
    summary="Consume a metered feature",
    opt=raises("unknown_feature", "feature_not_metered", "feature_not_granted", "quota_exceeded"),
)
async def consume_feature(
    services: Services,
    principal: Caller,
    claim: IdempotencyClaim,
    feature: FeatureName,
    data: JSONBody[Consumption],
) -> Consumed:
    """Count the use of a metered feature, if as much is left; otherwise nothing is counted.

    Send an `Idempotency-Key`: a repeated request then counts once, whichever of the tenant's keys
    and users sends it (live and test mode are apart). Consume before you do the work, with an id of
    that work as the key.
    """
    return await services.entitlements.consume(principal, feature, data.amount, claim)
