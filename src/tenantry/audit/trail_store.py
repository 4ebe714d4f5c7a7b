"""The append-only audit trail. The database also prevents changes and deletions of entries."""

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    connection: Connection, org_id: str, wanted: AuditFilter, *, limit: int, after: After
) -> list[AuditEvent]:
    """Read a tenant's entries after a position, newest first, and one more than ``limit`` if there are more."""
    given, after = _given(wanted, after)
    rows = await _LISTING.read(connection, _all_of(given), "true", _values(given, org_id, after), limit)
    return [_event(row) for row in rows]


async def search_page(
    connection: Connection, org_id: str, wanted: AuditFilter, *, limit: int, after: After
) -> tuple[list[AuditEvent], tuple[datetime, str] | None]:
    """Read as `read_page` does, but examine only `MAX_SCANNED_ROWS` entries where no index supports all conditions.

    The position of the last examined entry is returned too if there are older ones.
    """
    given, start = _given(wanted, after)
    indexed = {name: value for name, value in given.items() if name != "action"}
    if "target_id" in indexed:
        indexed.pop("actor_id", None)
    if indexed == given:
        return await read_page(connection, org_id, wanted, limit=limit, after=after), None
    filtered = " AND ".join(_CONDITIONS[name] for name in given if name not in indexed)
    rows, end = await _LISTING.search(connection, _all_of(indexed), filtered, _values(given, org_id, start), limit)
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


def _all_of(given: Iterable[str]) -> str:
    # only the given ones: a cached plan for all conditions could use no index
    return " AND ".join((_BEGIN, *(_CONDITIONS[name] for name in given)))


def _values(given: Mapping[str, object], org_id: str, after: After) -> dict[str, object]:
    return {**given, "org": org_id, "after_at": after[0], "after_id": after[1]}


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


async def read_all(connection: Connection, org_id: str) -> list[AuditEvent]:
    """Read every entry of a tenant, oldest first, in batches because the time of a statement is limited."""
    found: list[AuditEvent] = []
    while True:
        after = (found[-1].at, found[-1].id) if found else (None, None)
        batch = await read_page(connection, org_id, AuditFilter(), limit=_BATCH, after=after)
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


async def read_since(connection: Connection, org_id: str, since: datetime | None) -> list[AuditEvent]:
    """Read the entries of a tenant since a time, oldest first."""
    rows = await connection.fetch(
        f"SELECT {_COLUMNS} FROM audit_events WHERE org_id = %s "  # noqa: S608  # our own columns
        "AND at >= coalesce(%s::timestamptz, '-infinity') ORDER BY at, id",
        (org_id, since),
    )
    return [_event(row) for row in rows]


def _event(row: Sequence[Any]) -> AuditEvent:
    event_id, org_id, at, action, actor_kind, *rest = row
    return AuditEvent(event_id, org_id, at, Action(action), ActorKind(actor_kind), *rest)
