"""The append-only audit trail. The database also prevents changes and deletions of entries."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from psycopg.types.json import Jsonb

from tenantry.db.connection import Connection
from tenantry.db.numbered_pages import NumberedListing, NumberedPage, PageRequest
from tenantry.db.pagination import Listing, Page, Window, window_after
from tenantry.domain.audit import Action, ActorKind, AuditEvent

_COLUMNS: Final = (
    "id, org_id, at, action, actor_kind, actor_id, on_behalf_of, reason, address, request_id, "
    "target_id, before, after"
)
_INSERT: Final = """
INSERT INTO audit_events
       (id, org_id, at, action, actor_kind, actor_id, on_behalf_of, reason, address, request_id, target_id,
        before, after)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_BATCH: Final = 10_000
_LISTING: Final = Listing(_COLUMNS, "audit_events", "at")
_CONDITIONS: Final = {
    "action": "action = %(action)s",
    "actor_id": "actor_id = %(actor_id)s",
    "target_id": "target_id = %(target_id)s",
    "since": "at >= %(since)s",
}
_UNTIL: Final = "at < %(until)s"


class AuditFilter(msgspec.Struct, frozen=True):
    """Conditions on entries; None means any. ``since`` is inclusive, ``until`` is not."""

    action: Action | None = None
    actor_id: str | None = None
    target_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def insert(connection: Connection, entry: AuditEvent) -> None:
    """Add an entry."""
    await connection.execute(_INSERT, _values(entry))


async def insert_all(connection: Connection, entries: Sequence[AuditEvent]) -> None:
    """Add entries, in one round trip."""
    async with connection.cursor() as cursor:
        await cursor.executemany(_INSERT, [_values(entry) for entry in entries])


def _values(entry: AuditEvent) -> tuple[object, ...]:
    *values, before, after = msgspec.structs.astuple(entry)
    return (*values, before and Jsonb(before), after and Jsonb(after))


async def read_page(
    connection: Connection, org_id: str, wanted: AuditFilter, window: Window
) -> Page[AuditEvent]:
    """Read a page of a tenant's entries, newest first."""
    return await _LISTING.page(
        connection,
        _all_of("org_id = %(org)s", *_conditions(_given(wanted))),
        _filter_values(org_id, wanted),
        _until(window, wanted.until),
        _event,
    )


async def search_page(
    connection: Connection, org_id: str, wanted: AuditFilter, request: PageRequest
) -> NumberedPage[AuditEvent]:
    """Read a numbered page of a tenant's entries, newest first. Raises `InvalidCursorError`.

    Only `MAX_SCANNED_ROWS` entries are examined where no index supports all conditions.
    """
    given = _given(wanted)
    checked = _unindexed(given)
    indexed = [name for name in given if name not in checked]
    bounds = [_UNTIL] if wanted.until is not None else []
    listing = NumberedListing(
        _LISTING,
        _all_of("org_id = %(org)s", *_conditions(indexed), *bounds),
        _filter_values(org_id, wanted),
        _all_of(*_conditions(checked)),
    )
    return await listing.read(connection, request, _event)


def _given(wanted: AuditFilter) -> list[str]:
    """Return the conditions that are given: a cached plan for all of them could use no index."""
    return [name for name in _CONDITIONS if getattr(wanted, name) is not None]


def _conditions(names: Iterable[str]) -> list[str]:
    return [_CONDITIONS[name] for name in names]


def _all_of(*conditions: str) -> str:
    return " AND ".join(conditions) or "true"


def _filter_values(org_id: str, wanted: AuditFilter) -> dict[str, object]:
    return {**msgspec.structs.asdict(wanted), "org": org_id}


def _until(window: Window, until: datetime | None) -> Window:
    """Begin at a time: as a condition, it would be checked on each newer entry instead of finding
    its place in the index.
    """
    if until is None or (window.after_at is not None and window.after_at <= until):
        return window
    return Window(window.limit, until, "")


def _unindexed(names: Sequence[str]) -> list[str]:
    """Return the conditions that are checked row by row; one index finds the others together."""
    unindexed = {"action", "actor_id"} if "target_id" in names else {"action"}
    return [name for name in names if name in unindexed]


def ids_in(entries: Sequence[AuditEvent]) -> set[str]:
    """Return the ids of the targets and actors of entries."""
    targets = {entry.target_id for entry in entries}
    return targets | {entry.actor_id for entry in entries if entry.actor_id is not None}


async def read_names(connection: Connection, org_id: str, ids: Collection[str]) -> dict[str, str]:
    """Read, by their ids, the names of keys and live projects, the users of members, and the
    addresses of invitations that the tenant has.
    """
    rows = await connection.fetch(
        "SELECT id, name FROM api_keys WHERE org_id = %(org)s AND id = ANY(%(ids)s) UNION ALL "
        "SELECT id, subject FROM memberships WHERE tenant_id = %(org)s AND id = ANY(%(ids)s) UNION ALL "
        "SELECT id, email FROM invitations WHERE org_id = %(org)s AND id = ANY(%(ids)s) UNION ALL "
        "SELECT id, name FROM projects WHERE org_id = %(org)s AND mode = 'live' AND id = ANY(%(ids)s)",
        {"org": org_id, "ids": list(ids)},
    )
    return dict(rows)


async def read_all(
    connection: Connection, org_id: str, since: datetime | None = None
) -> list[AuditEvent]:
    """Read a tenant's entries since a time, oldest first, in batches because the time of a
    statement is limited.
    """
    found = list[AuditEvent]()
    cursor = None
    while True:
        page = await read_page(
            connection, org_id, AuditFilter(since=since), window_after(_BATCH, cursor)
        )
        found += page.data
        cursor = page.next_cursor
        if cursor is None:
            return found[::-1]


async def existing_ids(connection: Connection, org_id: str, ids: Collection[str]) -> set[str]:
    """Return which of these entries a tenant has."""
    statement = "SELECT id FROM audit_events WHERE org_id = %s AND id = ANY(%s)"
    return set(await connection.fetch_column(statement, (org_id, list(ids))))


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
    return AuditEvent(
        event_id,
        org_id,
        at,
        Action(action),
        ActorKind(actor_kind),
        *rest,
    )
