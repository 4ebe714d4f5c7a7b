"""Entries of the audit trail in words."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.audit.trail import Names
from tenantry.domain.audit import Action, ActorKind, AuditEvent
from tenantry.domain.members import MemberStatus

ACTIONS: Final = {
    Action.BILLING_CHECKOUT: "Checkout started",
    Action.BILLING_PORTAL: "Billing portal opened",
    Action.KEY_CREATED: "Key created",
    Action.KEY_UPDATED: "Key changed",
    Action.KEY_ROTATED: "Key rotated",
    Action.KEY_REVOKED: "Key revoked",
    Action.KEY_LEAKED: "Key reported as leaked",
    Action.PROJECT_CREATED: "Project created",
    Action.PROJECT_UPDATED: "Project changed",
    Action.PROJECT_DELETED: "Project deleted",
    Action.TENANT_CREATED: "Organization created",
    Action.TENANT_UPDATED: "Organization changed",
    Action.TENANT_TRANSFERRED: "Ownership transferred",
    Action.TENANT_ENDED: "Organization ended",
    Action.MEMBER_ADDED: "Member added",
    Action.MEMBER_INVITED: "Member invited",
    Action.MEMBER_ACCEPTED: "Invitation accepted",
    Action.MEMBER_DECLINED: "Invitation declined",
    Action.MEMBER_LEFT: "Member left",
    Action.MEMBER_UPDATED: "Role changed",
    Action.MEMBER_REMOVED: "Member removed",
}
_VERBS: Final = {
    Action.BILLING_CHECKOUT: ("started a checkout", ""),
    Action.BILLING_PORTAL: ("opened the billing portal", ""),
    Action.KEY_CREATED: ("created the key", ""),
    Action.KEY_UPDATED: ("changed the key", ""),
    Action.KEY_ROTATED: ("rotated the key", ""),
    Action.KEY_REVOKED: ("revoked the key", ""),
    Action.KEY_LEAKED: ("reported the key", "as leaked"),
    Action.PROJECT_CREATED: ("created the project", ""),
    Action.PROJECT_UPDATED: ("changed the project", ""),
    Action.PROJECT_DELETED: ("deleted the project", ""),
    Action.TENANT_CREATED: ("created the organization", ""),
    Action.TENANT_UPDATED: ("changed the organization's details", ""),
    Action.TENANT_TRANSFERRED: ("changed who owns the organization", ""),
    Action.TENANT_ENDED: ("ended the organization", ""),
    Action.MEMBER_ADDED: ("added", ""),
    Action.MEMBER_INVITED: ("invited", ""),
    Action.MEMBER_ACCEPTED: ("accepted the invitation", ""),
    Action.MEMBER_DECLINED: ("declined the invitation", ""),
    Action.MEMBER_LEFT: ("left the organization", ""),
    Action.MEMBER_UPDATED: ("changed the role of", ""),
    Action.MEMBER_REMOVED: ("removed", ""),
}
_BY_TARGET: Final = (Action.MEMBER_ACCEPTED, Action.MEMBER_DECLINED, Action.MEMBER_LEFT)
"""What only the user does whose membership it is."""
_OTHER_ACTORS: Final = {
    ActorKind.OPERATOR: "The operator",
    ActorKind.SYSTEM: "The service",
    ActorKind.ANYBODY: "Somebody without a credential",
}
_SAID: Final = frozenset({"createdAt", "createdBy", "id", "orgId", "updatedAt"})
"""Fields that say again what the entry says."""
_FIELDS: Final = {
    "accessLevel": "Access level",
    "bindsOwner": "Counts for owners by claim",
    "description": "Description",
    "expiresAt": "Expires",
    "last4": "Last four characters",
    "lastUsedAddress": "Last used from",
    "lastUsedAt": "Last used",
    "mode": "Mode",
    "name": "Name",
    "plan": "Plan",
    "ownerEmail": "Billing address",
    "ownerId": "Owner",
    "removedAt": "Removed",
    "revokedAt": "Revoked",
    "role": "Role",
    "rotatedFrom": "Replaces",
    "rotatedFromLastUsedAt": "Replaced key last used",
    "scopes": "Scopes",
    "start": "Begins with",
    "status": "Status",
    "stripeCustomerId": "Customer at the payment provider",
    "supersededBy": "Replaced by",
    "suspended": "Suspended",
    "userId": "User",
}


class Thing(msgspec.Struct, frozen=True):
    """Somebody or something that an entry names: what to call it, its id, and the page that it has.

    ``fixed`` are words of ours, to be told from names, which people choose; ``user_id`` is a user's.
    """

    text: str = ""
    id: str | None = None
    page: str | None = None
    fixed: str | None = None
    user_id: str | None = None


class Change(msgspec.Struct, frozen=True):
    """A field that changed; moments are moments, everything else is text, and None is nothing."""

    field: str
    before: str | datetime | None
    after: str | datetime | None


class Told(msgspec.Struct, frozen=True):
    """An entry, to be read as a sentence: actor, verb, target, ending."""

    event: AuditEvent
    actor: Thing
    verb: str
    target: Thing | None
    ending: str
    changes: list[Change]


def people_in(events: list[AuditEvent], names: Names) -> set[str]:
    """The users whom the entries name."""
    actors = {event.actor_id for event in events if event.actor_kind is ActorKind.USER and event.actor_id}
    return actors | {user for event in events if (user := _user(event, names)) is not None}


def tell(event: AuditEvent, names: Names, people: Mapping[str, str]) -> Told:
    """An entry in words; ``people`` are the names of users by id."""
    verb, ending = _VERBS[event.action]
    if event.action is Action.MEMBER_ADDED:
        ending = _as_role(event)
    elif event.action is Action.MEMBER_INVITED:
        ending = " ".join(filter(None, ("again" if event.before else "", _as_role(event))))
    elif event.action is Action.MEMBER_REMOVED and (event.before or {}).get("status") == MemberStatus.INVITED:
        verb = "withdrew the invitation of"
    elif event.action is Action.MEMBER_UPDATED and _text(event, "role"):
        ending = f"to {_text(event, 'role')}"
    target = None if event.action in _BY_TARGET else _target(event, names, people)
    return Told(event, _actor(event, names, people), verb, target, ending, _changes(event))


def _as_role(event: AuditEvent) -> str:
    """The role that the user has now; nothing where it is the one from before, which the entry does not repeat."""
    role = _text(event, "role")
    return f"as {role}" if role else ""


def _actor(event: AuditEvent, names: Names, people: Mapping[str, str]) -> Thing:
    if event.actor_id is None or event.actor_kind in _OTHER_ACTORS:
        return Thing(id=event.actor_id, fixed=_OTHER_ACTORS.get(event.actor_kind, "Somebody"))
    if event.actor_kind is ActorKind.API_KEY:
        page = f"/settings/api-keys/{event.actor_id}" if event.actor_id in names.keys else None
        return Thing(names.keys.get(event.actor_id, event.actor_id), event.actor_id, page, fixed="The key")
    return Thing(people.get(event.actor_id, event.actor_id), event.actor_id, user_id=event.actor_id)


def _target(event: AuditEvent, names: Names, people: Mapping[str, str]) -> Thing | None:
    subject = event.action.partition(".")[0]
    if subject == "api_key":
        known = event.target_id in names.keys
        name = names.keys.get(event.target_id) or _text(event, "name") or event.target_id
        return Thing(name, event.target_id, f"/settings/api-keys/{event.target_id}" if known else None)
    if subject == "project":
        name = names.projects.get(event.target_id) or _text(event, "name") or event.target_id
        known = event.target_id in names.projects
        return Thing(name, event.target_id, f"/projects/{event.target_id}" if known else None)
    if subject == "member":
        user = _user(event, names) or event.target_id
        known = event.target_id in names.members
        page = f"/settings/members/{event.target_id}" if known else None
        return Thing(people.get(user, user), event.target_id, page, user_id=user)
    return None


def _user(event: AuditEvent, names: Names) -> str | None:
    """The user behind the membership that an entry is about."""
    return names.members.get(event.target_id) or _text(event, "userId") or None


def _text(event: AuditEvent, field: str) -> str:
    return str((event.after or {}).get(field) or (event.before or {}).get(field) or "")


def _changes(event: AuditEvent) -> list[Change]:
    before, after = event.before or {}, event.after or {}
    return [
        Change(_field(name), _value(before.get(name)), _value(after.get(name)))
        for name in sorted({*before, *after}, key=_field)
        if name not in _SAID and not (before.get(name) is None and after.get(name) is None)
    ]


def _field(name: str) -> str:
    return _FIELDS.get(name, name)


def _value(value: Any) -> str | datetime | None:  # noqa: ANN401  # whatever JSON holds
    """A value of the record, as people read it."""
    if value is None or value == []:
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, str):
        return _moment(value) or value
    return str(value)


def _moment(text: str) -> datetime | None:
    try:
        return msgspec.convert(text, datetime) if text[:1].isdigit() and text.endswith("Z") else None
    except msgspec.ValidationError:
        return None
