"""The errors of the SDK: subclasses of `TenantryError`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tenantry_sdk._request import CallFacts

_NEXT_STEPS: Final = {
    "missing_credential": "Pass api_key=, or set TENANTRY_API_KEY.",
    "invalid_credential": "Check that the credential is of the kind that is needed, complete, and for this service.",
    "api_key_disabled": "Enable the key, or use another one.",
    "api_key_revoked": "Create another key and use it.",
    "api_key_expired": "Create another key, or rotate keys before they expire.",
    "token_expired": "Sign in again, or pass tokens= so that the client renews tokens.",
    "insufficient_scope": "Use a credential with this scope.",
    "user_token_required": "Use a user's access token instead of an API key.",
    "operator_required": "Use the operator's client: Tenantry(operator_token=...).tenant(id).",
    "org_mismatch": "Use a credential of that organization.",
    "no_organization": "Pass organization=, accept an invitation (memberships.list()), or ask an owner to invite you.",
    "org_suspended": "The operator suspended the organization. Ask the operator to end the suspension.",
    "address_not_allowed": "Send the request from an address that the key allows, or change its allowed addresses.",
    "scope_escalation": "Request only scopes, access levels and expiry dates that the credential in use has.",
    "mode_mismatch": "Use a live-mode credential for live-mode objects, members, tenants and billing.",
    "plan_limit_reached": "Delete unused objects, or change to a larger plan.",
    "feature_not_granted": "Change to a plan or an add-on with this feature.",
    "feature_not_metered": "Consume a metered feature that does not count requests by itself.",
    "quota_exceeded": "Wait for the next period (entitlements.get()), or change to a larger plan.",
    "unknown_feature": "Check the name against the plan catalog (entitlements.list()).",
    "unknown_consumption": "Check the key, the feature, and the organization and mode of client.tenant().",
    "consumption_given_back": "Repeat the work with a new idempotency_key.",
    "key_limit_reached": "Revoke unused keys, or change to a larger plan.",
    "grant_limit_reached": "End a grant that is not needed.",
    "key_not_active": 'Use an active key (api_keys.list(status="active")).',
    "last_owner": "Add another owner or OWNER key first.",
    "not_found": "Check the id. Objects of other organizations are not found either.",
    "email_mismatch": "Pass the proof of the mailed link, or ask for an invitation of the user's address.",
    "email_not_verified": "Pass the proof of the mailed link, or call invitations.request_confirmation().",
    "invitation_closed": "Ask for a new invitation, or create one (invitations.create()).",
    "invitation_exists": "Send the open invitation again (invitations.resend()), or withdraw it first.",
    "invitation_limit_reached": "Withdraw invitations, pass on the link (invitations.link()), or try again later.",
    "invitations_not_enabled": "The operator must set INVITATIONS=true.",
    "member_exists": "Change the member's role instead.",
    "member_not_active": "Invite the user again.",
    "tenant_limit_reached": "Use one of the user's organizations, or ask the operator to allow more.",
    "tenant_exists": "Use the existing organization.",
    "tenant_deleted": "Use another id, or wait until 30 days after the deletion.",
    "customer_taken": "Find the tenant of this customer: a customer belongs to one tenant.",
    "currency_not_available": "Pass one of the price's currencies (plans.list()), or leave currency out.",
    "no_customer": "Create a checkout session first.",
    "subscription_exists": "Change the subscription in the portal (billing.portal_sessions.create()).",
    "cursor_expired": 'Read the objects again, and follow from a new cursor (after="now").',
    "invalid_cursor": "Start the list again without a cursor.",
    "idempotency_in_flight": "Retry in a moment with the same idempotency_key.",
    "idempotency_mismatch": "Use a new idempotency_key for a different request.",
    "idempotency_replay": "The key already exists, and its secret was sent once. Delete it if the secret is lost.",
    "invalid_idempotency_key": "Use 1 to 255 visible ASCII characters.",
    "invalid_json": "Send a JSON object.",
    "invalid_request": "Check the request against the API reference.",
    "organization_required": "Name the organization: client.tenant(id).",
    "method_not_allowed": "Check that base_url is the address of the service.",
    "unsupported_media_type": "Send Content-Type: application/json, and no Content-Encoding.",
    "payload_too_large": "Send less than 1 MiB.",
    "head_too_large": "Send a shorter address, and fewer and shorter headers.",
    "request_timeout": "Check the network: the request took too long to arrive.",
    "validation_failed": "Correct the fields that errors lists.",
    "rate_limited": "Wait for retry_after seconds.",
    "overloaded": "Wait for retry_after seconds.",
    "auth_unavailable": "Try again in a moment; the service cannot reach its database or identity provider.",
    "database_unavailable": "Try again in a moment; the service cannot reach its database.",
    "http_404": "base_url is not the address of tenantry: another server answered.",
    "internal_error": "Try again. If the error persists, give the operator the request id.",
    "provider_not_configured": "The operator must set PROVIDER_SECRET_KEY.",
    "identity_provider_not_configured": "The operator must set OIDC_ISSUER.",
    "provider_refused": "Ask the operator: the payment provider rejected the request.",
    "provider_unavailable": "Try again in a moment; the payment provider is unreachable.",
}


_NOT_TENANTRY: Final = (
    "Check that base_url is the address of the service: a gateway or another server answered."
)
_PASSED_ON: Final = (
    "Content-Type",
    "WWW-Authenticate",
    "Retry-After",
    "RateLimit",
    "RateLimit-Policy",
)


class TenantryError(Exception):
    """The base class of all errors of a call.

    ``idempotency_key`` is set for a creation that may have succeeded: repeat the call with it to
    get the result.
    """

    # The defaults are for subclasses of other programs that do not call `__init__`.
    idempotency_key: str | None = None
    """The key of a creation that may have succeeded."""
    request_id: str | None = None
    """The id of the request in the service's log, if a response had one."""
    after_lost_answer: bool = False
    """Whether the response to an earlier attempt was lost; that attempt may have succeeded."""

    def __init__(
        self,
        message: str,
        request_id: str | None = None,
        *,
        idempotency_key: str | None = None,
        after_lost_answer: bool = False,
    ) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.idempotency_key = idempotency_key
        self.after_lost_answer = after_lost_answer

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ConfigurationError(TenantryError):
    """The client's settings are invalid."""


class ConnectionFailedError(TenantryError):
    """There was no complete response: the request may or may not have been handled."""


class TimedOutError(ConnectionFailedError):
    """The call timed out."""


class TokenTimedOutError(TimedOutError):
    """The call timed out before it had an access token."""


class UnreadableAnswerError(TenantryError):
    """The response is not one of tenantry: a proxy, another service or an incompatible version sent
    it.
    """


class LostKeyError(TenantryError):
    """A key was created, but its secret was lost with the response. Revoke ``key_id``, if it is
    set.
    """

    def __init__(self, message: str, key_id: str | None) -> None:
        super().__init__(message)
        self.key_id = key_id


class TokenRefreshError(TenantryError):
    """The identity provider issued no token. ``code`` is its OAuth error (RFC 6749 section 5.2), if
    any.

    ``code`` is ``signed_out`` if there is no stored token any more because the user signed out.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """An error in one field or parameter of a request."""

    location: str
    """The field's path, or the parameter's name."""
    message: str
    """What is wrong with it."""


class APIError(TenantryError):
    """The service rejected the request. Each status has its own subclass."""

    status: ClassVar[int | None] = None
    """The status of this class; None for `APIError`, whose status has no class."""
    status_code: int
    """The HTTP status."""
    code: str
    """The reason, for programs."""
    detail: str
    """The reason, for people."""
    errors: list[Fault]
    """The invalid fields."""
    headers: dict[str, str]
    """The headers of the response; their names are in lower case."""
    retry_after: float | None
    """Seconds to wait before a retry, if the service named them."""
    document: dict[str, Any]
    """The problem document (RFC 9457)."""
    content: bytes
    """The body of the response."""
    next_step: str | None
    """The remedy, if known."""
    is_for_caller: bool = False
    """Whether it rejects a caller of your own service, as errors of `verify` do, so that
    `frameworks` answers with it; denied entitlements are always for the caller. Others are about
    your service's own calls.
    """

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
        content: bytes = b"",
        is_for_caller: bool = False,
        **call: Unpack[CallFacts],
    ) -> None:
        self.status_code = status_code
        self.code = code
        self.detail = detail
        self.errors = errors or []
        self.is_for_caller = is_for_caller or self.is_for_caller
        self.headers = dict(headers or {})
        self.retry_after = retry_after
        self.document = dict(document or {})
        self.content = content
        self.next_step = _NEXT_STEPS.get(code) or (
            _NOT_TENANTRY if code == f"http_{status_code}" else None
        )
        super().__init__(self._text(request_id), request_id, **call)

    @property
    def headers_to_pass_on(self) -> dict[str, str]:
        """The headers with which a service that called `verify` answers its own client, beside
        ``content``.

        ``Content-Type``, ``WWW-Authenticate``, ``Retry-After`` and those of the rate limit, if the
        response has them, and ``Cache-Control: no-store``.
        """
        passed = {
            name: self.headers[name.lower()] for name in _PASSED_ON if name.lower() in self.headers
        }
        return {**passed, "Cache-Control": "no-store"}

    def _text(self, request_id: str | None) -> str:
        lines = [f"{self.status_code} {self.code}: {self.detail}"]
        lines += [f"  {fault.location}: {fault.message}" for fault in self.errors]
        if self.next_step:
            lines.append(self.next_step)
        if request_id:
            lines.append(f"(request {request_id})")
        return "\n".join(lines)


class BadRequestError(APIError):
    """400: the request is malformed."""

    status: ClassVar[int | None] = 400


class AuthenticationError(APIError):
    """401: the credential is missing, invalid, revoked or expired."""

    status: ClassVar[int | None] = 401


class PermissionDeniedError(APIError):
    """403: the credential has no permission for this."""

    status: ClassVar[int | None] = 403


class EntitlementDeniedError(PermissionDeniedError):
    """403: the organization may not use the feature now.

    If the service is unreachable, `consume` raises this class with ``on_unavailable="deny"``.
    """

    is_for_caller = True


class FeatureNotGrantedError(EntitlementDeniedError):
    """403: neither the plan nor anything else gives the organization this feature."""


class QuotaExceededError(EntitlementDeniedError):
    """403: the organization's quota of this feature has less left than was asked for."""


class NotFoundError(APIError):
    """404: the object does not exist in the caller's tenant."""

    status: ClassVar[int | None] = 404


class UnknownFeatureError(NotFoundError):
    """The plan catalog does not declare this feature: its name is probably misspelt."""


class MethodNotAllowedError(APIError):
    """405: the address does not support this method; it may not be that of a tenantry service."""

    status: ClassVar[int | None] = 405


class RequestTimeoutError(APIError):
    """408: the request did not arrive in time."""

    status: ClassVar[int | None] = 408


class ConflictError(APIError):
    """409: the request conflicts with the current state."""

    status: ClassVar[int | None] = 409


class CursorExpiredError(APIError):
    """410: events after the cursor are not kept any more, or were lost when a backup was restored.
    Read the objects again, and follow from a new cursor.
    """

    status: ClassVar[int | None] = 410


class PayloadTooLargeError(APIError):
    """413: the request is too large."""

    status: ClassVar[int | None] = 413


class UnsupportedMediaTypeError(APIError):
    """415: the body is not JSON."""

    status: ClassVar[int | None] = 415


class ValidationFailedError(APIError):
    """422: ``errors`` lists the invalid fields."""

    status: ClassVar[int | None] = 422


class RateLimitedError(APIError):
    """429: too many requests; retry after ``retry_after`` seconds."""

    status: ClassVar[int | None] = 429


class HeadTooLargeError(APIError):
    """431: the address or the headers are too long."""

    status: ClassVar[int | None] = 431


class ServerError(APIError):
    """500: an internal error of the service."""

    status: ClassVar[int | None] = 500


class NotConfiguredError(APIError):
    """501: the operator has not configured this feature."""

    status: ClassVar[int | None] = 501


class BadGatewayError(APIError):
    """502: the payment provider rejected the request, or a gateway got an invalid response."""

    status: ClassVar[int | None] = 502


class UnavailableError(APIError):
    """503: the service, its database or its identity provider is unreachable or overloaded."""

    status: ClassVar[int | None] = 503


class GatewayTimeoutError(APIError):
    """504: a gateway in front of the service timed out."""

    status: ClassVar[int | None] = 504


def _rebuild(
    kind: type[TenantryError], args: tuple[Any, ...], state: dict[str, Any]
) -> TenantryError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error
