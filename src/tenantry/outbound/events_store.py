"""The outbound events, in an order in which no late commit comes before one that was read.

The order is that of the epoch, the transaction's id, and the version (docs/decisions/0082).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.roles import TAKE_STATISTICS
from tenantry.db.statements import JSONS, MOMENT, MOMENTS, TEXTS, BoundStatement, Statement
from tenantry.domain.outbound_events import NewEvent, OutboundEvent, event_id

LONGEST_WRITER: Final = 30
"""Seconds for which a transaction that writes may be open: then it is named."""
MAX_SCANNED_EVENTS: Final = 10_000
"""How many events one reading looks at: a filter may match few of them."""

# The database adds the transaction's id and the version. The transaction holds the lock of the
# changed object at this moment, so the versions of an object increase in the order of its changes.
_INSERT: Final = Statement(
    """
INSERT INTO outbound_events (epoch, type, org_id, at, recorded_at, data)
SELECT (SELECT outbound_epoch()), new.type, new.org_id, new.at, $5, new.data
  FROM unnest($1, $2, $3, $4) AS new (type, org_id, at, data)
""",
    TEXTS,
    TEXTS,
    MOMENTS,
    JSONS,
    MOMENT,
)
_NEWEST: Final = "SELECT outbound_epoch()"
_KNOWN_EPOCH: Final = "SELECT token FROM outbound_epochs WHERE epoch = %s"
# A reader that knows the last event that was removed has seen all of these.
_POSITION: Final = """
SELECT epoch, xid::text::bigint, version
  FROM outbound_events
 WHERE version = %(version)s
 UNION ALL
SELECT epoch, purged_xid::text::bigint, purged_version
  FROM outbound_epochs
 WHERE purged_version = %(version)s
 ORDER BY epoch DESC
 LIMIT 1
"""
_LAST_PURGED: Final = """
SELECT epoch, purged_xid::text::bigint, purged_version
  FROM outbound_epochs
 WHERE purged_xid IS NOT NULL
 ORDER BY epoch DESC
 LIMIT 1
"""
_REMEMBERED: Final = """
SELECT EXISTS (SELECT FROM outbound_events WHERE (epoch, xid, version) = (%(epoch)s, %(xid)s::text::xid8, %(version)s))
    OR EXISTS (SELECT FROM outbound_epochs
                WHERE epoch = %(epoch)s AND (purged_xid, purged_version) >= (%(xid)s::text::xid8, %(version)s))
"""
_PURGED_AFTER: Final = """
SELECT EXISTS (SELECT FROM outbound_epochs
                WHERE purged_xid IS NOT NULL
                  AND (epoch, purged_xid, purged_version) > (%s, %s::text::xid8, %s))
"""
_BEGIN_EPOCH: Final = "SELECT begin_outbound_epoch()"
_HORIZON: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
# ORDER BY names the table where the statement returns ``xid`` as a number: the name alone would be
# that of the number, and no index has its order.
_NEWEST_POSITION: Final = """
(SELECT e.epoch, e.xid::text::bigint, e.version
   FROM outbound_events e
  WHERE (e.epoch, e.xid) < (%(epoch)s, pg_snapshot_xmin(pg_current_snapshot()))
  ORDER BY e.epoch DESC, e.xid DESC, e.version DESC
  LIMIT 1)
UNION ALL
SELECT epoch, purged_xid::text::bigint, purged_version FROM outbound_epochs WHERE purged_xid IS NOT NULL
"""
# Up to the horizon nothing will be added: all transactions before the oldest one that runs have
# ended, and so have those of an earlier epoch.
_PORTION_END: Final = """
SELECT e.epoch, e.xid::text::bigint, e.version
  FROM outbound_events e
 WHERE (e.epoch, e.xid, e.version) > (%(epoch)s, %(xid)s::text::xid8, %(version)s)
   AND (e.epoch, e.xid) < (%(newest)s, %(horizon)s::text::xid8)
 ORDER BY e.epoch, e.xid, e.version
OFFSET %(most)s - 1
 LIMIT 1
"""
# The inner limit bounds what is examined, and the outer one ends it at the last wanted event.
_READ: Final = """
SELECT e.epoch, e.xid::text::bigint, e.version, e.type, e.org_id, e.at, e.data::text
  FROM (SELECT epoch, xid, version, type, org_id, at, data
          FROM outbound_events
         WHERE (epoch, xid, version) > (%(epoch)s, %(xid)s::text::xid8, %(version)s)
           AND (epoch, xid) < (%(newest)s, %(horizon)s::text::xid8)
         ORDER BY epoch, xid, version
         LIMIT %(most)s) AS e
 WHERE (%(org)s::text IS NULL OR e.org_id = %(org)s)
   AND e.type = ANY (%(types)s)
 ORDER BY e.epoch, e.xid, e.version
 LIMIT %(limit)s
"""

_WAITING: Final = Statement("""
SELECT extract(epoch FROM clock_timestamp() - recorded_at)::bigint
  FROM outbound_events
 WHERE (epoch, xid) >= ((SELECT max(epoch) FROM outbound_epochs), pg_snapshot_xmin(pg_current_snapshot()))
 ORDER BY epoch, xid, version
 LIMIT 1
""")
# The transaction at the horizon, of whichever database. The start of others is shown to members of
# pg_read_all_stats only.
_OLDEST_WRITER: Final = Statement("""
SELECT name, database, application, seconds::bigint
  FROM (SELECT 'process ' || pid AS name, coalesce(datname::text, '') AS database,
               coalesce(application_name, '') AS application,
               backend_xid AS xid, extract(epoch FROM clock_timestamp() - xact_start) AS seconds
          FROM pg_stat_activity
         UNION ALL
        SELECT 'prepared transaction ' || gid, database::text, '',
               transaction, extract(epoch FROM clock_timestamp() - prepared)
          FROM pg_prepared_xacts) AS open
 WHERE xid = pg_snapshot_xmin(pg_current_snapshot())::xid
""")


class Position(NamedTuple):
    """A place in the order: that of an event, or with zeros the place before those of an epoch.

    It is never that of a transaction without events: after a crash the database gives the ids of
    transactions again whose records had not reached the disk, such as those that were rolled back.
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


class OldestWriter(NamedTuple):
    """The oldest of the transactions that write, in all databases of the server: the feed and the
    webhooks wait for it.
    """

    name: str = ""
    """Its process, or its name as a prepared transaction; empty if the server does not show it."""
    database: str = ""
    application: str = ""
    seconds: int = 0
    """For how long it has been open."""
    is_exact: bool = True
    """Otherwise it has been open for at least this time: its start is not shown to the login, but
    an event has been waiting for so long.
    """


def publication(events: Sequence[NewEvent], now: datetime) -> list[BoundStatement]:
    """Return what publishes changes once the transaction that runs it is committed.

    The transaction holds the lock of each changed object, or has made it.
    """
    rows = [(each.type, each.org_id, each.at, msgspec.json.encode(each.data)) for each in events]
    return _INSERT.for_rows(rows, now)


async def read_oldest_writer(connection: Connection) -> OldestWriter | None:
    """Return the oldest transaction that writes, if there is one.

    The last statement of a transaction: the rest would run in a role that sees statistics alone.
    """
    waiting, _, found = await connection.run_batch(_WAITING(), TAKE_STATISTICS(), _OLDEST_WRITER())
    waited = max(0, waiting[0][0]) if waiting else 0
    if not found:
        return OldestWriter(seconds=waited, is_exact=False) if waited else None
    name, database, application, seconds = found[0]
    if seconds is None:
        return OldestWriter(name, database, application, waited, is_exact=False)
    return OldestWriter(name, database, application, seconds)


async def newest_epoch(connection: Connection) -> int:
    """Return the number of the epoch, and begin a new one where that is due."""
    return await connection.fetch_count(_NEWEST)


async def begin_epoch(connection: Connection) -> None:
    """Begin a new epoch, once all transactions that publish changes have ended."""
    await connection.execute(_BEGIN_EPOCH)


async def newest_position(connection: Connection, epoch: int) -> Position:
    """Return the position of the last event that can be read or was removed, if it is one of
    ``epoch``, the newest one, else the beginning of that.
    """
    rows = await connection.fetch(_NEWEST_POSITION, {"epoch": epoch})
    return max([Position(epoch, 0, 0), *(Position(*row) for row in rows)])


async def token_of(connection: Connection, epoch: int) -> str | None:
    """Return the token of an epoch; None if the database has no such epoch."""
    token: str | None = await connection.fetch_value(_KNOWN_EPOCH, (epoch,))
    return token


async def position_of(connection: Connection, version: int) -> Position | None:
    """Return the position of the event that has this version, if it is kept or the last one that
    was removed; else None.
    """
    row = await connection.fetch_row(_POSITION, {"version": version})
    return Position(*row) if row else None


async def oldest_position(connection: Connection) -> Position:
    """Return the place before all events that are kept."""
    row = await connection.fetch_row(_LAST_PURGED)
    return Position(*row) if row else BEGINNING


async def is_remembered(connection: Connection, position: Position) -> bool:
    """Whether the database has the event of this position, or removed it with age. Else it has lost
    the event.
    """
    return bool(await connection.fetch_value(_REMEMBERED, position._asdict()))


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
    row = await connection.fetch_row(_PORTION_END, _examined(after, until, most))
    return Position(*row) if row else None


def _examined(after: Position, until: Position, most: int) -> dict[str, int]:
    return {**after._asdict(), "newest": until.epoch, "horizon": until.xid, "most": most}


async def read(
    connection: Connection, after: Position, until: Position, wanted: EventFilter, limit: int
) -> Portion:
    """Read up to ``limit`` wanted events between two positions; ``until`` is the `horizon`.

    At most `MAX_SCANNED_EVENTS` events are examined.
    """
    conditions = {"types": list(wanted.types), "org": wanted.org_id, "limit": limit}
    values = {**_examined(after, until, MAX_SCANNED_EVENTS), **conditions}
    rows = await connection.fetch(_READ, values)
    events = [
        OutboundEvent(event_id(version), kind, org_id, at, version, msgspec.Raw(data.encode()))
        for _, _, version, kind, org_id, at, data in rows
    ]
    if len(rows) == limit:
        return Portion(events, Position(*rows[-1][:3]), is_last=False)
    end = await portion_end(connection, after, until, MAX_SCANNED_EVENTS)
    if end is not None:
        return Portion(events, end, is_last=False)
    newest = await newest_position(connection, until.epoch)
    return Portion(events, max(after, newest), is_last=True)
