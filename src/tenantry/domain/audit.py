"""The audit trail: who changed what, from where, and what it was before and after."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec


class ActorKind(StrEnum):
    """What kind of caller makes a change."""

    API_KEY = "api_key"
    USER = "user"
    OPERATOR = "operator"
    """Whoever holds the operator's token, or can reach the database."""
    SYSTEM = "system"
    ANYBODY = "anybody"
    """Somebody without a credential, such as the finder of a leaked key."""


class Action(StrEnum):
    """What was done; the word before the dot says what to."""

    BILLING_CHECKOUT = "billing.checkout_started"
    BILLING_PORTAL = "billing.portal_opened"
    KEY_CREATED = "api_key.created"
    KEY_UPDATED = "api_key.updated"
    KEY_ROTATED = "api_key.rotated"
    KEY_REVOKED = "api_key.revoked"
    KEY_LEAKED = "api_key.leak_reported"
    PROJECT_CREATED = "project.created"
    PROJECT_UPDATED = "project.updated"
    PROJECT_DELETED = "project.deleted"
    TENANT_CREATED = "tenant.created"
    TENANT_UPDATED = "tenant.updated"
    TENANT_TRANSFERRED = "tenant.transferred"
    TENANT_ENDED = "tenant.ended"
    MEMBER_ADDED = "member.added"
    """The member counts at once."""
    MEMBER_INVITED = "member.invited"
    MEMBER_ACCEPTED = "member.accepted"
    MEMBER_DECLINED = "member.declined"
    MEMBER_LEFT = "member.left"
    MEMBER_UPDATED = "member.updated"
    MEMBER_REMOVED = "member.removed"


class Author(msgspec.Struct, frozen=True):
    """Who makes a change, from which address, in which request."""

    kind: ActorKind
    id: str | None = None
    address: str | None = None
    request_id: str | None = None


BY_OPERATOR: Final = Author(ActorKind.OPERATOR)
"""Whoever gives a command on the database itself."""


class AuditEvent(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of the trail.

    ``before`` and ``after`` hold the fields that differ, in the API's names; what was made has no ``before``, and
    what only ended may have no ``after``.
    """

    id: str
    org_id: str
    at: datetime
    action: Action
    actor_kind: ActorKind
    actor_id: str | None
    address: str | None
    request_id: str | None
    target_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def differences(before: msgspec.Struct, after: msgspec.Struct) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields in which two records of one thing differ, as they were and as they are."""
    was: dict[str, Any] = msgspec.to_builtins(before)
    became: dict[str, Any] = msgspec.to_builtins(after)
    names = [name for name in became if was.get(name) != became[name]]
    return {name: was.get(name) for name in names}, {name: became[name] for name in names}
