"""The check of another caller's credential: its request, its result and its errors. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tenantry_sdk._models import Principal
from tenantry_sdk._request import Call
from tenantry_sdk._response import Response, converted
from tenantry_sdk._secret import Secret
from tenantry_sdk.errors import (
    APIError,
    ConnectionFailedError,
    TenantryError,
    UnavailableError,
    UnreadableAnswerError,
)
from tenantry_sdk.types import AcceptedMode

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
    "access": "x-access",
    "effectivePlan": "x-effective-plan",
}
_EXTERNAL_ID: Final = "x-key-external-id"
_FEATURES: Final = "x-features"
_OK: Final = 200
_PASSED_ON: Final = frozenset({401, 403, 429, 431, 503})
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
    feature, mode or header's name that is none.
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
    if client_address is not None and _is_address(client_address):
        sent["X-Forwarded-For"] = client_address
    return sent


def principal_of(response: Response) -> Principal:
    """Return the caller that the service accepted. Raises `UnreadableAnswerError` if something else
    answered.
    """
    headers = response.headers
    found = {field: headers[name] for field, name in PRINCIPAL_HEADERS.items() if headers.get(name)}
    if response.status_code != _OK or len(found) < len(PRINCIPAL_HEADERS):
        raise _unreadable(response.status_code, response.request_id)
    if external_id := headers.get(_EXTERNAL_ID):
        found["externalId"] = external_id
    features = [name for name in headers.get(_FEATURES, "").split(",") if name]
    principal: Principal = converted({**found, "features": features}, Principal, response)
    return principal


def verify_error(error: TenantryError) -> TenantryError:
    """Return the error of a failed check: the service's rejection, or that the credential cannot be
    checked.
    """
    match error:
        case APIError(status_code=status, document=document, code=code):
            if document and (status in _PASSED_ON or code == _UNKNOWN_FEATURE):
                return error
            if status in _TEMPORARY or status >= 500:  # noqa: PLR2004
                return _unavailable(error.retry_after)
            return _unreadable(status, error.request_id)
        case ConnectionFailedError():
            return _unavailable(None)
        case _:
            return error


def _given(headers: Headers, api_key_header: str | None) -> dict[str, str]:
    """Return the headers of a check by their names in lower case; the values of a repeated one are
    joined. Raises `ValueError` for the name of a header that is none.
    """
    named: Any = headers
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


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _unavailable(retry_after: float | None) -> UnavailableError:
    seconds = 1.0 if retry_after is None else retry_after
    return UnavailableError(
        503,
        code=_UNAVAILABLE["code"],
        detail=_UNAVAILABLE["detail"],
        headers={"content-type": "application/problem+json", "retry-after": f"{seconds:.0f}"},
        retry_after=seconds,
        document=_UNAVAILABLE,
        content=msgspec.json.encode(_UNAVAILABLE),
    )


def _unreadable(status: int, request_id: str | None) -> UnreadableAnswerError:
    return UnreadableAnswerError(
        f"The answer to a check ({status}) is not one of tenantry: is base_url the address of the service?",
        request_id,
    )
