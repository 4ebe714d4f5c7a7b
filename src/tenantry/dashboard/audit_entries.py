"""Entries of the audit trail as pages show them: their actor and target, with names and links."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final

import msgspec

from tenantry.dashboard.context import PageContext
from tenantry.dashboard.labels import labels, shown_name
from tenantry.domain.audit import ActorKind, AuditEvent, TenantUpdate, update_of
from tenantry.domain.operator_acts import OperatorPerson

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
    instead of a name. ``person`` is the person behind the operator, on the operator's pages only.
    """

    name: str = ""
    id: str | None = None
    page: str | None = None
    label: str | None = None
    user_id: str | None = None
    person: OperatorPerson | None = None


class ShownEntry(msgspec.Struct, frozen=True):
    """An entry with its actor and target; what happened to the tenant itself has no target.

    ``words`` say what the actor did, with placeholders for the target and the role.
    """

    event: AuditEvent
    words: str
    actor: AuditParty
    target: AuditParty | None


def shown_entries(
    events: Sequence[AuditEvent],
    names: Mapping[str, str],
    people: Mapping[str, OperatorPerson] = MappingProxyType({}),
) -> list[ShownEntry]:
    """Return entries with their parties. ``names`` are those of keys, projects and members, by
    their ids; ``people`` are those behind the operator by the id of the entry, for operators alone.
    """
    return [_shown(event, names, people.get(event.id)) for event in events]


def _shown(
    event: AuditEvent, names: Mapping[str, str], person: OperatorPerson | None
) -> ShownEntry:
    actor, target = _actor(event, names, person), _target(event, names)
    update = update_of(event)
    if update is None:
        return ShownEntry(event, labels().audit_actions[event.action].long, actor, target)
    change, target_id = update
    if change in (TenantUpdate.CUSTOMER_LINKED, TenantUpdate.CUSTOMER_UNLINKED):
        target = AuditParty(target_id)
    return ShownEntry(event, labels().tenant_updates[change].long, actor, target)


async def names_of_users(ctx: PageContext, entries: Iterable[ShownEntry]) -> dict[str, str]:
    """Return the names of users by user id, for who may read members; entries name a user by the
    subject alone.
    """
    parties = chain.from_iterable((entry.actor, entry.target) for entry in entries)
    return await names_of_subjects(
        ctx, {party.user_id for party in parties if party and party.user_id}
    )


async def names_of_subjects(ctx: PageContext, subjects: Collection[str]) -> dict[str, str]:
    """Return the names of these users of the identity provider, as `names_of_users`."""
    if not ctx.user.may("members:read"):
        return {}
    users = await ctx.services.members.known_users(ctx.principal, subjects)
    names = await ctx.services.profiles.names_of(ctx.principal.org_id, sorted(users.values()))
    return {user.subject: shown_name(name, user.subject) for user, name in names.items()}


def _actor(
    event: AuditEvent, names: Mapping[str, str], person: OperatorPerson | None
) -> AuditParty:
    if person is not None:
        name = shown_name(person.name or "", person.subject)
        return AuditParty(name, label=_OTHER_ACTORS[ActorKind.OPERATOR], person=person)
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
    shown = AuditParty(shown_name(name, target_id), target_id, _page(kind, target_id, names))
    if kind == _MEMBER:
        return msgspec.structs.replace(shown, name="", user_id=shown.name)
    return shown


def _page(kind: str, object_id: str, names: Mapping[str, str]) -> str | None:
    """Return the path of an object's page; None for what has none, or is gone."""
    is_shown = kind in _PAGES and object_id in names
    return f"{_PAGES[kind]}/{object_id}" if is_shown else None


def _field_text(event: AuditEvent, field: str) -> str:
    return str((event.after or {}).get(field) or (event.before or {}).get(field) or "")
