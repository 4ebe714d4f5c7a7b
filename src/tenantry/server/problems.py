"""Problem details (RFC 9457) and the error codes of the API."""

import re
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Final, NamedTuple

import msgspec

from tenantry.common.encoding import doc
from tenantry.common.logs import redact
from tenantry.domain import errors
from tenantry.domain.errors import DomainError

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER: Final = "1"
_TYPE_PREFIX: Final = "urn:tenantry:problem:"
_MESSAGE: Final = re.compile(r"(?P<message>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`", re.DOTALL)
_MAX_TEXT: Final = 200
_REPEATED: Final = re.compile(r"(?<=^Invalid enum value) .*", re.DOTALL)

_CODES: Final[Mapping[int, Mapping[str, str]]] = {
    400: {
        "invalid_cursor": "`cursor` does not come from this API.",
        "invalid_idempotency_key": "`Idempotency-Key` is not 1 to 255 visible ASCII characters.",
        "invalid_json": "The body is not JSON.",
        "invalid_request": "The request is malformed.",
    },
    401: {
        "api_key_expired": "The API key has passed its `expiresAt`.",
        "api_key_revoked": "The API key has been revoked.",
        "invalid_credential": "The credential is unknown or no longer valid.",
        "missing_credential": "There is no `Authorization` header.",
        "token_expired": "The access token has expired. Get a new one.",
    },
    403: {
        "insufficient_scope": "The credential does not hold the scope; `WWW-Authenticate` names it.",
        "mode_mismatch": "A test-mode key creates and sees test-mode objects only, and changes no members, tenants or "
        "billing. A gateway accepts the modes that its path names, live mode by default.",
        "no_organization": "The user belongs to no organization, or the request does not name one of several.",
        "org_mismatch": "The requested organization is not the credential's.",
        "org_suspended": "The organization is suspended.",
        "plan_limit_reached": "The plan allows no more objects of this kind.",
        "scope_escalation": "A caller cannot give a key or member more rights than it holds itself.",
        "tenant_limit_reached": "The user has created the maximum number of organizations.",
        "user_token_required": "This needs a user's access token, not an API key.",
    },
    404: {"not_found": "The caller's tenant has no such object. Objects of other tenants answer the same."},
    405: {"method_not_allowed": "This address does not answer this method; `Allow` says which ones it does."},
    408: {"request_timeout": "The request took too long to arrive."},
    409: {
        "customer_taken": "The provider's customer belongs to another tenant.",
        "idempotency_in_flight": "A request with this `Idempotency-Key` is still running.",
        "idempotency_replay": "The request was already carried out. Only the first answer contained the secret; `id` "
        "names the key.",
        "key_limit_reached": "The plan allows no more active API keys.",
        "key_not_active": "The key is revoked, expired, or already rotated.",
        "last_owner": "Afterwards no one could manage the tenant. Add another owner or OWNER key first.",
        "member_exists": "The user is already a member or invited; `PATCH` changes the role.",
        "member_not_active": "The membership or invitation has ended; an owner or admin can invite the user again.",
        "no_customer": "The tenant is not a customer of the payment provider yet. Start with a checkout.",
        "tenant_deleted": "The tenant is deleted; its id is free again after 30 days.",
        "tenant_exists": "The organization that the token names already exists.",
    },
    413: {"payload_too_large": "The body is larger than 1 MiB."},
    415: {"unsupported_media_type": "The body is not `application/json`, or is compressed."},
    422: {
        "idempotency_mismatch": "This `Idempotency-Key` was already used with another body.",
        "validation_failed": "A field or parameter is invalid; `errors` says which, and why.",
    },
    429: {"rate_limited": "Too many requests; `Retry-After` says when to try again."},
    431: {
        "head_too_large": "The request's head is larger than 32 KiB, its target than 8 KiB, or it has more than 100 "
        "fields."
    },
    500: {"internal_error": "Internal server error; `requestId` finds it in the log."},
    501: {
        "identity_provider_not_configured": "No identity provider is configured, so there are no users to invite.",
        "provider_not_configured": "The payment provider's API is not configured.",
    },
    502: {"provider_refused": "The payment provider refused the request."},
    503: {
        "auth_unavailable": "The credential cannot be checked: the database or the identity provider is unavailable.",
        "database_unavailable": "The database is unavailable.",
        "overloaded": "The server has more requests than it can answer in time. It did not start this one.",
        "provider_unavailable": "The payment provider is unavailable.",
    },
}
"""The error codes of the API by status, in order, with their meanings (Markdown with code spans only)."""
_STATUS_OF: Final = {code: HTTPStatus(status) for status, codes in _CODES.items() for code in codes}
STATUSES: Final = {error: _STATUS_OF[error.code] for error in DomainError.__subclasses__()}
CREDENTIAL: Final = _CODES[HTTPStatus.UNAUTHORIZED].keys()
"""The codes of a missing or rejected credential."""


class ErrorCode(NamedTuple):
    """A code, its status, and its meaning."""

    code: str
    status: int
    meaning: str


def all_codes() -> dict[str, ErrorCode]:
    """Return every code that the API may answer with, by status and then by name."""
    return {
        code: ErrorCode(code, status, meaning)
        for status, meanings in _CODES.items()
        for code, meaning in meanings.items()
    }


def by_status(codes: Collection[str]) -> dict[str, list[str]]:
    """Return the codes under their statuses, in order."""
    found = {str(status): [code for code in known if code in codes] for status, known in _CODES.items()}
    return {status: codes for status, codes in found.items() if codes}


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request, and where: a field's path, or a parameter's name."""

    location: Annotated[str, doc("The field's path, or the parameter's name.", "name")]
    message: Annotated[str, doc("What is wrong with it.", "Expected `str` of length >= 1")]


class Problem(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An error answer (RFC 9457)."""

    type: Annotated[str, doc("A URI that names the code.", "urn:tenantry:problem:validation_failed")]
    title: Annotated[str, doc("The status in words.", "Unprocessable Entity")]
    status: Annotated[int, doc("The HTTP status.", 422)]
    detail: Annotated[str, doc("What is wrong, for people. The wording may change.", "The request is not valid.")]
    code: Annotated[str, doc("What is wrong, for programs. It does not change.", "validation_failed")]
    request_id: Annotated[
        str, doc("The request's id, as in `X-Request-Id` and in the log.", "5e0c4ad1c1f24b7f9a0b6f9f6d0c7a51")
    ]
    errors: Annotated[
        list[Fault] | None,
        doc("Each fault of an invalid request.", [{"location": "name", "message": "Expected `str` of length >= 1"}]),
    ] = None
    id: Annotated[str | None, doc("The object that the first request with this idempotency key created.")] = None


Header = tuple[bytes, bytes]
VARIES: Final[Header] = (b"vary", b"Accept")
"""What an answer says that may be a page to a browser and a problem to a program, to whoever keeps it."""


def fault_of(error: msgspec.ValidationError, default: str = "body") -> tuple[str, str]:
    """Return a field's path, or ``default`` for the whole body, and msgspec's message."""
    found = _MESSAGE.fullmatch(str(error))
    message, path = (found["message"], found["path"] or "") if found else (str(error), "")
    if field := _FIELD.fullmatch(message):
        path = f"{path}.{field[1]}" if path else field[1]
    return path[:_MAX_TEXT] or default, message[:_MAX_TEXT]


class Refusal(msgspec.Struct, frozen=True):
    """An error answer, ready to be sent."""

    status: int
    headers: list[Header]
    body: bytes
    code: str


def refuse(
    code: str,
    detail: str,
    request_id: str,
    *,
    faults: Sequence[tuple[str, str]] = (),
    object_id: str | None = None,
    headers: Sequence[Header] = (),
) -> Refusal:
    """Compose an error answer."""
    status = _STATUS_OF[code]
    problem = Problem(
        type=_TYPE_PREFIX + code,
        title=status.phrase,
        status=status,
        detail=detail,
        code=code,
        request_id=request_id,
        errors=[_told(*fault) for fault in faults] or None,
        id=object_id,
    )
    return Refusal(status, [(b"content-type", MEDIA_TYPE.encode()), *headers], msgspec.json.encode(problem), code)


def internal_error(request_id: str) -> Refusal:
    """Compose the answer to an uncaught exception."""
    return refuse("internal_error", "Internal server error.", request_id)


def _told(location: str, message: str) -> Fault:
    """A fault without what was sent: it may be a credential in the wrong place."""
    return Fault(redact(location), redact(_REPEATED.sub("", message)))


def refuse_domain_error(error: DomainError, request_id: str) -> Refusal:
    """The error answer for a refusal of the domain."""
    return refuse(
        error.code,
        error.detail,
        request_id,
        faults=error.faults if isinstance(error, errors.ValidationError) else (),
        object_id=error.object_id if isinstance(error, errors.IdempotencyReplayError) else None,
        headers=_headers(error, STATUSES[type(error)]),
    )


def _headers(error: DomainError, status: HTTPStatus) -> list[Header]:
    """The ``WWW-Authenticate`` of RFC 6750, section 3, and ``Retry-After``."""
    if isinstance(error, errors.MissingCredentialError):
        return [(b"www-authenticate", b'Bearer realm="api"')]
    if isinstance(error, errors.InsufficientScopeError):
        challenge = f'Bearer realm="api", error="insufficient_scope", scope="{error.scope}"'
        return [(b"www-authenticate", challenge.encode("latin-1", "replace"))]
    if status is HTTPStatus.UNAUTHORIZED:
        challenge = f'Bearer realm="api", error="invalid_token", error_description="{error.detail}"'
        return [(b"www-authenticate", challenge.encode("ascii", "replace"))]
    if isinstance(error, errors.RateLimitedError):
        return [(b"retry-after", b"%d" % error.retry_after)]
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        return [(b"retry-after", RETRY_AFTER.encode())]
    return []
