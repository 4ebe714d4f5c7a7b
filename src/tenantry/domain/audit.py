"""The audit trail: the author, target and content of every change."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from tenantry.common.encoding import doc


class ActorKind(StrEnum):
    """The kind of a change's author."""

    API_KEY = "api_key"
    USER = "user"
    OPERATOR = "operator"
    """A client with the operator token, or a command on the database."""
    SYSTEM = "system"
    ANYBODY = "anybody"
    """A client without a credential, such as one that reports a leaked key."""


class Action(StrEnum):
    """A change; the word before the dot is the kind of its target."""

    BILLING_CHECKOUT = "billing.checkout_started"
    BILLING_PORTAL = "billing.portal_opened"
    BILLING_SEATS = "billing.seats_changed"
    """The quantity at the provider followed the number of active members."""
    KEY_CREATED = "api_key.created"
    KEY_IMPORTED = "api_key.imported"
    KEY_UPDATED = "api_key.updated"
    KEY_ROTATED = "api_key.rotated"
    KEY_REVOKED = "api_key.revoked"
    KEY_LEAKED = "api_key.leak_reported"
    PROJECT_CREATED = "project.created"
    PROJECT_UPDATED = "project.updated"
    PROJECT_DELETED = "project.deleted"
    GRANT_SET = "grant.set"
    GRANT_ENDED = "grant.ended"
    TENANT_CREATED = "tenant.created"
    TENANT_UPDATED = "tenant.updated"
    TENANT_TRANSFERRED = "tenant.transferred"
    TENANT_ENDED = "tenant.ended"
    TENANT_EXPORTED = "tenant.exported"
    """Nothing changed: the operator read all data of the tenant."""
    MEMBER_ADDED = "member.added"
    """Without an invitation: the membership is active at once."""
    MEMBER_INVITED = "member.invited"
    MEMBER_ACCEPTED = "member.accepted"
    MEMBER_DECLINED = "member.declined"
    MEMBER_LEFT = "member.left"
    INVITATION_CREATED = "invitation.created"
    INVITATION_RESENT = "invitation.resent"
    INVITATION_WITHDRAWN = "invitation.withdrawn"
    INVITATION_ACCEPTED = "invitation.accepted"
    MEMBER_UPDATED = "member.updated"
    MEMBER_REMOVED = "member.removed"


class Author(msgspec.Struct, frozen=True):
    """The author of a change, with the client's address and the request's id."""

    kind: ActorKind
    id: str | None = None
    address: str | None = None
    request_id: str | None = None


BY_OPERATOR: Final = Author(ActorKind.OPERATOR)
"""The author of operator commands."""


class AuditEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of the trail.

    ``before`` and ``after`` hold the fields that differ, in the API's names; null for a new and a
    deleted object.
    """

    id: Annotated[str, doc("The entry's id.", "aud_01975c3a60d1b2c3d4e5f60718293a4b")]
    org_id: Annotated[str, doc("The tenant that it belongs to.", "acme")]
    at: Annotated[datetime, doc("When the change was made.", "2026-11-02T09:45:10Z")]
    action: Annotated[Action, doc("What was changed, and how.", "api_key.updated")]
    actor_kind: Annotated[
        ActorKind,
        doc(
            "Who made the change: an API key, a user, the operator, or a client that reported a leaked key.",
            "user",
        ),
    ]
    actor_id: Annotated[str | None, doc("The id of that key or user.", "user_ada")]
    address: Annotated[str | None, doc("The client's address.", "203.0.113.7")]
    request_id: Annotated[
        str | None,
        doc(
            "The request's id, as in `X-Request-Id` and in the log.",
            "5e0c4ad1c1f24b7f9a0b6f9f6d0c7a51",
        ),
    ]
    target_id: Annotated[
        str,
        doc(
            "The id of the key, member, invitation or tenant that was changed, or the name of the grant.",
            "key_01975c3a51c2a1b3c5d7e9f10213a5b7",
        ),
    ]
    before: Annotated[
        dict[str, Any] | None,
        doc("The changed fields before the change; null for a new object.", {"name": "CI"}),
    ]
    after: Annotated[
        dict[str, Any] | None,
        doc(
            "The changed fields after the change; null for a deleted object.",
            {"name": "CI deploys"},
        ),
    ]
