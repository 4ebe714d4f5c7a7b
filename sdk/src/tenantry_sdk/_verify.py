"""The check of another caller's credential: its request, its result and its errors. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from tenantry_sdk._models import CheckedCaller
from tenantry_sdk._request import Call
from tenantry_sdk._response import PASSED_ON, Response, converted
from tenantry_sdk._secret import Secret
from tenantry_sdk.errors import (
    APIError,
    ConnectionFailedError,
    TenantryError,
    UnavailableError,
    UnreadableAnswerError,
)
from tenantry_sdk.types import AcceptedMode

P = TypeVar("P", bound=CheckedCaller)
Headers = (
    Mapping[str, str]
    | Mapping[bytes, bytes]
    | Iterable[tuple[str, str]]
    | Iterable[tuple[bytes, bytes]]
)

_SCOPE: Final = re.compile(r"([a-z][a-z0-9_-]{0,31}|\*):([a-z][a-z0-9_-]{0,31}|\*)")
_PATHS: Final[dict[str, str]] = {"live": "", "test": "/mode/test", "any": "/mode/any"}
_FEATURE: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
_INVISIBLE: Final = re.compile(r"[^\x20-\x7e]")
_LONGEST: Final = 16_500
"""A token has at most 16,384 bytes."""
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
PRINCIPAL_HEADERS: Final = {
    "kind": "x-principal-kind",
    "id": "x-principal-id",
    "orgId": "x-tenant-id",
    "mode": "x-mode",
    "plan": "x-plan",
    "subscriptionStatus": "x-subscription-status",
}
ACCESS_HEADERS: Final = {"state": "x-access", "plan": "x-effective-plan"}
_EXTERNAL_ID: Final = "x-key-external-id"
_FEATURES: Final = "x-features"
_MORE: Final = "..."
"""The end of a list of features from which some were cut."""
_OK: Final = 200
_UNKNOWN: Final = "unknown"
"""Instead of an address (RFC 7239, section 6.2). Without the header, the service would take the
sender of the check for the client.
"""
_UNKNOWN_FEATURE: Final = "unknown_feature"
"""The code of a 404 about the check's ``feature``; another 404 is of another server."""
_TEMPORARY: Final = frozenset({408, 429})
_UNAVAILABLE: Final[dict[str, Any]] = {
    "type": "urn:tenantry:problem:auth_unavailable",
    "title": "Service Unavailable",
    "status": 503,
    "detail": "The credential cannot be checked at the moment.",
    "code": "auth_unavailable",
}


def verify_call(
    headers: Headers,
    scope: str | None,
    feature: str | None,
    mode: AcceptedMode,
    client_address: str | None,
    api_key_header: str | None,
) -> Call:
    """Return the request that checks the credential in a request's headers.

    The service decides about a header that is missing, repeated or malformed: characters that no
    header carries become ``?``, which is in no valid credential. Raises `ValueError` for a scope,
    feature, mode or header's name that is none, and `TypeError` for a string in place of headers.
    """
    if scope is not None and not _SCOPE.fullmatch(scope):
        raise ValueError(f"{scope!r} is not a scope such as projects:read")
    if feature is not None and not _FEATURE.fullmatch(feature):
        raise ValueError(f"{feature!r} is not the id of a feature")
    if mode not in _PATHS:
        raise ValueError(f"mode is live, test or any, not {mode!r}")
    needed = "-" if scope is None else scope
    if feature is not None:
        needed += f"/feature:{feature}"
    given = _given(headers, api_key_header)
    credential = given.get("authorization")
    return Call(
        "GET",
        f"/api/v1/auth/verify/{needed}{_PATHS[mode]}",
        headers=_sent(given, client_address),
        authorization=Secret(credential) if credential else None,
        secret_headers=_sent_key(given, api_key_header),
        is_anonymous=True,
        is_check=True,
    )


def _sent_key(given: dict[str, str], api_key_header: str | None) -> dict[str, Secret | None]:
    """Return the caller's header for API keys, so that none of the client's own is sent."""
    if api_key_header is None:
        return {}
    key = given.get(api_key_header.lower())
    return {api_key_header: Secret(key) if key else None}


def _sent(given: dict[str, str], client_address: str | None) -> dict[str, str]:
    """Return the headers of the check, beside the credential."""
    sent: dict[str, str] = {}
    if organization := given.get("x-organization-id"):
        sent["X-Organization-Id"] = organization
    if _REQUEST_ID.fullmatch(request_id := given.get("x-request-id", "")):
        sent["X-Request-Id"] = request_id
    sent["X-Forwarded-For"] = _address_of(client_address or "")
    return sent


def sent_by(caller: CheckedCaller, check: Call, call: Call) -> Call:
    """Return a request with the credential that a check accepted, for the caller's tenant, and as
    from the caller's address.
    """
    return msgspec.structs.replace(
        call,
        headers={**check.headers, "X-Organization-Id": caller.org_id},
        authorization=check.authorization,
        secret_headers=check.secret_headers,
        is_anonymous=True,
    )


def principal_of(response: Response, kind: type[P]) -> P:
    """Return the caller that the service accepted. Raises `UnreadableAnswerError` if something else
    answered.
    """
    headers = response.headers
    identity = _values_in(headers, PRINCIPAL_HEADERS)
    access = _values_in(headers, ACCESS_HEADERS)
    if response.status_code != _OK or identity is None or access is None:
        raise _unreadable(response.status_code, response.request_id)
    features = [name for name in headers.get(_FEATURES, "").split(",") if name]
    document = {
        **identity,
        "access": access,
        "externalId": headers.get(_EXTERNAL_ID) or None,
        "features": [name for name in features if name != _MORE],
        "featuresCut": _MORE in features,
    }
    principal: P = converted(document, kind, response)
    return principal


def _values_in(headers: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str] | None:
    """Return the values of headers by their fields; None if one is missing."""
    found = {field: headers.get(name, "") for field, name in names.items()}
    return found if all(found.values()) else None


def verify_error(error: TenantryError) -> TenantryError:
    """Return the error of a failed check: the service's rejection, or that the credential cannot be
    checked.
    """
    match error:
        case APIError(status_code=status, document=document, code=code):
            if document and (status in PASSED_ON or code == _UNKNOWN_FEATURE):
                return error
            if status in _TEMPORARY or status >= 500:  # noqa: PLR2004
                return unavailable(error)
            return _unreadable(status, error.request_id)
        case ConnectionFailedError():
            return unavailable(error)
        case _:
            return error


def _given(headers: Headers, api_key_header: str | None) -> dict[str, str]:
    """Return the headers of a check by their names in lower case; the values of a repeated one are
    joined. Raises `ValueError` for the name of a header that is none, and `TypeError` for a string.
    """
    named: Any = headers
    if isinstance(named, str | bytes):
        raise TypeError(
            "verify needs the headers of the request, such as {'Authorization': 'Bearer ...'}, not a string"
        )
    found: dict[str, list[str]] = {}
    for name, value in named.items() if hasattr(named, "items") else named:
        found.setdefault(_text(name).lower(), []).append(_text(value))
    names = ["authorization", "x-organization-id", "x-request-id"]
    if api_key_header is not None:
        if not _NAME.fullmatch(api_key_header):
            raise ValueError(f"{api_key_header!r} is not the name of a header")
        names.append(api_key_header.lower())
    return {name: _sendable(", ".join(found[name])) for name in names if name in found}


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _sendable(value: str) -> str:
    text = _INVISIBLE.sub("?", value.strip(" \t"))
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}?"


def _address_of(text: str) -> str:
    """Return a client's address, or that it is unknown."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _UNKNOWN
    return text


def unavailable(cause: TenantryError) -> UnavailableError:
    """Return the error of a caller's request while the service cannot be asked."""
    told = cause.retry_after if isinstance(cause, APIError) else None
    seconds = 1.0 if told is None else told
    return UnavailableError(
        503,
        code=_UNAVAILABLE["code"],
        detail=_UNAVAILABLE["detail"],
        headers={"content-type": "application/problem+json", "retry-after": f"{seconds:.0f}"},
        retry_after=seconds,
        document=_UNAVAILABLE,
        content=msgspec.json.encode(_UNAVAILABLE),
        is_for_caller=True,
        idempotency_key=cause.idempotency_key,
        after_lost_answer=cause.after_lost_answer,
    )


def _unreadable(status: int, request_id: str | None) -> UnreadableAnswerError:
    return UnreadableAnswerError(
        f"The answer to a check ({status}) is not one of tenantry: is base_url the address of the service?",
        request_id,
    )
