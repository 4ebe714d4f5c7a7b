"""Routes of entitlements: the features of the caller's tenant, consuming metered ones, and giving
back.
"""

from typing import Annotated, Final
from urllib.parse import unquote_to_bytes

import msgspec
from litestar import delete, get, post
from litestar.params import JSONBody

from tenantry.api.guards import (
    AnyRequest,
    Caller,
    IdempotencyClaim,
    needs,
    needs_acting_operator,
    raises,
    stored_key,
)
from tenantry.api.operator_access import VISIBLE
from tenantry.api.parameters import path_parameter
from tenantry.api.services import Services
from tenantry.db.pagination import Page
from tenantry.domain.entitlements import MOST_AT_ONCE, Consumed, Entitlement
from tenantry.domain.errors import NotFoundError, UnknownConsumptionError

PATH: Final = "/api/v1/entitlements"
_CONSUMPTIONS: Final = PATH + "/{feature:str}/consumptions"
_SEGMENTS_BEFORE_KEY: Final = 6

FeatureName = Annotated[str, path_parameter("The feature's id in the catalog.", "exports")]
SentKey = Annotated[
    str,
    path_parameter(
        "The `Idempotency-Key` of the consumption, percent-encoded, slashes too.", "export-7"
    ),
]


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
    guards=[needs(None, in_quota=False, is_use=True)],
    status_code=200,
    summary="Consume a metered feature",
    opt=raises(
        "unknown_feature",
        "feature_not_metered",
        "feature_not_granted",
        "quota_exceeded",
        "consumption_given_back",
    ),
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


# A parameter of the kind ``path``, because the path is decoded before it is split.
@delete(
    _CONSUMPTIONS + "/{idempotency_key:path}",
    guards=[needs_acting_operator()],
    status_code=200,
    summary="Give back a consumption",
    opt=raises("operator_required", "unknown_consumption"),
)
async def give_back_consumption(
    services: Services,
    principal: Caller,
    request: AnyRequest,
    feature: FeatureName,
    idempotency_key: SentKey,  # noqa: ARG001  # without repeated slashes
) -> Consumed:
    """Give back what a consumption with an `Idempotency-Key` took, for work that failed: once, for
    24 hours, whichever credential consumed.

    Repeated, the answer is the same. What an earlier period counted goes back to that period. The
    key is used up: repeat the work with a new one.
    """
    return await services.entitlements.give_back(principal, feature, _sent_key(request))


@delete(_CONSUMPTIONS, guards=[needs_acting_operator()], status_code=200, include_in_schema=False)
async def give_back_consumption_of_slashes(
    services: Services, principal: Caller, request: AnyRequest, feature: FeatureName
) -> Consumed:
    """Do the same where the key has slashes alone, of which the router leaves nothing."""
    return await services.entitlements.give_back(principal, feature, _sent_key(request))


def _sent_key(request: AnyRequest) -> str:
    """Return the idempotency key of a path, as it is stored. Raises `NotFoundError` for a path with
    another segment, which a proxy may have decoded, and `UnknownConsumptionError` for what cannot
    be a key.
    """
    raw_path = request.scope.get("raw_path") or request.url.path.encode()
    _, *before, sent = raw_path.split(b"/", _SEGMENTS_BEFORE_KEY)
    if len(before) < _SEGMENTS_BEFORE_KEY - 1 or b"/" in sent:
        raise NotFoundError("address")
    key = unquote_to_bytes(sent)
    if not VISIBLE.fullmatch(key):
        raise UnknownConsumptionError
    return stored_key(request, key)
