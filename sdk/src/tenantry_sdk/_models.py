"""The records of the API. Fields that a newer service adds are ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from tenantry_sdk._secret import Secret

T = TypeVar("T")

NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of msgspec for invalid JSON, for too deep nesting, and for another type than expected."""


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A record of the API, with field names in snake case."""


class ApiKey(Model, frozen=True, kw_only=True):
    """An API key, without its secret."""

    id: str
    org_id: str
    name: str
    scopes: list[str]
    access_level: str
    """``SCOPED``, or ``OWNER`` for a key with every permission."""
    mode: str
    """``live`` or ``test``. A key sees only objects of the same mode."""
    expires_at: datetime | None
    status: str
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
    status: str
    revoked_at: datetime


class Project(Model, frozen=True, kw_only=True):
    """A project of the tenant."""

    id: str
    org_id: str
    name: str
    description: str | None
    mode: str
    created_at: datetime
    updated_at: datetime


class BillingState(Model, frozen=True, kw_only=True):
    """The fields of a tenant that billing events set."""

    plan: str
    subscription_status: str
    """The provider's status, such as ``active``, ``past_due`` or ``canceled``; ``none`` without a subscription."""
    current_period_end: datetime | None
    cancel_at_period_end: bool


class TenantAccess(Model, frozen=True, kw_only=True):
    """What a tenant's subscriptions give now."""

    state: str
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
    role: str
    """``owner``, ``admin`` or ``member``."""
    status: str
    """``invited`` until the user accepts, then ``active``; finally ``removed``."""
    created_at: datetime
    updated_at: datetime
    removed_at: datetime | None


class Membership(Model, frozen=True, kw_only=True):
    """A membership or an invitation of the caller."""

    id: str
    org_id: str
    org_name: str
    role: str
    """``owner``, ``admin`` or ``member``."""
    status: str
    """``invited`` or ``active``."""


class BillingEvent(Model, frozen=True, kw_only=True):
    """An entry of the tenant's ledger: a provider event and its effect."""

    id: str
    type: str
    created: datetime
    received_at: datetime
    livemode: bool | None
    outcome: str
    reason: str
    before: BillingState | None
    after: BillingState | None
    anomalies: list[str]


class AuditEvent(Model, frozen=True, kw_only=True):
    """An entry of the audit trail: who changed what, and from where."""

    id: str
    org_id: str
    at: datetime
    action: str
    actor_kind: str
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

    kind: str
    """``api_key`` or ``user``."""
    id: str
    org_id: str
    mode: str
    scopes: list[str]
    access_level: str
    plan: str
    subscription_status: str
    access: TenantAccess | None = None
    """None from a service without this field."""
    expires_at: datetime | None


class Page(Model, Generic[T], frozen=True, kw_only=True):
    """A page of a list. ``next_cursor`` is None on the last one."""

    data: list[T]
    next_cursor: str | None


class Fault(Model, frozen=True, kw_only=True):
    """An error in one field or parameter of a request."""

    location: str
    message: str


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401
    """Return a decoder of ``kind``, which may contain secrets."""
    return msgspec.json.Decoder(kind, dec_hook=_decode)


def _decode(kind: type, value: object) -> object:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise ValueError(f"{kind.__name__} must be a string")
