"""Refusals as problem details (RFC 9457): the one table from codes to statuses."""

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from tenantry.common.logs import redact
from tenantry.domain import errors
from tenantry.domain.errors import DomainError

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER: Final = "1"
_TYPE_PREFIX: Final = "urn:tenantry:problem:"
_REPEATED: Final = re.compile(r"(?<=^Invalid enum value) .*", re.DOTALL)

STATUSES: Final[dict[type[DomainError], HTTPStatus]] = {
    errors.MissingCredentialError: HTTPStatus.UNAUTHORIZED,
    errors.InvalidCredentialError: HTTPStatus.UNAUTHORIZED,
    errors.ApiKeyRevokedError: HTTPStatus.UNAUTHORIZED,
    errors.ApiKeyExpiredError: HTTPStatus.UNAUTHORIZED,
    errors.TokenExpiredError: HTTPStatus.UNAUTHORIZED,
    errors.AuthUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.DatabaseUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.OverloadedError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.InsufficientScopeError: HTTPStatus.FORBIDDEN,
    errors.UserTokenRequiredError: HTTPStatus.FORBIDDEN,
    errors.OrgMismatchError: HTTPStatus.FORBIDDEN,
    errors.NoOrganizationError: HTTPStatus.FORBIDDEN,
    errors.OrgSuspendedError: HTTPStatus.FORBIDDEN,
    errors.ScopeEscalationError: HTTPStatus.FORBIDDEN,
    errors.ModeMismatchError: HTTPStatus.FORBIDDEN,
    errors.PlanLimitReachedError: HTTPStatus.FORBIDDEN,
    errors.KeyLimitReachedError: HTTPStatus.CONFLICT,
    errors.KeyNotActiveError: HTTPStatus.CONFLICT,
    errors.LastOwnerError: HTTPStatus.CONFLICT,
    errors.MemberExistsError: HTTPStatus.CONFLICT,
    errors.MemberNotActiveError: HTTPStatus.CONFLICT,
    errors.RateLimitedError: HTTPStatus.TOO_MANY_REQUESTS,
    errors.TenantLimitReachedError: HTTPStatus.FORBIDDEN,
    errors.TenantExistsError: HTTPStatus.CONFLICT,
    errors.TenantDeletedError: HTTPStatus.CONFLICT,
    errors.CustomerTakenError: HTTPStatus.CONFLICT,
    errors.NoCustomerError: HTTPStatus.CONFLICT,
    errors.NotFoundError: HTTPStatus.NOT_FOUND,
    errors.InvalidCursorError: HTTPStatus.BAD_REQUEST,
    errors.InvalidIdempotencyKeyError: HTTPStatus.BAD_REQUEST,
    errors.PayloadTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.ValidationError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.IdempotencyReplayError: HTTPStatus.CONFLICT,
    errors.IdempotencyInFlightError: HTTPStatus.CONFLICT,
    errors.IdempotencyMismatchError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.ProviderNotConfiguredError: HTTPStatus.NOT_IMPLEMENTED,
    errors.IdentityProviderNotConfiguredError: HTTPStatus.NOT_IMPLEMENTED,
    errors.ProviderUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ProviderRefusedError: HTTPStatus.BAD_GATEWAY,
}


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request, and where: a field's path, or a parameter's name."""

    location: str
    message: str


class Problem(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An error answer (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[Fault] | None = None
    id: str | None = None
    """The object that an idempotent request made the first time."""


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
