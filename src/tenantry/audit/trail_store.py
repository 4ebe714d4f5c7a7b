"""The append-only audit trail. The database also prevents changes and deletions of entries."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from psycopg.types.json import Jsonb

from tenantry.db.connection import Connection
from tenantry.db.pagination import After, Listing
from tenantry.domain.audit import Action, ActorKind, AuditEvent

_COLUMNS: Final = "id, org_id, at, action, actor_kind, actor_id, address, request_id, target_id, before, after"
_BATCH: Final = 10_000
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


class AuditFilter(msgspec.Struct, frozen=True):
    """Conditions on entries; None means any. ``since`` is inclusive, ``until`` is not."""

    action: Action | None = None
    actor_id: str | None = None
    target_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def insert(connection: Connection, event: AuditEvent) -> None:
    """Add an entry."""
    *values, before, after = msgspec.structs.astuple(event)
    await connection.execute(
        f"INSERT INTO audit_events ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",  # noqa: S608
        (*values, before and Jsonb(before), after and Jsonb(after)),
    )


async def read_page(
    connection: Connection, org_id: str, wanted: AuditFilter, *, limit: int, after: After, bounded: bool = False
) -> tuple[list[AuditEvent], tuple[datetime, str] | None]:
    """Read a tenant's entries after a position, newest first, and one more than ``limit`` if there are more.

    With ``bounded`` only `MAX_SCANNED_ROWS` entries are examined where no index supports all conditions; the position
    of the last of them is returned too if there are older ones.
    """
    given, start = _given(wanted, after)
    indexed = dict(given)
    if bounded:
        indexed.pop("action", None)
        if "target_id" in indexed:
            indexed.pop("actor_id", None)
    # only the given ones: a cached plan for all conditions could use no index
    condition = " AND ".join((_BEGIN, *(_CONDITIONS[name] for name in indexed)))
    filtered = " AND ".join(_CONDITIONS[name] for name in given if name not in indexed)
    values = {**given, "org": org_id, "after_at": start[0], "after_id": start[1]}
    rows, end = await _LISTING.search(connection, condition, filtered or "true", values, limit, bounded=bool(filtered))
    return [_event(row) for row in rows], end


def _given(wanted: AuditFilter, after: After) -> tuple[dict[str, object], After]:
    """Return the conditions other than ``until``, and the start: ``until`` if that is earlier than ``after``.

    As a condition, ``until`` would be checked on each newer entry instead of finding its place in the index.
    """
    given = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not None}
    given.pop("until", None)
    if wanted.until is not None and (after[0] is None or wanted.until < after[0]):
        after = wanted.until, ""
    return given, after


class AuditNames(msgspec.Struct, frozen=True):
    """By their ids: the names of keys and live projects, and the users of members."""

    keys: dict[str, str]
    members: dict[str, str]
    projects: dict[str, str]


async def read_names(connection: Connection, org_id: str, ids: Collection[str]) -> AuditNames:
    """Read the names of those keys, members and live projects that the tenant has."""
    rows = await connection.fetch(
        "SELECT 'key', id, name FROM api_keys WHERE org_id = %(org)s AND id = ANY(%(ids)s) UNION ALL "
        "SELECT 'member', id, subject FROM memberships WHERE tenant_id = %(org)s AND id = ANY(%(ids)s) UNION ALL "
        "SELECT 'project', id, name FROM projects WHERE org_id = %(org)s AND mode = 'live' AND id = ANY(%(ids)s)",
        {"org": org_id, "ids": list(ids)},
    )
    found: dict[str, dict[str, str]] = {"key": {}, "member": {}, "project": {}}
    for kind, row_id, name in rows:
        found[kind][row_id] = name
    return AuditNames(found["key"], found["member"], found["project"])


async def read_all(connection: Connection, org_id: str, since: datetime | None = None) -> list[AuditEvent]:
    """Read a tenant's entries since a time, oldest first, in batches because the time of a statement is limited."""
    found: list[AuditEvent] = []
    while True:
        after = (found[-1].at, found[-1].id) if found else (None, None)
        batch, _ = await read_page(connection, org_id, AuditFilter(since=since), limit=_BATCH, after=after)
        found += batch[:_BATCH]
        if len(batch) <= _BATCH:
            return found[::-1]


async def existing_ids(connection: Connection, org_id: str, ids: Collection[str]) -> set[str]:
    """Return which of these entries a tenant has."""
    rows = await connection.fetch("SELECT id FROM audit_events WHERE org_id = %s AND id = ANY(%s)", (org_id, list(ids)))
    return {row[0] for row in rows}


async def newest_by_target(
    connection: Connection, org_id: str, targets: Collection[str]
) -> dict[str, dict[Action, datetime]]:
    """Return for each target the time of its last change by action."""
    rows = await connection.fetch(
        "SELECT target_id, action, max(at) FROM audit_events WHERE org_id = %s AND target_id = ANY(%s) "
        "GROUP BY target_id, action",
        (org_id, list(targets)),
    )
    newest: dict[str, dict[Action, datetime]] = {}
    for target_id, action, at in rows:
        newest.setdefault(target_id, {})[Action(action)] = at
    return newest


def _event(row: Sequence[Any]) -> AuditEvent:
    event_id, org_id, at, action, actor_kind, *rest = row
    return AuditEvent(event_id, org_id, at, Action(action), ActorKind(actor_kind), *rest)
