"""Outbound events: what applications beside the service learn of changes."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from tenantry.common.encoding import doc
from tenantry.domain.audit import Action
from tenantry.domain.errors import ValidationError

AUDIT: Final = "audit"
"""The group of the events that are entries of the audit trail."""
_ANY: Final = "*"
_ID_PREFIX: Final = "evt_"
_MAX_DIGITS: Final = 18
NOW: Final = "now"
"""In the place of a cursor: begin with the events of the changes that follow."""


class EventType(StrEnum):
    """A change of an object; the word before the dot is the object's kind."""

    TENANT_CREATED = "tenant.created"
    TENANT_UPDATED = "tenant.updated"
    ACCESS_CHANGED = "tenant.access_changed"
    """The plan, the subscription's status or the access is another."""
    TENANT_SUSPENDED = "tenant.suspended"
    TENANT_ENDED = "tenant.ended"
    MEMBER_ADDED = "member.added"
    MEMBER_INVITED = "member.invited"
    MEMBER_ACCEPTED = "member.accepted"
    MEMBER_DECLINED = "member.declined"
    MEMBER_LEFT = "member.left"
    MEMBER_UPDATED = "member.updated"
    MEMBER_REMOVED = "member.removed"
    INVITATION_CREATED = "invitation.created"
    INVITATION_RESENT = "invitation.resent"
    INVITATION_WITHDRAWN = "invitation.withdrawn"
    INVITATION_ACCEPTED = "invitation.accepted"
    KEY_CREATED = "api_key.created"
    KEY_IMPORTED = "api_key.imported"
    KEY_UPDATED = "api_key.updated"
    KEY_ROTATED = "api_key.rotated"
    KEY_REVOKED = "api_key.revoked"
    KEY_LEAKED = "api_key.leak_reported"
    GRANT_SET = "grant.set"
    GRANT_ENDED = "grant.ended"
    QUOTA_REACHED = "entitlement.quota_reached"
    REFUNDED = "billing.refunded"
    """A refund, or another state of one."""
    DISPUTED = "billing.disputed"


TYPE_OF_ACTION: Final = {
    action: EventType(action.value) for action in Action if action.value in set(EventType)
} | {Action.TENANT_TRANSFERRED: EventType.TENANT_UPDATED}
"""The event of a change by its action in the audit trail, which has more actions."""
ALL_TYPES: Final = (*EventType, *(f"{AUDIT}.{action}" for action in Action))
"""Every type that an event can have."""


class NewEvent(msgspec.Struct, frozen=True):
    """A change to be published: the tenant, the moment, and the whole object after the change.

    ``at`` is when the change took effect, which is before now where time alone made it.
    """

    type: str
    org_id: str
    at: datetime
    data: msgspec.Struct


class OutboundEvent(msgspec.Struct, frozen=True, rename="camel"):
    """A change of a tenant, or of an object of it."""

    id: Annotated[str, doc("The event's id.", "evt_1795843200000123")]
    type: Annotated[str, doc("What was changed, and how.", "tenant.access_changed")]
    org_id: Annotated[str, doc("The tenant that it belongs to.", "acme")]
    at: Annotated[datetime, doc("When the change took effect.", "2026-11-02T09:45:10Z")]
    version: Annotated[
        int,
        doc(
            "Increases with each change of an object. Of two events of one object, the one with the higher version "
            "has the newer state, in whatever order they arrive.",
            1795843200000123,
        ),
    ]
    data: Annotated[
        msgspec.Raw,
        msgspec.Meta(
            description="The whole object after the change, as the API shows it, without secrets.",
            extra_json_schema={"type": "object"},
        ),
    ]


class TypeFilter:
    """The events that a reader wants: ``patterns`` are types, or a kind with any change, such as
    ``member.*``.

    Without patterns all but the entries of the audit trail.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        """Raises `ValidationError` for a pattern that no type matches."""
        for pattern in patterns:
            if not any(_matches(pattern, each) for each in ALL_TYPES):
                raise ValidationError(("types", f"{pattern[:100]!r} is not a type of event"))
        self.patterns = tuple(patterns)

    def types(self) -> list[str]:
        """Return the types of the wanted events."""
        if not self.patterns:
            return list(EventType)
        return [each for each in ALL_TYPES if self._is_wanted(each)]

    def _is_wanted(self, event_type: str) -> bool:
        return any(_matches(pattern, event_type) for pattern in self.patterns)


def parse_types(text: str | None) -> TypeFilter:
    """Read patterns that commas separate. Raises `ValidationError`."""
    return TypeFilter([each.strip() for each in (text or "").split(",") if each.strip()])


def _matches(pattern: str, event_type: str) -> bool:
    if not pattern.endswith(f".{_ANY}"):
        return pattern == event_type
    return event_type.startswith(pattern.removesuffix(_ANY))


def event_id(version: int) -> str:
    """Return the id of the event that has this version."""
    return f"{_ID_PREFIX}{version}"


def version_of(event_id: str) -> int | None:
    """Return the version of the event that has this id; None if no event can have it."""
    digits = event_id.removeprefix(_ID_PREFIX)
    is_id = event_id.startswith(_ID_PREFIX) and digits.isdecimal() and digits.isascii()
    return int(digits) if is_id and len(digits) <= _MAX_DIGITS else None


class FeedPage(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the feed. ``next_cursor`` is never null: the feed has no end."""

    data: Annotated[list[OutboundEvent], doc("The events in their order, at most `limit`.")]
    next_cursor: Annotated[str, doc("For the events that follow, also if there are none yet.")]
