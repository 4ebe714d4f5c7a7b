"""Entries of the audit trail as pages show them: their actor and target, with names and links."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec

from tenantry.dashboard.context import PageContext
from tenantry.dashboard.labels import shown_name
from tenantry.domain.audit import ActorKind, AuditEvent
from tenantry.domain.members import User

_OTHER_ACTORS: Final = {
    ActorKind.OPERATOR: "The operator",
    ActorKind.SYSTEM: "The service",
    ActorKind.ANYBODY: "An anonymous client",
}
_KEY: Final = "api_key"
_MEMBER: Final = "member"
_GRANT: Final = "grant"
_PAGES: Final = {
    _KEY: "/settings/api-keys",
    "project": "/projects",
    _MEMBER: "/settings/members",
}
"""The pages of targets, by the first word of an action."""
_NAME_FIELDS: Final = {
    _KEY: "name",
    "project": "name",
    _MEMBER: "userId",
    "invitation": "email",
}
"""The field that names a target, by the same; what has none concerns the tenant itself."""


class AuditParty(msgspec.Struct, frozen=True):
    """The actor or target of an entry: its name, its id, and the path of its page.

    ``label`` is a fixed text, shown apart from names, which users choose. Users have a ``user_id``
    instead of a name.
    """

    name: str = ""
    id: str | None = None
    page: str | None = None
    label: str | None = None
    user_id: str | None = None


class ShownEntry(msgspec.Struct, frozen=True):
    """An entry with its actor and target; what happened to the tenant itself has no target."""

    event: AuditEvent
    actor: AuditParty
    target: AuditParty | None


def shown_entries(events: Sequence[AuditEvent], names: Mapping[str, str]) -> list[ShownEntry]:
    """Return entries with their parties. ``names`` are those of keys, projects and members, by
    their ids.
    """
    return [ShownEntry(event, _actor(event, names), _target(event, names)) for event in events]


async def names_of_users(ctx: PageContext, entries: Iterable[ShownEntry]) -> dict[str, str]:
    """Return the names of users by user id, for who may read members; entries name a user by the
    subject alone.
    """
    if not ctx.user.may("members:read"):
        return {}
    parties = chain.from_iterable((entry.actor, entry.target) for entry in entries)
    issuer = ctx.user.session.issuer
    users = {User(issuer, party.user_id) for party in parties if party and party.user_id}
    names = await ctx.services.profiles.names_of(ctx.principal.org_id, sorted(users))
    return {user.subject: shown_name(name, user.subject) for user, name in names.items()}


def _actor(event: AuditEvent, names: Mapping[str, str]) -> AuditParty:
    if event.actor_id is None or event.actor_kind in _OTHER_ACTORS:
        return AuditParty(id=event.actor_id, label=_OTHER_ACTORS.get(event.actor_kind, "Unknown"))
    if event.actor_kind is ActorKind.API_KEY:
        return AuditParty(
            shown_name(names.get(event.actor_id, ""), event.actor_id),
            event.actor_id,
            _page(_KEY, event.actor_id, names),
            label="The key",
        )
    return AuditParty(id=event.actor_id, user_id=event.actor_id)


def _target(event: AuditEvent, names: Mapping[str, str]) -> AuditParty | None:
    kind = event.action.partition(".")[0]
    target_id = event.target_id
    if kind == _GRANT:
        return AuditParty(target_id)
    if kind not in _NAME_FIELDS:
        return None
    name = names.get(target_id) or _field_text(event, _NAME_FIELDS[kind])
    shown = {"user_id" if kind == _MEMBER else "name": shown_name(name, target_id)}
    return AuditParty(id=target_id, page=_page(kind, target_id, names), **shown)


def _page(kind: str, object_id: str, names: Mapping[str, str]) -> str | None:
    """Return the path of an object's page; None for what has none, or is gone."""
    is_shown = kind in _PAGES and object_id in names
    return f"{_PAGES[kind]}/{object_id}" if is_shown else None


def _field_text(event: AuditEvent, field: str) -> str:
    return str((event.after or {}).get(field) or (event.before or {}).get(field) or "")
