"""What goes wrong with a call, one class each. Everything raised here is a `TenantryError`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from tenantry_sdk._models import NOT_JSON, Fault

_NEXT_STEPS: Final = {
    "missing_credential": "Pass api_key=, or set TENANTRY_API_KEY.",
    "invalid_credential": "Look whether the key or token is whole, and meant for this service.",
    "api_key_revoked": "Make another key and use that.",
    "api_key_expired": "Make another key, or rotate keys before they end.",
    "token_expired": "Sign in again, or pass tokens= so that tokens are refreshed.",
    "insufficient_scope": "Use a credential that holds the scope.",
    "user_token_required": "Use a user's access token instead of an API key.",
    "org_mismatch": "Use a credential of that organization.",
    "no_organization": "Pass organization=, accept an invitation (memberships.list()), or ask an owner for one.",
    "org_suspended": "The operator of the service has suspended the organization, and can lift that.",
    "scope_escalation": "Ask for no more than the credential in use holds itself.",
    "mode_mismatch": "Use a live-mode credential for live-mode objects, members, tenants and billing.",
    "plan_limit_reached": "Delete what is not needed, or change to a larger plan.",
    "key_limit_reached": "Revoke keys that are not needed, or change to a larger plan.",
    "key_not_active": "List the active keys and use one of them.",
    "last_owner": "Make another owner or OWNER key first.",
    "not_found": "Look the id up; another organization's objects answer as missing ones do.",
    "member_exists": "Change the member's role instead.",
    "member_not_active": "Invite the user again.",
    "tenant_limit_reached": "Use one of the user's organizations, or ask the operator to allow more.",
    "tenant_exists": "Use the organization that is there.",
    "tenant_deleted": "Use another id, or wait until the 30 days are over.",
    "customer_taken": "Look which tenant the customer belongs to; one customer is of one tenant.",
    "no_customer": "Begin with a checkout session.",
    "invalid_cursor": "Begin the list anew without a cursor.",
    "idempotency_in_flight": "Ask again in a moment, with the same idempotency_key.",
    "idempotency_mismatch": "Use another idempotency_key for another request.",
    "idempotency_replay": "The key was made before, and its secret given out then: delete it if that was lost.",
    "invalid_idempotency_key": "Use 1 to 255 visible ASCII characters.",
    "invalid_json": "Send a JSON object.",
    "invalid_request": "Send what the API reference says.",
    "method_not_allowed": "Look whether base_url is the service's.",
    "unsupported_media_type": "Send Content-Type: application/json, and no Content-Encoding.",
    "payload_too_large": "Send less than 1 MiB.",
    "head_too_large": "Send a shorter address, and fewer and shorter headers.",
    "request_timeout": "Send the request faster: look at the line between here and the service.",
    "validation_failed": "Correct what errors names.",
    "rate_limited": "Wait for retry_after seconds.",
    "overloaded": "Wait for retry_after seconds.",
    "auth_unavailable": "Try again in a moment; the service cannot reach its database or identity provider.",
    "database_unavailable": "Try again in a moment; the service cannot reach its database.",
    "internal_error": "Try again; if it stays so, give the operator the request id.",
    "provider_not_configured": "The operator has to set PROVIDER_SECRET_KEY.",
    "identity_provider_not_configured": "The operator has to set OIDC_ISSUER.",
    "provider_refused": "Ask the operator: the payment provider did not accept the request.",
    "provider_unavailable": "Try again in a moment; the payment provider is out of reach.",
}


class TenantryError(Exception):
    """Anything that this package raises about a call.

    ``idempotency_key`` is that of a create that may have been carried out: the same call with it finds out.
    """

    idempotency_key: str | None = None
    after_lost_answer: bool = False
    """Whether the answer to an earlier attempt was lost, which may have been carried out."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


class ConfigurationError(TenantryError):
    """The client cannot be used as it was set up."""


class ConnectionFailedError(TenantryError):
    """There was no answer, or not a whole one: whether the request was carried out is not known."""


class TimedOutError(ConnectionFailedError):
    """The answer did not come in the time that the call had."""


class TokenTimedOutError(TimedOutError):
    """No access token came in the time that the call had."""


class UnreadableAnswerError(TenantryError):
    """Something answered, but not as tenantry does: a proxy, another service, or a version that does not fit."""


class LostKeyError(TenantryError):
    """A key was made, but its secret was lost with the answer. ``key_id`` still has to be revoked, where it is set."""

    def __init__(self, message: str, key_id: str | None) -> None:
        super().__init__(message)
        self.key_id = key_id


class TokenRefreshError(TenantryError):
    """The identity provider gave no token. ``code`` is its OAuth error (RFC 6749, 5.2), where it named one.

    It is ``signed_out`` if the stored token is gone because the user signed out.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class APIError(TenantryError):
    """The service rejected the request. Each status has its own subclass.

    ``code`` names the reason, ``detail`` tells it in words, ``errors`` the faulty fields, ``request_id`` finds the
    request in the service's log, and ``next_step`` says what to do, where that is known.
    """

    status: ClassVar[int | None] = None

    def __init__(
        self,
        status_code: int,
        *,
        code: str,
        detail: str,
        errors: list[Fault] | None = None,
        request_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        document: Mapping[str, Any] | None = None,
    ) -> None:
        self.status_code = status_code
        self.code = code
        self.detail = detail
        self.errors = errors or []
        self.request_id = request_id
        self.headers = dict(headers or {})
        self.retry_after = retry_after
        """Seconds to wait before asking again, where the service says so."""
        self.document = dict(document or {})
        """The whole problem document."""
        self.next_step = _NEXT_STEPS.get(code)
        super().__init__(self._text())

    def _text(self) -> str:
        lines = [f"{self.status_code} {self.code}: {self.detail}"]
        lines += [f"  {fault.location}: {fault.message}" for fault in self.errors]
        if self.next_step:
            lines.append(self.next_step)
        if self.request_id:
            lines.append(f"(request {self.request_id})")
        return "\n".join(lines)


class BadRequestError(APIError):
    """400: the request cannot be understood."""

    status = 400


class AuthenticationError(APIError):
    """401: the credential is missing, revoked, expired or not one of the service's."""

    status = 401


class PermissionDeniedError(APIError):
    """403: the credential may not do this."""

    status = 403


class NotFoundError(APIError):
    """404: there is no such object in the caller's tenant."""

    status = 404


class MethodNotAllowedError(APIError):
    """405: the address does not take this method: it may not be a tenantry service's."""

    status = 405


class RequestTimeoutError(APIError):
    """408: the request did not arrive in time."""

    status = 408


class ConflictError(APIError):
    """409: the request conflicts with the current state."""

    status = 409


class PayloadTooLargeError(APIError):
    """413: the request is too large."""

    status = 413


class UnsupportedMediaTypeError(APIError):
    """415: the body is not JSON."""

    status = 415


class ValidationFailedError(APIError):
    """422: ``errors`` names the faulty fields."""

    status = 422


class RateLimitedError(APIError):
    """429: too many requests; ``retry_after`` says when to come again."""

    status = 429


class HeadTooLargeError(APIError):
    """431: The address or the headers are too long."""

    status = 431


class ServerError(APIError):
    """500: a fault of the service."""

    status = 500


class NotConfiguredError(APIError):
    """501: the operator has not set this up."""

    status = 501


class BadGatewayError(APIError):
    """502: the payment provider, or a gateway in front of the service, refused."""

    status = 502


class UnavailableError(APIError):
    """503: the service, its database or its identity provider is out of reach, or it has too much to do."""

    status = 503


class GatewayTimeoutError(APIError):
    """504: a gateway in front of the service waited in vain."""

    status = 504


def _rebuilt(kind: type[TenantryError], args: tuple[Any, ...], state: dict[str, Any]) -> TenantryError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


_BY_STATUS: Final[dict[int | None, type[APIError]]] = {kind.status: kind for kind in APIError.__subclasses__()}


class _Problem(msgspec.Struct):
    code: str
    detail: str
    errors: list[Fault] = []


def error_of(status: int, headers: Mapping[str, str], content: bytes, retry_after: float | None) -> APIError:
    """Return the error of an answer."""
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
        problem = msgspec.convert(document, _Problem)
    except NOT_JSON:
        # Not the service itself: a gateway in front of it.
        document, problem = {}, _Problem(f"http_{status}", _excerpt(content) or "The answer says no more.")
    return _BY_STATUS.get(status, APIError)(
        status,
        code=problem.code,
        detail=problem.detail,
        errors=problem.errors,
        request_id=headers.get("x-request-id"),
        headers=headers,
        retry_after=retry_after,
        document=document,
    )


def _excerpt(content: bytes) -> str:
    text = " ".join(content[:2000].decode("utf-8", "replace").split())
    return "".join(c for c in text if c.isprintable())[:200]
