"""The outbound events, in an order in which no late commit comes before one that was read.

The order is that of the epoch, the transaction's id, and the version (docs/decisions/0082).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain.outbound_events import NewEvent, OutboundEvent, event_id

MAX_SCANNED_EVENTS: Final = 10_000
"""How many events one reading looks at: a filter may match few of them."""

# The database adds the transaction's id and the version. The transaction holds the lock of the
# changed object at this moment, so the versions of an object increase in the order of its changes.
_INSERT: Final = """
INSERT INTO outbound_events (epoch, type, org_id, at, recorded_at, data)
SELECT (SELECT outbound_epoch()), new.type, new.org_id, new.at, %s, new.data
  FROM unnest(%s::text[], %s::text[], %s::timestamptz[], %s::json[]) AS new (type, org_id, at, data)
"""
_NEWEST: Final = "SELECT outbound_epoch()"
_KNOWN_EPOCH: Final = "SELECT token FROM outbound_epochs WHERE epoch = %s"
_POSITION: Final = """
SELECT epoch, xid::text::bigint, version
  FROM outbound_events
 WHERE version = %s
 ORDER BY epoch DESC
 LIMIT 1
"""
_PURGED_AFTER: Final = """
SELECT EXISTS (SELECT FROM outbound_epochs
                WHERE purged_xid IS NOT NULL
                  AND (epoch, purged_xid, purged_version) > (%s, %s::text::xid8, %s))
"""
_BEGIN_EPOCH: Final = "SELECT begin_outbound_epoch()"
_HORIZON: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_NEWEST_EVENT: Final = """
SELECT epoch, xid::text::bigint, version
  FROM outbound_events
 WHERE (epoch, xid) < (%s, pg_snapshot_xmin(pg_current_snapshot()))
 ORDER BY epoch DESC, xid DESC, version DESC
 LIMIT 1
"""
# Up to the horizon nothing will be added: all transactions before the oldest one that runs have
# ended, and so have those of an earlier epoch.
_LAST_TO_SCAN: Final = """
SELECT epoch, xid::text::bigint, version
  FROM outbound_events
 WHERE (epoch, xid, version) > (%(epoch)s, %(xid)s::text::xid8, %(version)s)
   AND (epoch, xid) < (%(newest)s, %(horizon)s::text::xid8)
 ORDER BY epoch, xid, version
OFFSET %(most)s - 1
 LIMIT 1
"""
_READ: Final = """
SELECT epoch, xid::text::bigint, version, type, org_id, at, data::text
  FROM outbound_events
 WHERE (epoch, xid, version) > (%(epoch)s, %(xid)s::text::xid8, %(version)s)
   AND (epoch, xid, version) <= (%(last_epoch)s, %(last_xid)s::text::xid8, %(last_version)s)
   AND type = ANY (%(types)s)
   AND (%(org)s::text IS NULL OR org_id = %(org)s)
 ORDER BY epoch, xid, version
 LIMIT %(limit)s
"""


class Position(NamedTuple):
    """A place in the order: that of an event, or with version 0 the place before those of a
    transaction.
    """

    epoch: int
    xid: int
    version: int


BEGINNING: Final = Position(0, 0, 0)


class EventFilter(msgspec.Struct, frozen=True):
    """The events that are wanted: their types, and their tenant; None: all tenants."""

    types: Sequence[str]
    org_id: str | None = None


class Portion(NamedTuple):
    """Events in their order, and the place where the next portion begins; ``is_last`` if no further
    events can be read now.
    """

    events: list[OutboundEvent]
    end: Position
    is_last: bool


async def insert(connection: Connection, events: Sequence[NewEvent], now: datetime) -> None:
    """Add events, in one round trip."""
    await connection.execute(
        _INSERT,
        (
            now,
            [each.type for each in events],
            [each.org_id for each in events],
            [each.at for each in events],
            [msgspec.json.encode(each.data).decode() for each in events],
        ),
    )


async def newest_epoch(connection: Connection) -> int:
    """Return the number of the epoch, and begin a new one where that is due."""
    return await connection.fetch_count(_NEWEST)


async def begin_epoch(connection: Connection) -> None:
    """Begin a new epoch, once all transactions that publish changes have ended."""
    await connection.execute(_BEGIN_EPOCH)


async def newest_event(connection: Connection) -> Position:
    """Return the position of the last event that can be read; `BEGINNING` if there is none."""
    newest = await newest_epoch(connection)
    row = await connection.fetch_row(_NEWEST_EVENT, (newest,))
    return Position(*row) if row else BEGINNING


async def token_of(connection: Connection, epoch: int) -> str | None:
    """Return the token of an epoch; None if the database has no such epoch."""
    token: str | None = await connection.fetch_value(_KNOWN_EPOCH, (epoch,))
    return token


async def position_of(connection: Connection, version: int) -> Position | None:
    """Return the position of the event that has this version; None without it."""
    row = await connection.fetch_row(_POSITION, (version,))
    return Position(*row) if row else None


async def is_purged_after(connection: Connection, position: Position) -> bool:
    """Whether an event after this position was removed with age."""
    return bool(await connection.fetch_value(_PURGED_AFTER, position))


async def horizon(connection: Connection, epoch: int) -> Position:
    """Return the place in this epoch, the newest one, before which nothing will be added, in the
    snapshot of the transaction.
    """
    return Position(epoch, await connection.fetch_count(_HORIZON), 0)


async def portion_end(
    connection: Connection, after: Position, until: Position, most: int
) -> Position | None:
    """Return the position of event number ``most`` after a position; None if fewer events follow
    before ``until``, which is the `horizon`.
    """
    values = {**after._asdict(), "newest": until.epoch, "horizon": until.xid, "most": most}
    last = await connection.fetch_row(_LAST_TO_SCAN, values)
    return Position(*last) if last else None


async def read(
    connection: Connection, after: Position, until: Position, wanted: EventFilter, limit: int
) -> Portion:
    """Read up to ``limit`` wanted events between two positions; ``until`` is the `horizon`.

    At most `MAX_SCANNED_EVENTS` events are examined.
    """
    last = await portion_end(connection, after, until, MAX_SCANNED_EVENTS)
    end = last or until
    bounds = {"last_epoch": end.epoch, "last_xid": end.xid, "last_version": end.version}
    conditions = {"types": list(wanted.types), "org": wanted.org_id, "limit": limit}
    rows = await connection.fetch(_READ, {**after._asdict(), **bounds, **conditions})
    events = [
        OutboundEvent(event_id(version), kind, org_id, at, version, msgspec.Raw(data.encode()))
        for _, _, version, kind, org_id, at, data in rows
    ]
    if len(rows) == limit:
        return Portion(events, Position(*rows[-1][:3]), is_last=False)
    return Portion(events, end, is_last=last is None)
