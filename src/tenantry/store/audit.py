"""The audit trail. It is only ever added to; the database sees to that as well."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from psycopg.types.json import Jsonb

from tenantry.db.connection import Connection
from tenantry.domain.audit import Action, ActorKind, AuditEvent

_COLUMNS: Final = "id, org_id, at, action, actor_kind, actor_id, address, request_id, target_id, before, after"


_PART: Final = 10_000
_CONDITIONS: Final = {
    "action": "AND action = %(action)s ",
    "actor_id": "AND actor_id = %(actor_id)s ",
    "target_id": "AND target_id = %(target_id)s ",
    "since": "AND at >= %(since)s ",
    "until": "AND at < %(until)s ",
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
    connection: Connection,
    org_id: str,
    wanted: Filter,
    *,
    limit: int,
    after: tuple[datetime | None, str | None],
) -> list[AuditEvent]:
    """A tenant's entries after a position, newest first, and one more than ``limit`` if there are more."""
    asked = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not None}
    # Only conditions that are asked for: a plan that is kept for all of them could use no index.
    conditions = "".join(_CONDITIONS[name] for name in asked)
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM audit_events WHERE org_id = %(org)s {conditions}"  # noqa: S608  # our own
        "AND (at, id) < (coalesce(%(after_at)s::timestamptz, 'infinity'), coalesce(%(after_id)s::text, '')) "
        "ORDER BY at DESC, id DESC LIMIT %(most)s",
        {**asked, "org": org_id, "after_at": after[0], "after_id": after[1], "most": limit + 1},
    )
    return [_event(row) for row in await cursor.fetchall()]


class Names(msgspec.Struct, frozen=True):
    """What a tenant's keys are called, and which users its members are, by their ids."""

    keys: dict[str, str]
    members: dict[str, str]


async def read_names(connection: Connection, org_id: str, ids: Collection[str]) -> Names:
    """The names of those of these keys and members that the tenant has."""
    cursor = await connection.execute(
        "SELECT true, id, name FROM api_keys WHERE org_id = %(org)s AND id = ANY(%(ids)s) UNION ALL "
        "SELECT false, id, subject FROM memberships WHERE tenant_id = %(org)s AND id = ANY(%(ids)s)",
        {"org": org_id, "ids": list(ids)},
    )
    rows = await cursor.fetchall()
    return Names(
        {found: name for is_key, found, name in rows if is_key},
        {found: name for is_key, found, name in rows if not is_key},
    )


async def read_all(connection: Connection, org_id: str) -> list[AuditEvent]:
    """Every entry of a tenant, oldest first; read in parts, since a statement has only so much time."""
    found: list[AuditEvent] = []
    while True:
        after = (found[-1].at, found[-1].id) if found else (None, None)
        part = await read_page(connection, org_id, Filter(), limit=_PART, after=after)
        found += part[:_PART]
        if len(part) <= _PART:
            return found[::-1]


def _event(row: Sequence[Any]) -> AuditEvent:
    event_id, org_id, at, action, actor_kind, *rest = row
    return AuditEvent(event_id, org_id, at, Action(action), ActorKind(actor_kind), *rest)
