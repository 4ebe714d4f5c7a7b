"""The records of the API. Fields and values that a newer service adds are kept."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from tenantry_sdk._secret import Secret

if TYPE_CHECKING:
    from tenantry_sdk._request import Response
    from tenantry_sdk.types import (
        AccessLevel,
        AccessState,
        ActorKind,
        AuditAction,
        EventOutcome,
        HealthStatus,
        KeyStatus,
        MemberStatus,
        Mode,
        OwnMembershipStatus,
        PrincipalKind,
        Role,
        SubscriptionStatus,
    )
else:
    # msgspec would reject the values that a newer service adds.
    AccessLevel = AccessState = ActorKind = AuditAction = EventOutcome = HealthStatus = KeyStatus = MemberStatus = str
    Mode = OwnMembershipStatus = PrincipalKind = Role = SubscriptionStatus = str

NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of msgspec for invalid JSON, for too deep nesting, and for another type than expected."""


_EXTRA: Final = "_extra"
_RESPONSE: Final = "_response"


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel", dict=True):
    """A record of the API, with field names in snake case."""

    @property
    def extra_fields(self) -> Mapping[str, Any]:
        """The fields that this version of the client does not know, in the API's spelling."""
        extra: Mapping[str, Any] = vars(self).get(_EXTRA, {})
        return extra

    @property
    def response(self) -> Response:
        """The raw response that the record came with: its status, headers, ``request_id`` and body.

        Raises `AttributeError` for a record that did not come from the service.
        """
        try:
            response: Response = vars(self)[_RESPONSE]
        except KeyError:
            raise AttributeError(f"This {type(self).__name__} did not come with a response.") from None
        return response

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values in the API's spelling, unknown fields included.

        The secret of a new key stays a `Secret`, which no JSON encoder accepts: reveal it where that is intended.
        """
        fields = {one.encode_name: _plain(getattr(self, one.name)) for one in msgspec.structs.fields(self)}
        return {**fields, **self.extra_fields}

    def __copy__(self) -> Model:
        return _with(msgspec.structs.replace(self), vars(self))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return _rebuild, (type(self), fields, {name: vars(self)[name] for name in vars(self).keys() & _KEPT})


_KEPT: Final = frozenset({_EXTRA, _RESPONSE})


def _rebuild(kind: type[Model], fields: dict[str, Any], attributes: dict[str, Any]) -> Model:
    return _with(kind(**fields), attributes)


def _with(record: Model, attributes: Mapping[str, Any]) -> Model:
    vars(record).update(attributes)
    return record


def _plain(value: object) -> object:
    match value:
        case Model():
            return value.to_dict()
        case list():
            return [_plain(item) for item in cast("list[object]", value)]
        case datetime():
            return msgspec.to_builtins(value)
        case _:
            return value


class ApiKey(Model, frozen=True, kw_only=True):
    """An API key, without its secret."""

    id: str
    org_id: str
    name: str
    scopes: list[str]
    access_level: AccessLevel
    """``SCOPED``, or ``OWNER`` for a key with every permission."""
    mode: Mode
    """``live`` or ``test``. A key sees only objects of the same mode."""
    expires_at: datetime | None
    status: KeyStatus
    """``active``, ``revoked`` or ``expired``."""
    start: str
    last4: str
    created_at: datetime
    created_by: str
    last_used_at: datetime | None = None
    last_used_address: str | None = None
    revoked_at: datetime | None = None
    rotated_from: str | None = None
    superseded_by: str | None = None
    rotated_from_last_used_at: datetime | None = None
    leak_reported_at: datetime | None = None
    """When a leak report revoked the key."""


class NewApiKey(ApiKey, frozen=True, kw_only=True):
    """A new key with its secret, which only this response contains."""

    secret: Secret


class RevokedKey(Model, frozen=True, kw_only=True):
    """A key that a leak report revoked."""

    id: str
    status: KeyStatus
    revoked_at: datetime


class Project(Model, frozen=True, kw_only=True):
    """A project of the tenant."""

    id: str
    org_id: str
    name: str
    description: str | None
    mode: Mode
    created_at: datetime
    updated_at: datetime


class BillingState(Model, frozen=True, kw_only=True):
    """The fields of a tenant that billing events set."""

    plan: str
    subscription_status: SubscriptionStatus
    """The provider's status, such as ``active``, ``past_due`` or ``canceled``; ``none`` without a subscription."""
    current_period_end: datetime | None
    cancel_at_period_end: bool


class TenantAccess(Model, frozen=True, kw_only=True):
    """What a tenant's subscriptions give now."""

    state: AccessState
    """``full``, ``grace`` (a payment is due) or ``none``."""
    plan: str
    """The plan whose limits count; ``free`` without access."""
    until: datetime | None
    """When this ends without another event; None if it does not."""
    reason: str


class Tenant(BillingState, frozen=True, kw_only=True):
    """A tenant: an organization with its plan and subscription."""

    id: str
    name: str
    access: TenantAccess | None = None
    """None from a service without this field."""
    cancel_at: datetime | None = None
    """When the provider will cancel the subscription, if that is scheduled."""
    ends_at: datetime | None = None
    """When the subscription ended or will end; None if it renews."""
    seats: int | None = None
    """The quantity of the subscription's plan item."""
    stripe_customer_id: str | None
    owner_id: str | None
    created_at: datetime
    updated_at: datetime


class Limits(Model, frozen=True, kw_only=True):
    """The limits of a plan; None means unlimited."""

    projects: int | None = None
    api_keys: int | None = None
    members: int | None = None
    requests_per_minute: int | None = None
    requests_per_minute_per_key: int | None = None


class Plan(Model, frozen=True, kw_only=True):
    """A plan of the catalog."""

    id: str
    name: str
    stripe_price_id: str | None
    limits: Limits


class Member(Model, frozen=True, kw_only=True):
    """A user of the tenant, with a role."""

    id: str
    org_id: str
    user_id: str
    role: Role
    """``owner``, ``admin`` or ``member``."""
    status: MemberStatus
    """``invited`` until the user accepts, then ``active``; finally ``removed``."""
    created_at: datetime
    updated_at: datetime
    removed_at: datetime | None


class Membership(Model, frozen=True, kw_only=True):
    """A membership or an invitation of the caller."""

    id: str
    org_id: str
    org_name: str
    role: Role
    """``owner``, ``admin`` or ``member``."""
    status: OwnMembershipStatus
    """``invited`` or ``active``."""


class BillingEvent(Model, frozen=True, kw_only=True):
    """An entry of the tenant's ledger: a provider event and its effect."""

    id: str
    type: str
    created: datetime
    received_at: datetime
    livemode: bool | None
    outcome: EventOutcome
    reason: str
    before: BillingState | None
    after: BillingState | None
    anomalies: list[str]


class AuditEvent(Model, frozen=True, kw_only=True):
    """An entry of the audit trail: who changed what, and from where."""

    id: str
    org_id: str
    at: datetime
    action: AuditAction
    actor_kind: ActorKind
    actor_id: str | None
    address: str | None
    request_id: str | None
    target_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class HostedSession(Model, frozen=True, kw_only=True):
    """A page of the payment provider. Send the browser to ``url``; anyone with the URL acts for the tenant there."""

    url: str


class Whoami(Model, frozen=True, kw_only=True):
    """The identity and the permissions of the credential."""

    kind: PrincipalKind
    """``api_key`` or ``user``."""
    id: str
    org_id: str
    mode: Mode
    scopes: list[str]
    access_level: AccessLevel
    plan: str
    subscription_status: SubscriptionStatus
    access: TenantAccess | None = None
    """None from a service without this field."""
    expires_at: datetime | None


class Principal(Model, frozen=True, kw_only=True):
    """The caller of a request that `verify` accepted.

    Characters of ``id`` and ``plan`` outside visible ASCII are ``?``.
    """

    kind: PrincipalKind
    """``api_key`` or ``user``."""
    id: str
    """The key's id, or the user's at the identity provider."""
    org_id: str
    """The tenant that the caller acts for."""
    mode: Mode
    """``live`` or ``test``; always ``live`` for a user."""
    plan: str
    """The plan that the provider last said."""
    subscription_status: SubscriptionStatus
    access: AccessState
    """``full``, ``grace`` (a payment is due) or ``none``."""
    effective_plan: str
    """The plan whose limits count now; ``free`` without access."""


class TenantExport(Model, frozen=True, kw_only=True):
    """All data of a tenant, except key digests and raw event bodies."""

    tenant: Tenant
    owner_email: str
    owner_email_verified: bool
    suspended: bool
    customers: list[str]
    members: list[dict[str, Any]]
    api_keys: list[ApiKey]
    audit_events: list[AuditEvent]
    projects: list[Project]
    billing_events: list[BillingEvent]


class Health(Model, frozen=True, kw_only=True):
    """The state of the server process that answered."""

    status: HealthStatus
    """``ok``, ``not ready``, or ``draining`` during a shutdown."""
    waiting_for: list[str] = []
    """What is not ready yet."""


class Fault(Model, frozen=True, kw_only=True):
    """An error in one field or parameter of a request."""

    location: str
    message: str


def converted(document: Any, kind: Any, response: Response | None = None) -> Any:  # noqa: ANN401
    """Return decoded JSON as ``kind``, whose records keep unknown fields and the response.

    Raises `msgspec.ValidationError` if a field is missing or of another type.
    """
    value = msgspec.convert(document, kind, dec_hook=_secret)
    _attach(value, document, {} if response is None else {_RESPONSE: response})
    return value


def _attach(value: object, document: Any, attributes: dict[str, Any]) -> None:  # noqa: ANN401  # of the same shape
    match value:
        case Model():
            names = {one.encode_name: one.name for one in msgspec.structs.fields(value)}
            extra = {name: field for name, field in document.items() if name not in names}
            _with(value, {_EXTRA: extra, **attributes})
            for encoded in names.keys() & document.keys():
                _attach(getattr(value, names[encoded]), document[encoded], attributes)
        case list():
            for item, part in zip(cast("list[object]", value), document, strict=True):
                _attach(item, part, attributes)
        case _:
            pass


def _secret(kind: type, value: object) -> object:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise ValueError(f"{kind.__name__} must be a string")
