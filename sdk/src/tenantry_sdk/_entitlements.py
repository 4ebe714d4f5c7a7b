"""What `consume` does if the service is unreachable. Pure."""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec

from tenantry_sdk._models import Consumption
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
    denied = EntitlementDeniedError(
        _DENIAL["status"],
        code=_DENIAL["code"],
        detail=_DENIAL["detail"],
        request_id=error.request_id,
        headers={"content-type": "application/problem+json"},
        document=_DENIAL,
        content=msgspec.json.encode(_DENIAL),
    )
    denied.idempotency_key = error.idempotency_key
    return denied
