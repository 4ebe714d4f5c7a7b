"""Every error code of the API: its status, and what it tells the caller."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tenantry.domain import errors
from tenantry.domain.errors import DomainError
from tenantry.server.problems import STATUSES

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
"""Codes that no domain error stands behind."""

_MEANINGS: Final = {
    INVALID_JSON: "The body is not JSON.",
    INVALID_REQUEST: "The request cannot be understood.",
    REQUEST_TIMEOUT: "The request took too long to arrive.",
    HEAD_TOO_LARGE: "The request's head is larger than 32 KiB, its target than 8 KiB, or it has more than 100 fields.",
    "invalid_cursor": "`cursor` is not one that this API gave.",
    "invalid_idempotency_key": "`Idempotency-Key` is not 1 to 255 visible ASCII characters.",
    "missing_credential": "There is no `Authorization` header.",
    "invalid_credential": "The credential is not one of ours, or is not valid any more.",
    "api_key_revoked": "The API key has been revoked.",
    "api_key_expired": "The API key has passed its `expiresAt`.",
    "token_expired": "The access token has expired: get a fresh one.",
    "insufficient_scope": "The credential does not hold the scope; `WWW-Authenticate` names it.",
    "user_token_required": "This takes a user's access token, not an API key.",
    "org_mismatch": "The organization asked for is not the credential's.",
    "no_organization": "The user belongs to no organization, or the request does not say which one it is for.",
    "org_suspended": "The organization is suspended.",
    "scope_escalation": "Nobody makes or changes a key or a member into more than they hold themselves.",
    "mode_mismatch": "A test-mode key makes and sees test-mode objects only, and changes no members, tenants or "
    "billing. A gateway accepts the modes that its path names, live mode by default.",
    "plan_limit_reached": "The plan allows no more of these.",
    "not_found": "There is no such object in the caller's tenant; another tenant's answers the same.",
    "method_not_allowed": "This address does not answer this method; `Allow` says which ones it does.",
    "key_limit_reached": "The plan allows no more active API keys.",
    "key_not_active": "The key is revoked, has expired, or has been rotated before.",
    "last_owner": "Afterwards nobody could manage the tenant: make another owner or OWNER key first.",
    "member_exists": "The user is a member or invited already; `PATCH` changes the role.",
    "member_not_active": "The membership or invitation has ended; an owner or admin can invite the user again.",
    "tenant_limit_reached": "The user has created as many organizations as one user may.",
    "tenant_exists": "The organization that the token names exists already.",
    "tenant_deleted": "The tenant has ended; its id is free again after 30 days.",
    "customer_taken": "The provider's customer belongs to another tenant.",
    "no_customer": "The tenant is no customer of the payment provider yet: begin with a checkout.",
    "idempotency_replay": "The request was carried out before. The secret was in the first answer only; "
    "`id` names the key.",
    "idempotency_in_flight": "A request with this `Idempotency-Key` is still being carried out.",
    "idempotency_mismatch": "This `Idempotency-Key` came with another body before.",
    "payload_too_large": "The body is larger than 1 MiB.",
    UNSUPPORTED_MEDIA_TYPE: "The body is not `application/json`, or is compressed.",
    "validation_failed": "A field or parameter is not acceptable; `errors` says which, and why.",
    RATE_LIMITED: "Too many requests; `Retry-After` says when to come again.",
    "internal_error": "A fault of ours; `requestId` finds it in the log.",
    "provider_not_configured": "The payment provider's API is not set up here.",
    "identity_provider_not_configured": "No identity provider is set up here, whose users could be members.",
    "provider_refused": "The payment provider refused.",
    "auth_unavailable": "Nobody can tell who is asking: the database or the identity provider is out of reach.",
    "database_unavailable": "The database is out of reach.",
    "overloaded": "More requests are under way than can be answered in time; nothing of this one was read.",
    "provider_unavailable": "The payment provider is out of reach.",
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
UNFIT: Final = {INVALID_REQUEST, REQUEST_TIMEOUT, HEAD_TOO_LARGE}
"""What the server itself refuses, before a request is there (docs/limits.md)."""
BODY: Final = {INVALID_JSON, UNSUPPORTED_MEDIA_TYPE} | codes_of(errors.PayloadTooLargeError, errors.ValidationError)
CREDENTIAL: Final = codes_of(
    errors.MissingCredentialError, errors.InvalidCredentialError, errors.ApiKeyRevokedError, errors.ApiKeyExpiredError,
    errors.TokenExpiredError,
)  # fmt: skip
