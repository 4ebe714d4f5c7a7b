"""Errors of the API: a stable code, and a message without secrets. `tenantry.server.problems` has
the HTTP status.
"""

from typing import ClassVar, Final, Literal, NamedTuple

from tenantry.common.encoding import with_full_stop
from tenantry.domain.features import is_feature_id
from tenantry.domain.rate_limits import RateLimitStatus

CurrencyOwner = Literal["customer", "price"]


class TokenFault(NamedTuple):
    """Why a bearer token is refused: the check that it fails, in one word, and the reason. Nothing
    of the token.
    """

    check: str
    reason: str


class DomainError(Exception):
    """An error with a stable ``code`` and a ``detail`` without secrets.

    ``token_fault`` says which check a bearer token fails, where that is known. It is for the
    operator, not for the client. ``needed`` is what the sender lacked: a scope or a feature, or the
    limit that was reached.
    """

    code: ClassVar[str]

    def __init_subclass__(cls, *, code: str) -> None:
        cls.code = code

    def __init__(
        self, detail: str, *, needed: str | None = None, token_fault: TokenFault | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.needed = needed
        self.token_fault = token_fault


class MissingCredentialError(DomainError, code="missing_credential"): ...


class InvalidCredentialError(DomainError, code="invalid_credential"): ...


class ApiKeyRevokedError(DomainError, code="api_key_revoked"): ...


class ApiKeyExpiredError(DomainError, code="api_key_expired"): ...


class ApiKeyDisabledError(DomainError, code="api_key_disabled"): ...


KEY_REFUSALS: Final = (ApiKeyRevokedError, ApiKeyExpiredError, ApiKeyDisabledError)
"""The errors of a key that is not accepted, of which the request has the secret."""


class TokenExpiredError(DomainError, code="token_expired"): ...


class AuthUnavailableError(DomainError, code="auth_unavailable"):
    """The request cannot be authenticated now: the database or the identity provider's keys are
    unavailable.
    """


class DatabaseUnavailableError(DomainError, code="database_unavailable"): ...


class OverloadedError(DomainError, code="overloaded"): ...


class InsufficientScopeError(DomainError, code="insufficient_scope"):
    def __init__(self, scope: str) -> None:
        super().__init__(f"This needs the scope {scope}.", needed=scope)
        self.scope = scope


class UserTokenRequiredError(DomainError, code="user_token_required"): ...


class OperatorRequiredError(DomainError, code="operator_required"):
    """Only the operator, acting for the tenant, may do this."""


class OrganizationRequiredError(DomainError, code="organization_required"):
    """The operator's request does not say for which tenant it acts, or not clearly."""


class OrgMismatchError(DomainError, code="org_mismatch"): ...


class NoOrganizationError(DomainError, code="no_organization"): ...


class OrgSuspendedError(DomainError, code="org_suspended"):
    """The operator has suspended the organization. ``reason`` is in the operator's words; empty
    without one.
    """

    def __init__(self, reason: str = "") -> None:
        cause = f": {reason}" if reason else ""
        super().__init__(with_full_stop(f"The organization is suspended{cause}"))
        self.reason = reason


class AddressNotAllowedError(DomainError, code="address_not_allowed"):
    """The API key may not be used from the request's ``address``, or that is not certain: then
    ``needed`` says what would prove it.
    """

    def __init__(
        self, detail: str, *, address: str | None = None, needed: str | None = None
    ) -> None:
        super().__init__(detail, needed=needed)
        self.address = address


class ScopeEscalationError(DomainError, code="scope_escalation"): ...


class ModeMismatchError(DomainError, code="mode_mismatch"): ...


class PlanLimitReachedError(DomainError, code="plan_limit_reached"): ...


class FeatureNotGrantedError(DomainError, code="feature_not_granted"):
    """Neither the tenant's plan nor an add-on or a grant gives the feature."""

    def __init__(self, feature: str) -> None:
        super().__init__(f"The organization does not have the feature {feature}.", needed=feature)


class KeyLimitReachedError(DomainError, code="key_limit_reached"): ...


class GrantLimitReachedError(DomainError, code="grant_limit_reached"):
    """The tenant has as many grants as a tenant may have."""


class KeyNotActiveError(DomainError, code="key_not_active"): ...


class LastOwnerError(DomainError, code="last_owner"):
    """The tenant would have no owner left to manage it."""


class MemberExistsError(DomainError, code="member_exists"): ...


class InvitationExistsError(DomainError, code="invitation_exists"):
    """The tenant has an open invitation for this address."""


class InvitationClosedError(DomainError, code="invitation_closed"):
    """The invitation was accepted or withdrawn, or has expired."""


class InvitationLimitReachedError(DomainError, code="invitation_limit_reached"):
    """The tenant has too many open invitations, or sent too many mails."""


class InvitationsNotEnabledError(DomainError, code="invitations_not_enabled"): ...


class EmailNotVerifiedError(DomainError, code="email_not_verified"):
    """No address of the user is verified."""


class EmailMismatchError(DomainError, code="email_mismatch"):
    """The user's verified address is not the invited one."""


class MemberNotActiveError(DomainError, code="member_not_active"): ...


class UnknownFeatureError(DomainError, code="unknown_feature"):
    """The plan catalog has no such feature. ``feature`` is the name, if it could be one's."""

    def __init__(self, name: str) -> None:
        # not what cannot be a name: it may be a credential in the wrong place
        self.feature = name if is_feature_id(name) else None
        shown = "no such feature" if self.feature is None else f"no feature {name!r}"
        super().__init__(f"The plan catalog has {shown}.")


class FeatureNotMeteredError(DomainError, code="feature_not_metered"):
    """Callers do not consume this feature."""


class QuotaExceededError(DomainError, code="quota_exceeded"):
    """The rest of the quota is smaller than what was asked for."""


class UnknownConsumptionError(DomainError, code="unknown_consumption"):
    """No consumption of the last 24 hours has the idempotency key."""

    def __init__(self) -> None:
        super().__init__(
            "The organization consumed nothing of this feature with this idempotency key in the last "
            "24 hours."
        )


class ConsumptionGivenBackError(DomainError, code="consumption_given_back"):
    """What was consumed with the idempotency key was given back."""

    def __init__(self) -> None:
        super().__init__("What was consumed with this Idempotency-Key was given back.")


class RateLimitedError(DomainError, code="rate_limited"):
    """A limit of the plan is reached; ``retry_after`` seconds from now another request is
    accepted.
    """

    def __init__(self, detail: str, rate_limits: RateLimitStatus, retry_after: int) -> None:
        used_up = [quota.policy.value for quota in rate_limits if not quota.remaining]
        super().__init__(detail, needed=used_up[0] if used_up else None)
        self.rate_limits = rate_limits
        self.retry_after = retry_after


class TenantLimitReachedError(DomainError, code="tenant_limit_reached"):
    """The user may create no more tenants."""


class TenantExistsError(DomainError, code="tenant_exists"): ...


class TenantDeletedError(DomainError, code="tenant_deleted"): ...


class CustomerTakenError(DomainError, code="customer_taken"): ...


class SubscriptionExistsError(DomainError, code="subscription_exists"): ...


class CurrencyNotAvailableError(DomainError, code="currency_not_available"):
    """A price has no such currency, or the customer pays in another one."""


class NoCustomerError(DomainError, code="no_customer"): ...


class InvalidRequestError(DomainError, code="invalid_request"):
    """A header has a value that it cannot have."""


class InvalidIdempotencyKeyError(DomainError, code="invalid_idempotency_key"): ...


class PayloadTooLargeError(DomainError, code="payload_too_large"): ...


class HeadTooLargeError(DomainError, code="head_too_large"): ...


class CompressedBodyError(DomainError, code="unsupported_media_type"):
    """A small compressed body could expand to any size."""

    def __init__(self) -> None:
        super().__init__("Send the body uncompressed, without Content-Encoding.")


class NotFoundError(DomainError, code="not_found"):
    def __init__(self, what: str) -> None:
        super().__init__(f"There is no such {what}.")


class InvalidCursorError(DomainError, code="invalid_cursor"): ...


class CursorExpiredError(DomainError, code="cursor_expired"):
    """Events after the cursor were removed with age, or lost with a database that a backup
    replaced.
    """


class ValidationError(DomainError, code="validation_failed"):
    """Well-formed but invalid input, with one ``(location, message)`` for each fault."""

    def __init__(self, *faults: tuple[str, str]) -> None:
        super().__init__("The request is not valid.")
        self.faults = faults


class IdempotencyReplayError(DomainError, code="idempotency_replay"):
    """The first response contained a secret, which is never sent twice; ``object_id`` is the
    created object.
    """

    def __init__(self, object_id: str) -> None:
        super().__init__(
            "This request was carried out before; the secret was in the first answer only."
        )
        self.object_id = object_id


class IdempotencyInFlightError(DomainError, code="idempotency_in_flight"): ...


class IdempotencyMismatchError(DomainError, code="idempotency_mismatch"): ...


class ProviderNotConfiguredError(DomainError, code="provider_not_configured"): ...


class ProviderUnavailableError(DomainError, code="provider_unavailable"): ...


class ProviderRefusedError(DomainError, code="provider_refused"):
    """``of_key``: the payment provider rejects the API key or its permissions. ``provider_code``
    and ``said`` are the provider's own code and message; the message is in the text of the
    exception for the operator, and not in the ``detail`` for clients. ``is_customer_missing``: it
    does not have the customer that the request names. ``currency_of`` is what has other currencies
    than the request's, if that is the reason.
    """

    def __init__(
        self,
        detail: str,
        *,
        of_key: bool = False,
        provider_code: str = "unknown",
        said: str | None = None,
        is_customer_missing: bool = False,
        currency_of: CurrencyOwner | None = None,
    ) -> None:
        super().__init__(detail)
        self.of_key = of_key
        self.provider_code = provider_code
        self.said = said
        self.is_customer_missing = is_customer_missing
        self.currency_of = currency_of

    def __str__(self) -> str:
        return self.detail if self.said is None else f"{self.detail} It says: {self.said}"


class IdentityProviderNotConfiguredError(DomainError, code="identity_provider_not_configured"): ...
