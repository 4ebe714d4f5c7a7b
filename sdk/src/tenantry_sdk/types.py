"""The sets of values in records and arguments, for annotations in your code.

A closed set is a ``Literal``: type checkers find typing errors and missing cases. Another value
would be a new version of the API. An open set also admits any other string, because a newer
service, or the payment provider, adds values. In both cases the client passes an unknown value on
as the service sent it; it never raises an error for one.
"""

# ruff: noqa: PYI051  # the values of open sets are for completion

from __future__ import annotations

from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["live", "test"]
"""The mode of a key, a project or a caller. Objects of one mode are invisible to the other."""

AcceptedMode: TypeAlias = Literal["live", "test", "any"]
"""The modes that a check accepts."""

AccessLevel: TypeAlias = Literal["SCOPED", "OWNER"]
"""``OWNER`` permits everything; ``SCOPED`` what the scopes say."""

KeyStatus: TypeAlias = Literal["active", "revoked", "expired"]
"""The status of an API key. Only an active key is accepted."""

HashAlgorithm: TypeAlias = Literal["sha256", "sha512"]
"""How another system hashes the keys that are imported."""

ImportStatus: TypeAlias = Literal["created", "exists", "digest_taken"] | str
"""Open. The result for a key of an import."""

PrincipalKind: TypeAlias = Literal["api_key", "user", "operator"]
"""The kind of a credential."""

Role: TypeAlias = Literal["owner", "admin", "member"] | str
"""Open. The role of a member: one of these, or one of the service's own, which
`roles.list` returns.
"""

MemberStatus: TypeAlias = Literal["invited", "active", "removed"]
"""The status of a membership: ``invited`` until the user accepts, finally ``removed``."""

InvitationStatus: TypeAlias = Literal["open", "accepted", "withdrawn", "expired"]
"""The status of an invitation by mail: it can be accepted while it is ``open``."""

OwnMembershipStatus: TypeAlias = Literal["invited", "active"]
"""The status of a membership in the caller's own list."""

RequestOutcome: TypeAlias = (
    Literal[
        "accepted",
        "rate_limited",
        "forbidden",
        "quota_exceeded",
        "expired_or_revoked",
        "suspended",
    ]
    | str
)
"""Open. How a request with a known credential was decided."""

UsageInterval: TypeAlias = Literal["hour", "day"]
"""The time that a count of requests covers, in UTC."""

UsageGroup: TypeAlias = Literal["none", "key", "outcome"]
"""What counts of an organization's requests tell apart, besides the time."""

OperatorUsageGroup: TypeAlias = Literal["none", "tenant", "key", "outcome"]
"""What counts of all tenants' requests tell apart, besides the time."""

AccessState: TypeAlias = Literal["full", "grace", "none"]
"""What a tenant's subscriptions give now; ``grace`` while a payment is due."""

SubscriptionStatus: TypeAlias = (
    Literal[
        "none",
        "active",
        "trialing",
        "past_due",
        "canceled",
        "unpaid",
        "incomplete",
        "incomplete_expired",
        "paused",
    ]
    | str
)
"""Open. The provider's status of a subscription; ``none`` without a subscription."""

FeatureType: TypeAlias = Literal["boolean", "limit", "metered"]
"""The kind of a feature: given or not, up to a number, or so much in each period."""

EntitlementSource: TypeAlias = Literal["plan", "addon", "grant"] | str
"""Open. What gives a feature."""

OnUnavailable: TypeAlias = Literal["raise", "allow", "deny"]
"""What `consume` does if the service is unreachable."""

EventOutcome: TypeAlias = (
    Literal["applied", "no_change", "late", "parked", "ignored", "invalid"] | str
)
"""Open. The effect of a billing event."""

EventType: TypeAlias = (
    Literal[
        "tenant.created",
        "tenant.updated",
        "tenant.access_changed",
        "tenant.suspended",
        "tenant.ended",
        "member.added",
        "member.invited",
        "member.accepted",
        "member.declined",
        "member.left",
        "member.updated",
        "member.removed",
        "invitation.created",
        "invitation.resent",
        "invitation.withdrawn",
        "invitation.accepted",
        "api_key.created",
        "api_key.imported",
        "api_key.updated",
        "api_key.rotated",
        "api_key.revoked",
        "api_key.leak_reported",
        "grant.set",
        "grant.ended",
        "entitlement.quota_reached",
        "billing.refunded",
        "billing.disputed",
    ]
    | str
)
"""Open. A change that the feed has; besides these, ``audit.*`` with each `AuditAction`."""

ActorKind: TypeAlias = Literal["user", "api_key", "operator", "system", "anybody"] | str
"""Open. Who made a change: ``system`` is the service, ``anybody`` a caller without a credential."""

AuditAction: TypeAlias = (
    Literal[
        "api_key.created",
        "api_key.imported",
        "api_key.leak_reported",
        "api_key.revoked",
        "api_key.rotated",
        "api_key.updated",
        "billing.checkout_started",
        "billing.portal_opened",
        "billing.repaired",
        "grant.ended",
        "grant.set",
        "billing.seats_changed",
        "invitation.accepted",
        "invitation.created",
        "invitation.resent",
        "invitation.withdrawn",
        "member.accepted",
        "member.added",
        "member.declined",
        "member.invited",
        "member.left",
        "member.removed",
        "member.updated",
        "person.erased",
        "project.created",
        "project.deleted",
        "project.updated",
        "tenant.created",
        "tenant.ended",
        "tenant.exported",
        "tenant.transferred",
        "tenant.updated",
    ]
    | str
)
"""Open. A change that the audit trail records."""

HealthStatus: TypeAlias = Literal["ok", "not ready", "draining"] | str
"""Open. The state of a server process; ``draining`` while it shuts down."""
