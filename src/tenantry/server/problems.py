"""Problem details (RFC 9457) and the error codes of the API."""

import re
from collections.abc import Iterable, Mapping, Sequence
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
_REPEATED: Final = re.compile(r"(?<=^Invalid enum value) .*", re.DOTALL)

_BY_STATUS: Final[Mapping[HTTPStatus, tuple[type[DomainError], ...]]] = {
    HTTPStatus.BAD_REQUEST: (errors.InvalidCursorError, errors.InvalidIdempotencyKeyError),
    HTTPStatus.UNAUTHORIZED: (
        errors.MissingCredentialError, errors.InvalidCredentialError, errors.ApiKeyRevokedError,
        errors.ApiKeyExpiredError, errors.TokenExpiredError,
    ),
    HTTPStatus.FORBIDDEN: (
        errors.InsufficientScopeError, errors.UserTokenRequiredError, errors.OrgMismatchError,
        errors.NoOrganizationError, errors.OrgSuspendedError, errors.ScopeEscalationError, errors.ModeMismatchError,
        errors.PlanLimitReachedError, errors.TenantLimitReachedError,
    ),
    HTTPStatus.NOT_FOUND: (errors.NotFoundError,),
    HTTPStatus.CONFLICT: (
        errors.KeyLimitReachedError, errors.KeyNotActiveError, errors.LastOwnerError, errors.MemberExistsError,
        errors.MemberNotActiveError, errors.TenantExistsError, errors.TenantDeletedError, errors.CustomerTakenError,
        errors.NoCustomerError, errors.IdempotencyReplayError, errors.IdempotencyInFlightError,
    ),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: (errors.PayloadTooLargeError,),
    HTTPStatus.UNPROCESSABLE_ENTITY: (errors.ValidationError, errors.IdempotencyMismatchError),
    HTTPStatus.TOO_MANY_REQUESTS: (errors.RateLimitedError,),
    HTTPStatus.NOT_IMPLEMENTED: (errors.ProviderNotConfiguredError, errors.IdentityProviderNotConfiguredError),
    HTTPStatus.BAD_GATEWAY: (errors.ProviderRefusedError,),
    HTTPStatus.SERVICE_UNAVAILABLE: (
        errors.AuthUnavailableError, errors.DatabaseUnavailableError, errors.OverloadedError,
        errors.ProviderUnavailableError,
    ),
}  # fmt: skip
STATUSES: Final = {error: status for status, kinds in _BY_STATUS.items() for error in kinds}


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


class Refusal(msgspec.Struct, frozen=True):
    """An error answer, ready to be sent."""

    status: int
    headers: list[Header]
    body: bytes
    code: str


def refuse(
    status: int,
    code: str,
    detail: str,
    request_id: str,
    *,
    faults: Sequence[tuple[str, str]] = (),
    object_id: str | None = None,
    headers: Sequence[Header] = (),
) -> Refusal:
    """Compose an error answer."""
    problem = Problem(
        type=_TYPE_PREFIX + code,
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        request_id=request_id,
        errors=[_told(*fault) for fault in faults] or None,
        id=object_id,
    )
    return Refusal(status, [(b"content-type", MEDIA_TYPE.encode()), *headers], msgspec.json.encode(problem), code)


def _told(location: str, message: str) -> Fault:
    """A fault without what was sent: it may be a credential in the wrong place."""
    return Fault(redact(location), redact(_REPEATED.sub("", message)))


def refuse_domain_error(error: DomainError, request_id: str) -> Refusal:
    """The error answer for a refusal of the domain."""
    status = STATUSES[type(error)]
    return refuse(
        status,
        error.code,
        error.detail,
        request_id,
        faults=error.faults if isinstance(error, errors.ValidationError) else (),
        object_id=error.object_id if isinstance(error, errors.IdempotencyReplayError) else None,
        headers=_headers(error, status),
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


# Error codes of the API


INVALID_JSON: Final = "invalid_json"
UNSUPPORTED_MEDIA_TYPE: Final = "unsupported_media_type"
RATE_LIMITED: Final = "rate_limited"
INVALID_REQUEST: Final = "invalid_request"
REQUEST_TIMEOUT: Final = "request_timeout"
HEAD_TOO_LARGE: Final = "head_too_large"

_FRAMEWORK: Final = {
    INVALID_JSON: 400,
    INVALID_REQUEST: 400,
    "method_not_allowed": 405,
    REQUEST_TIMEOUT: 408,
    UNSUPPORTED_MEDIA_TYPE: 415,
    HEAD_TOO_LARGE: 431,
    "internal_error": 500,
}
"""The statuses of codes that have no domain error."""

_MEANINGS: Final = {
    INVALID_JSON: "The body is not JSON.",
    INVALID_REQUEST: "The request is malformed.",
    REQUEST_TIMEOUT: "The request took too long to arrive.",
    HEAD_TOO_LARGE: "The request's head is larger than 32 KiB, its target than 8 KiB, or it has more than 100 fields.",
    "invalid_cursor": "`cursor` does not come from this API.",
    "invalid_idempotency_key": "`Idempotency-Key` is not 1 to 255 visible ASCII characters.",
    "missing_credential": "There is no `Authorization` header.",
    "invalid_credential": "The credential is unknown or no longer valid.",
    "api_key_revoked": "The API key has been revoked.",
    "api_key_expired": "The API key has passed its `expiresAt`.",
    "token_expired": "The access token has expired. Get a new one.",
    "insufficient_scope": "The credential does not hold the scope; `WWW-Authenticate` names it.",
    "user_token_required": "This needs a user's access token, not an API key.",
    "org_mismatch": "The requested organization is not the credential's.",
    "no_organization": "The user belongs to no organization, or the request does not name one of several.",
    "org_suspended": "The organization is suspended.",
    "scope_escalation": "A caller cannot give a key or member more rights than it holds itself.",
    "mode_mismatch": "A test-mode key creates and sees test-mode objects only, and changes no members, tenants or "
    "billing. A gateway accepts the modes that its path names, live mode by default.",
    "plan_limit_reached": "The plan allows no more objects of this kind.",
    "not_found": "The caller's tenant has no such object. Objects of other tenants answer the same.",
    "method_not_allowed": "This address does not answer this method; `Allow` says which ones it does.",
    "key_limit_reached": "The plan allows no more active API keys.",
    "key_not_active": "The key is revoked, expired, or already rotated.",
    "last_owner": "Afterwards no one could manage the tenant. Add another owner or OWNER key first.",
    "member_exists": "The user is already a member or invited; `PATCH` changes the role.",
    "member_not_active": "The membership or invitation has ended; an owner or admin can invite the user again.",
    "tenant_limit_reached": "The user has created the maximum number of organizations.",
    "tenant_exists": "The organization that the token names already exists.",
    "tenant_deleted": "The tenant is deleted; its id is free again after 30 days.",
    "customer_taken": "The provider's customer belongs to another tenant.",
    "no_customer": "The tenant is not a customer of the payment provider yet. Start with a checkout.",
    "idempotency_replay": "The request was already carried out. Only the first answer contained the secret; "
    "`id` names the key.",
    "idempotency_in_flight": "A request with this `Idempotency-Key` is still running.",
    "idempotency_mismatch": "This `Idempotency-Key` was already used with another body.",
    "payload_too_large": "The body is larger than 1 MiB.",
    UNSUPPORTED_MEDIA_TYPE: "The body is not `application/json`, or is compressed.",
    "validation_failed": "A field or parameter is invalid; `errors` says which, and why.",
    RATE_LIMITED: "Too many requests; `Retry-After` says when to try again.",
    "internal_error": "Internal server error; `requestId` finds it in the log.",
    "provider_not_configured": "The payment provider's API is not configured.",
    "identity_provider_not_configured": "No identity provider is configured, so there are no users to invite.",
    "provider_refused": "The payment provider refused the request.",
    "auth_unavailable": "The credential cannot be checked: the database or the identity provider is unavailable.",
    "database_unavailable": "The database is unavailable.",
    "overloaded": "The server has more requests than it can answer in time. It did not start this one.",
    "provider_unavailable": "The payment provider is unavailable.",
}


class ErrorCode(NamedTuple):
    """A code, its status, and its meaning (Markdown with code spans only)."""

    code: str
    status: int
    meaning: str


def all_codes(statuses: Mapping[type[DomainError], int] = STATUSES) -> dict[str, ErrorCode]:
    """Every code that the API may answer with, by status and then by name."""
    found = {**_FRAMEWORK, **{error.code: int(status) for error, status in statuses.items()}}
    return {
        code: ErrorCode(code, found[code], _MEANINGS.get(code, ""))
        for code in sorted(found, key=lambda c: (found[c], c))
    }


def codes_of(*kinds: type[DomainError]) -> set[str]:
    """The codes of these errors."""
    return {kind.code for kind in kinds}


def by_status(codes: Iterable[str], known: Mapping[str, ErrorCode]) -> dict[int, list[str]]:
    """The codes under their statuses, in order; codes that the API does not have (yet) are left out."""
    wanted = set(codes)
    found: dict[int, list[str]] = {}
    for code in known:
        if code in wanted:
            found.setdefault(known[code].status, []).append(code)
    return found


IDEMPOTENCY: Final = codes_of(
    errors.InvalidIdempotencyKeyError, errors.IdempotencyInFlightError, errors.IdempotencyMismatchError
)
MALFORMED: Final = {INVALID_REQUEST, REQUEST_TIMEOUT, HEAD_TOO_LARGE}
"""The server refuses these before a request exists (docs/limits.md)."""
BODY: Final = {INVALID_JSON, UNSUPPORTED_MEDIA_TYPE} | codes_of(errors.PayloadTooLargeError, errors.ValidationError)
CREDENTIAL: Final = codes_of(
    errors.MissingCredentialError, errors.InvalidCredentialError, errors.ApiKeyRevokedError, errors.ApiKeyExpiredError,
    errors.TokenExpiredError,
)  # fmt: skip
