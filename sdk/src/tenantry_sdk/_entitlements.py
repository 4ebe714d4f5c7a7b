"""The requests of `consume` and `give_back`, and what follows from their failures. Pure."""

from __future__ import annotations

import sys
from typing import Any, Final, get_args

import msgspec

from tenantry_sdk._log import logger
from tenantry_sdk._models import Consumption
from tenantry_sdk._request import Call, body, creation, path, visible
from tenantry_sdk.errors import (
    APIError,
    ConnectionFailedError,
    EntitlementDeniedError,
    TenantryError,
)
from tenantry_sdk.types import OnUnavailable

NOT_COUNTED: Final = Consumption(used=None, remaining=None, resets_at=None)
"""The result of ``on_unavailable="allow"``."""

_UNAVAILABLE: Final = frozenset({408, 500, 502, 503, 504})
_DENIAL: Final[dict[str, Any]] = {
    "type": "urn:tenantry:problem:entitlement_unavailable",
    "title": "Forbidden",
    "status": 403,
    "detail": "The use of this feature cannot be counted at the moment.",
    "code": "entitlement_unavailable",
}


def consumption(feature: str, amount: int, idempotency_key: str | None) -> Call:
    """Return the request that counts the use of a feature. Raises `ValueError` for a feature or a
    key that is none.
    """
    address = path("/api/v1/entitlements/{}/consume", feature)
    return creation(address, body(amount=amount), idempotency_key)


def returning(feature: str, idempotency_key: str) -> Call:
    """Return the request that gives a use back. Raises `ValueError` for a feature or a key that is
    none.
    """
    key = visible(idempotency_key, "idempotency_key")
    return Call("DELETE", path("/api/v1/entitlements/{}/consumptions/{}", feature, key))


def note_failure(error: BaseException, feature: str, failure: Exception) -> None:
    """Say in the error of a block, and in the log, that the block's use is still counted."""
    text = f"The use of {feature} could not be given back: {failure}"
    if sys.version_info >= (3, 11):
        error.add_note(text)
    logger.warning("%s", text)


def checked_choice(on_unavailable: OnUnavailable) -> OnUnavailable:
    """Return the choice. Raises `ValueError` for one that is none."""
    if on_unavailable not in get_args(OnUnavailable):
        raise ValueError(f"on_unavailable is raise, allow or deny, not {on_unavailable!r}")
    return on_unavailable


def is_unavailable(error: TenantryError) -> bool:
    """Whether a call failed because the service is unreachable, overloaded or broken. It may have
    counted the use nevertheless.
    """
    if isinstance(error, APIError):
        return error.status_code in _UNAVAILABLE
    return isinstance(error, ConnectionFailedError)


def denial(error: TenantryError) -> EntitlementDeniedError:
    """Return the error of a use that is denied because of ``error``."""
    return EntitlementDeniedError(
        _DENIAL["status"],
        code=_DENIAL["code"],
        detail=_DENIAL["detail"],
        headers={"content-type": "application/problem+json"},
        document=_DENIAL,
        content=msgspec.json.encode(_DENIAL),
        request_id=error.request_id,
        idempotency_key=error.idempotency_key,
        after_lost_answer=error.after_lost_answer,
    )
