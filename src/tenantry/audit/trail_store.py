"""The audit trail. It is only ever added to; the database sees to that as well."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from psycopg.types.json import Jsonb

from tenantry.db.connection import Connection
from tenantry.db.pagination import Listing
from tenantry.domain.audit import Action, ActorKind, AuditEvent

_COLUMNS: Final = "id, org_id, at, action, actor_kind, actor_id, address, request_id, target_id, before, after"


_PART: Final = 10_000
_LISTING: Final = Listing(_COLUMNS, "audit_events", "at")
_BEGIN: Final = (
    "org_id = %(org)s "
    "AND (at, id) < (coalesce(%(after_at)s::timestamptz, 'infinity'), coalesce(%(after_id)s::text, ''))"
)
_CONDITIONS: Final = {
    "action": "action = %(action)s",
    "actor_id": "actor_id = %(actor_id)s",
    "target_id": "target_id = %(target_id)s",
    "since": "at >= %(since)s",
}


class Filter(msgspec.Struct, frozen=True):
    """Which entries; None means all. ``since`` is in, ``until`` is not."""

    action: Action | None = None
    actor_id: str | None = None
    target_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def insert(connection: Connection, event: AuditEvent) -> None:
    """Add an entry."""
    await connection.execute(
        f"INSERT INTO audit_events ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",  # noqa: S608
        (
            event.id,
            event.org_id,
            event.at,
            event.action,
            event.actor_kind,
            event.actor_id,
            event.address,
            event.request_id,
            event.target_id,
            event.before and Jsonb(event.before),
            event.after and Jsonb(event.after),
        ),
    )


async def read_page(
    connection: Connection, org_id: str, wanted: Filter, *, limit: int, after: tuple[datetime | None, str | None]
) -> list[AuditEvent]:
    """A tenant's entries after a position, newest first, and one more than ``limit`` if there are more."""
    asked, after = _asked(wanted, after)
    rows = await _LISTING.read(connection, _all_of(asked), "true", _values(asked, org_id, after), limit)
    return [_event(row) for row in rows]


async def seek_page(
    connection: Connection, org_id: str, wanted: Filter, *, limit: int, after: tuple[datetime | None, str | None]
) -> tuple[list[AuditEvent], tuple[datetime, str] | None]:
    """The same, of the next `MOST_LOOKED_AT` entries where there is no index for all that is asked.

    With them comes the position of the last one that was looked at, if there are older ones.
    """
    asked, after = _asked(wanted, after)
    indexed = {name: value for name, value in asked.items() if name != "action"}
    if "target_id" in indexed:
        indexed.pop("actor_id", None)
    if indexed == asked:
        return await read_page(connection, org_id, wanted, limit=limit, after=after), None
    filtered = " AND ".join(_CONDITIONS[name] for name in asked if name not in indexed)
    rows, end = await _LISTING.seek(connection, _all_of(indexed), filtered, _values(asked, org_id, after), limit)
    return [_event(row) for row in rows], end


def _asked(
    wanted: Filter, after: tuple[datetime | None, str | None]
) -> tuple[dict[str, object], tuple[datetime | None, str | None]]:
    """What is asked for, and where to begin, which is no later than ``until``.

    As a condition of its own that would not lead to its place in the index, but be held against each newer entry.
    """
    asked = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not None}
    asked.pop("until", None)
    if wanted.until is not None and (after[0] is None or wanted.until < after[0]):
        after = wanted.until, ""
    return asked, after


def _all_of(asked: Iterable[str]) -> str:
    # only what is asked for: a plan that is kept for all of it could use no index
    return " AND ".join((_BEGIN, *(_CONDITIONS[name] for name in asked)))


def _values(asked: Mapping[str, object], org_id: str, after: tuple[datetime | None, str | None]) -> dict[str, object]:
    return {**asked, "org": org_id, "after_at": after[0], "after_id": after[1]}


class Names(msgspec.Struct, frozen=True):
    """What a tenant's keys and live projects are called, and which users its members are, by their ids."""

    keys: dict[str, str]
    members: dict[str, str]
    projects: dict[str, str]


async def read_names(connection: Connection, org_id: str, ids: Collection[str]) -> Names:
    """The names of those of these keys, members and live projects that the tenant has."""
    cursor = await connection.execute(
        "SELECT 'key', id, name FROM api_keys WHERE org_id = %(org)s AND id = ANY(%(ids)s) UNION ALL "
        "SELECT 'member', id, subject FROM memberships WHERE tenant_id = %(org)s AND id = ANY(%(ids)s) UNION ALL "
        "SELECT 'project', id, name FROM projects WHERE org_id = %(org)s AND mode = 'live' AND id = ANY(%(ids)s)",
        {"org": org_id, "ids": list(ids)},
    )
    found: dict[str, dict[str, str]] = {"key": {}, "member": {}, "project": {}}
    for kind, named, name in await cursor.fetchall():
        found[kind][named] = name
    return Names(found["key"], found["member"], found["project"])


async def read_all(connection: Connection, org_id: str) -> list[AuditEvent]:
    """Every entry of a tenant, oldest first; read in parts, since a statement has only so much time."""
    found: list[AuditEvent] = []
    while True:
        after = (found[-1].at, found[-1].id) if found else (None, None)
        part = await read_page(connection, org_id, Filter(), limit=_PART, after=after)
        found += part[:_PART]
        if len(part) <= _PART:
            return found[::-1]


async def known(connection: Connection, org_id: str, ids: Collection[str]) -> set[str]:
    """Those of these entries of a tenant that are there."""
    cursor = await connection.execute(
        "SELECT id FROM audit_events WHERE org_id = %s AND id = ANY(%s)", (org_id, list(ids))
    )
    return {row[0] for row in await cursor.fetchall()}


async def newest_by_target(
    connection: Connection, org_id: str, targets: Collection[str]
) -> dict[str, dict[Action, datetime]]:
    """When each of these keys, members, projects and the tenant itself was last changed in each of the ways."""
    cursor = await connection.execute(
        "SELECT target_id, action, max(at) FROM audit_events WHERE org_id = %s AND target_id = ANY(%s) "
        "GROUP BY target_id, action",
        (org_id, list(targets)),
    )
    newest: dict[str, dict[Action, datetime]] = {}
    for target_id, action, at in await cursor.fetchall():
        newest.setdefault(target_id, {})[Action(action)] = at
    return newest


async def read_since(connection: Connection, org_id: str, since: datetime | None) -> list[AuditEvent]:
    """The entries of a tenant since a moment, oldest first."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM audit_events WHERE org_id = %s "  # noqa: S608  # our own
        "AND at >= coalesce(%s::timestamptz, '-infinity') ORDER BY at, id",
        (org_id, since),
    )
    return [_event(row) for row in await cursor.fetchall()]


def _event(row: Sequence[Any]) -> AuditEvent:
    event_id, org_id, at, action, actor_kind, *rest = row
    return AuditEvent(event_id, org_id, at, Action(action), ActorKind(actor_kind), *rest)
