"""Problem details (RFC 9457) and the error codes of the API."""

import functools
import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Final

import msgspec

from tenantry.common.encoding import doc
from tenantry.common.redaction import redact
from tenantry.domain import errors
from tenantry.domain.errors import DomainError, TokenFault
from tenantry.server.asgi_types import NEEDED, OUTCOME, Header, HotResponse, Scope
from tenantry.server.rate_limit_headers import rate_headers

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER: Final = "1"
_TYPE_PREFIX: Final = "urn:tenantry:problem:"
_PATH: Final = " - at `$"
_FIELD: Final = re.compile(
    r"Object (?:missing required|contains unknown) field `(.*?)`?", re.DOTALL
)
_EXPECTED: Final = re.compile(r"`[a-z]+(?: \| [a-z]+)*`")
_TYPE: Final = re.compile(r"\b(?:int|float|str|bool)\b")
_JSON_TYPES: Final = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}
_MAX_TEXT: Final = 200
_UNKNOWN_FEATURES: Final = 1000
"""Names that a process remembers to have logged."""
_REPEATED: Final = re.compile(r"(?<=^Invalid enum value) .*", re.DOTALL)

logger = logging.getLogger(__name__)

CODES: Final[Mapping[int, Sequence[str]]] = {
    400: (
        "invalid_cursor",
        "invalid_idempotency_key",
        "invalid_json",
        "invalid_request",
        "organization_required",
    ),
    401: (
        "api_key_disabled",
        "api_key_expired",
        "api_key_revoked",
        "invalid_credential",
        "missing_credential",
        "token_expired",
    ),
    403: (
        "email_mismatch",
        "email_not_verified",
        "feature_not_granted",
        "insufficient_scope",
        "mode_mismatch",
        "no_organization",
        "operator_required",
        "org_mismatch",
        "org_suspended",
        "address_not_allowed",
        "plan_limit_reached",
        "quota_exceeded",
        "scope_escalation",
        "tenant_limit_reached",
        "user_token_required",
    ),
    404: ("not_found", "unknown_consumption", "unknown_feature"),
    405: ("method_not_allowed",),
    408: ("request_timeout",),
    409: (
        "consumption_given_back",
        "customer_taken",
        "feature_not_metered",
        "grant_limit_reached",
        "idempotency_in_flight",
        "idempotency_replay",
        "invitation_closed",
        "invitation_exists",
        "key_limit_reached",
        "key_not_active",
        "last_owner",
        "member_exists",
        "member_not_active",
        "no_customer",
        "subscription_exists",
        "tenant_deleted",
        "tenant_exists",
    ),
    410: ("cursor_expired",),
    413: ("payload_too_large",),
    415: ("unsupported_media_type",),
    422: ("currency_not_available", "idempotency_mismatch", "validation_failed"),
    429: ("invitation_limit_reached", "rate_limited"),
    431: ("head_too_large",),
    500: ("internal_error",),
    501: (
        "identity_provider_not_configured",
        "invitations_not_enabled",
        "provider_not_configured",
    ),
    502: ("provider_refused",),
    503: ("auth_unavailable", "database_unavailable", "overloaded", "provider_unavailable"),
}
"""The error codes of the API by status, in order."""
STATUS_OF: Final = {code: HTTPStatus(status) for status, codes in CODES.items() for code in codes}
STATUSES: Final = {error: STATUS_OF[error.code] for error in DomainError.__subclasses__()}
CREDENTIAL: Final = frozenset(CODES[HTTPStatus.UNAUTHORIZED])
"""The codes of a missing or rejected credential."""


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request, and where: a field's path, or a parameter's name."""

    location: Annotated[str, doc("The field's path, or the parameter's name.", "name")]
    message: Annotated[str, doc("What is wrong with it.", "Expected `string` of length >= 1")]


class Problem(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An error answer (RFC 9457)."""

    type: Annotated[
        str, doc("A URI that names the code.", "urn:tenantry:problem:validation_failed")
    ]
    title: Annotated[str, doc("The status in words.", "Unprocessable Entity")]
    status: Annotated[int, doc("The HTTP status.", 422)]
    detail: Annotated[
        str, doc("What is wrong, for people. The wording may change.", "The request is not valid.")
    ]
    code: Annotated[
        str, doc("What is wrong, for programs. It does not change.", "validation_failed")
    ]
    request_id: Annotated[
        str,
        doc(
            "The request's id, as in `X-Request-Id` and in the log.",
            "5e0c4ad1c1f24b7f9a0b6f9f6d0c7a51",
        ),
    ]
    errors: Annotated[
        list[Fault] | None,
        doc(
            "Each fault of an invalid request.",
            [{"location": "name", "message": "Expected `string` of length >= 1"}],
        ),
    ] = None
    id: Annotated[
        str | None, doc("The object that the first request with this idempotency key created.")
    ] = None
    reason: Annotated[
        str | None,
        doc("Why the operator has suspended the organization.", "Invoice 2026-114 is unpaid"),
    ] = None


UNCOMPRESSED: Final[Header] = (b"accept-encoding", b"identity")
"""Tells the sender of a compressed body what to send instead (RFC 9110 section 15.5.16)."""
VARIES: Final[Header] = (b"vary", b"Accept")
"""Tells caches that an error is a page for browsers and a problem document for programs (RFC 9110
section 12.5.5).
"""


def fault_of(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return a field's path, or ``body`` for the whole body, and msgspec's message with the names
    of JSON's types.
    """
    message, marker, path = str(error).rpartition(_PATH)
    message, path = (message, path.removeprefix(".").removesuffix("`")) if marker else (path, "")
    message = message[: 2 * _MAX_TEXT]  # it contains the client's text, of any length
    if field := _FIELD.fullmatch(message):
        path = f"{path}.{field[1]}" if path else field[1]
    return path[:_MAX_TEXT] or "body", with_json_types(message)[:_MAX_TEXT]


def with_json_types(message: str) -> str:
    """Return a message of msgspec with the names of JSON's types in place of Python's."""
    if not message.startswith("Expected "):
        return message
    return _EXPECTED.sub(
        lambda types: _TYPE.sub(lambda name: _JSON_TYPES[name[0]], types[0]), message
    )


class Refusal(HotResponse):
    """An error answer, ready to be sent. ``needed`` is as in `DomainError`."""

    code: str = ""
    needed: str | None = None

    def note_in(self, scope: Scope) -> None:
        """Note in a request's scope that this is its answer."""
        scope[OUTCOME] = self.code
        scope[NEEDED] = self.needed


def refuse(
    code: str,
    detail: str,
    request_id: str,
    *,
    faults: Sequence[tuple[str, str]] = (),
    object_id: str | None = None,
    reason: str | None = None,
    headers: Sequence[Header] = (),
    needed: str | None = None,
) -> Refusal:
    """Compose an error answer."""
    status = STATUS_OF[code]
    problem = Problem(
        type=_TYPE_PREFIX + code,
        title=status.phrase,
        status=status,
        detail=detail,
        code=code,
        request_id=request_id,
        # without what was sent: it may be a credential in the wrong place
        errors=[
            Fault(redact(location), redact(_REPEATED.sub("", message)))
            for location, message in faults
        ]
        or None,
        id=object_id,
        reason=reason,
    )
    return Refusal(
        status,
        [(b"content-type", MEDIA_TYPE.encode()), *headers],
        msgspec.json.encode(problem),
        code,
        needed,
    )


def internal_error(request_id: str) -> Refusal:
    """Compose the answer to an uncaught exception."""
    return refuse("internal_error", "Internal server error.", request_id)


def refuse_domain_error(error: DomainError, request_id: str) -> Refusal:
    """Compose the error answer for a refusal of the domain."""
    if isinstance(error, errors.UnknownFeatureError) and error.feature is not None:
        _log_unknown_feature(error.feature)
    return refuse(
        error.code,
        error.detail,
        request_id,
        faults=error.faults if isinstance(error, errors.ValidationError) else (),
        object_id=error.object_id if isinstance(error, errors.IdempotencyReplayError) else None,
        reason=(error.reason or None) if isinstance(error, errors.OrgSuspendedError) else None,
        headers=_headers(error, STATUSES[type(error)]),
        needed=error.needed,
    )


def refuse_error(error: Exception, request_id: str) -> Refusal:
    """Compose the answer to any error of a request, and log one that is no refusal."""
    if isinstance(error, DomainError):
        return refuse_domain_error(error, request_id)
    logger.error("request %s failed", request_id, exc_info=error)
    return internal_error(request_id)


def log_refused_token(fault: TokenFault | None, request_id: bytes) -> None:
    """Log why a request with a bearer token is refused, if it is that."""
    if fault is not None:
        logger.warning(
            "bearer token refused: reason=%s request=%s: %s",
            fault.check,
            request_id.decode(),
            fault.reason,
        )


@functools.lru_cache(_UNKNOWN_FEATURES)
def _log_unknown_feature(name: str) -> None:
    """Tell the operator of a misspelt check; once, because every request would repeat it."""
    logger.warning(
        "the plan catalog has no feature %s, which a request or its check names: such requests get 404",
        name,
    )


def _headers(error: DomainError, status: HTTPStatus) -> list[Header]:
    """The challenge of a credential, ``Retry-After``, the status of an exceeded rate limit, the
    accepted encoding.
    """
    if isinstance(error, errors.CompressedBodyError):
        return [UNCOMPRESSED]
    if isinstance(error, errors.RateLimitedError):
        return [(b"retry-after", b"%d" % error.retry_after), *rate_headers(error.rate_limits)]
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        return [(b"retry-after", RETRY_AFTER.encode())]
    challenge = _challenge(error, status)
    return [] if challenge is None else [(b"www-authenticate", challenge)]


def _challenge(error: DomainError, status: HTTPStatus) -> bytes | None:
    """Return the ``WWW-Authenticate`` of RFC 6750, section 3, if the answer has one."""
    if isinstance(error, errors.MissingCredentialError):
        return b'Bearer realm="api"'
    if isinstance(error, errors.InsufficientScopeError):
        challenge = f'Bearer realm="api", error="insufficient_scope", scope="{error.scope}"'
        return challenge.encode("latin-1", "replace")
    if status is HTTPStatus.UNAUTHORIZED:
        challenge = f'Bearer realm="api", error="invalid_token", error_description="{error.detail}"'
        return challenge.encode("ascii", "replace")
    return None
