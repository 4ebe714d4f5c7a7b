"""The endpoints of webhooks, and their deliveries.

A delivery has the place of its event in the order of the feed. The queued rows are the only list of
pending deliveries: jobs read it (docs/decisions/0083).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain.outbound_events import OutboundEvent, event_id
from tenantry.outbound.events_store import Position

MAX_COUNTED: Final = 10_000
"""Up to how many unread events of an endpoint are counted."""
ROWS_PER_STATEMENT: Final = 1000

# A new endpoint begins with the events of the changes that follow.
_SEE: Final = """
INSERT INTO webhook_endpoints (name, epoch, xid, version, seen_at)
SELECT name, %(epoch)s, %(xid)s::text::xid8, %(version)s, %(now)s
  FROM unnest(%(names)s::text[]) AS given (name)
 ORDER BY name
    ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at
"""
# Both counts are of no more rows than are needed to decide what to do.
_SURVEY: Final = """
SELECT e.name, e.seen_at,
       e.disabled_at IS NULL AND (e.paused_until IS NULL OR e.paused_until <= %(now)s),
       (SELECT count(*)
          FROM (SELECT FROM webhook_deliveries d
                 WHERE d.endpoint = e.name AND d.status = 'queued' AND d.next_attempt_at <= %(now)s
                 LIMIT %(most)s) due),
       EXISTS (SELECT FROM outbound_events o
                WHERE (o.epoch, o.xid, o.version) > (e.epoch, e.xid, e.version)
                  AND (o.epoch, o.xid) < (%(epoch)s, %(xid)s::text::xid8))
  FROM webhook_endpoints e
 WHERE e.name = ANY (%(names)s)
 ORDER BY e.name
"""
# An endpoint that another worker holds is left to it.
_LOCK: Final = """
SELECT epoch, xid::text::bigint, version
  FROM webhook_endpoints
 WHERE name = %s AND disabled_at IS NULL
   FOR NO KEY UPDATE SKIP LOCKED
"""
_MOVE: Final = """
UPDATE webhook_endpoints
   SET epoch = %(epoch)s, xid = %(xid)s::text::xid8, version = %(version)s
 WHERE name = %(name)s
"""
# Only an operator who sends events again meets deliveries that exist.
_QUEUE: Final = """
INSERT INTO webhook_deliveries (endpoint, epoch, xid, version, status, next_attempt_at, created_at)
SELECT %(name)s, epoch, xid, version, 'queued', %(now)s, %(now)s
  FROM outbound_events
 WHERE (epoch, xid, version) > (%(epoch)s, %(xid)s::text::xid8, %(version)s)
   AND (epoch, xid, version) <= (%(last_epoch)s, %(last_xid)s::text::xid8, %(last_version)s)
   AND type = ANY (%(types)s)
   AND (%(since)s::timestamptz IS NULL OR recorded_at >= %(since)s)
 ORDER BY epoch, xid, version
    ON CONFLICT (endpoint, version) DO UPDATE
       SET status = 'queued', attempts = 0, next_attempt_at = excluded.next_attempt_at, delivered_at = NULL
"""
_DUE: Final = """
SELECT d.version, d.attempts, o.type, o.org_id, o.at, o.data::text
  FROM webhook_deliveries d
  JOIN webhook_endpoints e ON e.name = d.endpoint
  LEFT JOIN outbound_events o ON (o.epoch, o.xid, o.version) = (d.epoch, d.xid, d.version)
 WHERE d.endpoint = %(name)s AND d.status = 'queued' AND d.next_attempt_at <= %(now)s
   AND e.disabled_at IS NULL AND (e.paused_until IS NULL OR e.paused_until <= %(now)s)
 ORDER BY d.next_attempt_at, d.version
 LIMIT %(most)s
"""
_DELIVERED: Final = """
UPDATE webhook_deliveries
   SET status = 'delivered', attempts = attempts + 1, next_attempt_at = NULL, last_status = %(status)s,
       last_error = NULL, delivered_at = %(now)s
 WHERE endpoint = %(name)s AND version = %(event)s
"""
# Its row also has the position, so that it is written a few times a minute, not for each delivery.
_SUCCEEDED: Final = """
UPDATE webhook_endpoints
   SET last_success_at = %(now)s, failing_since = NULL
 WHERE name = %(name)s
   AND (failing_since IS NOT NULL OR last_success_at IS NULL OR last_success_at < %(now)s - interval '10 seconds')
"""
_FAILED: Final = """
UPDATE webhook_deliveries
   SET status = CASE WHEN %(next)s::timestamptz IS NULL THEN 'held' ELSE 'queued' END,
       attempts = attempts + 1, next_attempt_at = %(next)s, last_status = %(status)s, last_error = %(error)s
 WHERE endpoint = %(name)s AND version = %(event)s AND status = 'queued'
"""
_FAILING: Final = """
UPDATE webhook_endpoints
   SET failing_since = coalesce(failing_since, %(now)s),
       paused_until = greatest(paused_until, %(pause)s::timestamptz)
 WHERE name = %(name)s
RETURNING failing_since
"""
_COUNT: Final = """
UPDATE webhook_endpoints
   SET accepted = accepted + %(accepted)s, failed = failed + %(failed)s
 WHERE name = %(name)s
"""
_DISABLE: Final = """
UPDATE webhook_endpoints
   SET disabled_at = %(now)s, disabled_reason = %(reason)s
 WHERE name = %(name)s AND disabled_at IS NULL
"""
_ENABLE: Final = """
UPDATE webhook_endpoints
   SET disabled_at = NULL, disabled_reason = NULL, failing_since = NULL, paused_until = NULL
 WHERE name = %s
"""
# In portions, by version: a receiver that was down for days may have more than a statement has time
# for.
_RELEASE: Final = """
WITH chosen AS (
       SELECT version
         FROM webhook_deliveries
        WHERE endpoint = %(name)s AND status <> 'delivered' AND version > %(after)s
        ORDER BY version
        LIMIT %(most)s),
     released AS (
       UPDATE webhook_deliveries d
          SET status = 'queued', attempts = 0, next_attempt_at = %(now)s
         FROM chosen
        WHERE d.endpoint = %(name)s AND d.version = chosen.version AND d.status <> 'delivered')
SELECT count(*), max(version) FROM chosen
"""
_RELEASE_ONE: Final = """
UPDATE webhook_deliveries d
   SET status = 'queued', attempts = 0, next_attempt_at = %(now)s, delivered_at = NULL
 WHERE endpoint = %(name)s AND version = %(event)s
   AND EXISTS (SELECT FROM outbound_events o WHERE (o.epoch, o.xid, o.version) = (d.epoch, d.xid, d.version))
"""
_REMOVE: Final = "DELETE FROM webhook_deliveries WHERE endpoint = %s AND version = %s"
_POSITION: Final = "SELECT epoch, xid::text::bigint, version FROM webhook_endpoints WHERE name = %s"
_STATE: Final = """
SELECT e.accepted, e.failed, e.last_success_at, e.failing_since, e.paused_until, e.disabled_at, e.disabled_reason,
       (SELECT count(*)
          FROM (SELECT FROM webhook_deliveries d
                 WHERE d.endpoint = e.name AND d.status = 'queued'
                 LIMIT %(deliveries)s) queued),
       (SELECT count(*)
          FROM (SELECT FROM webhook_deliveries d
                 WHERE d.endpoint = e.name AND d.status = 'held'
                 LIMIT %(deliveries)s) held),
       (SELECT count(*)
          FROM (SELECT o.type FROM outbound_events o
                 WHERE (o.epoch, o.xid, o.version) > (e.epoch, e.xid, e.version)
                 ORDER BY o.epoch, o.xid, o.version
                 LIMIT %(most)s) unread
         WHERE unread.type = ANY (%(types)s))
  FROM webhook_endpoints e
 WHERE e.name = %(name)s
"""


class EndpointSurvey(NamedTuple):
    """What there is to do for an endpoint: how many deliveries are due, up to the limit that was
    asked for, and whether events follow its position.
    """

    name: str
    seen_at: datetime
    is_active: bool
    due: int
    has_events: bool


class DueDelivery(NamedTuple):
    """A delivery that is due, after so many failed attempts; without ``event``, the event is no
    longer kept.
    """

    version: int
    attempts: int
    event: OutboundEvent | None


class EndpointRow(NamedTuple):
    """An endpoint, with the numbers of its attempts, of its deliveries and of the events without
    one.

    ``unread`` counts among the next `MAX_COUNTED` events.
    """

    accepted: int
    failed: int
    last_success_at: datetime | None
    failing_since: datetime | None
    paused_until: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None
    queued: int
    held: int
    unread: int


async def see(
    connection: Connection, names: Sequence[str], beginning: Position, now: datetime
) -> None:
    """Note that the catalog has these endpoints; new ones receive the events after
    ``beginning``.
    """
    await connection.execute(_SEE, {**beginning._asdict(), "names": list(names), "now": now})


async def survey(
    connection: Connection, names: Sequence[str], until: Position, most: int, now: datetime
) -> list[EndpointSurvey]:
    """Return what there is to do for those of these endpoints that are known; ``until`` is the
    horizon of the feed.
    """
    values = {"epoch": until.epoch, "xid": until.xid, "names": list(names), "most": most}
    rows = await connection.fetch(_SURVEY, {**values, "now": now})
    return [EndpointSurvey(*row) for row in rows]


async def lock_position(connection: Connection, name: str) -> Position | None:
    """Lock an endpoint and return its position; None if it is disabled, or another transaction
    holds it.
    """
    row = await connection.fetch_row(_LOCK, (name,))
    return Position(*row) if row else None


async def move(connection: Connection, name: str, position: Position) -> None:
    """Note that the deliveries up to this position exist."""
    await connection.execute(_MOVE, {**position._asdict(), "name": name})


async def queue(
    connection: Connection,
    name: str,
    types: Sequence[str],
    after: Position,
    last: Position,
    now: datetime,
    since: datetime | None = None,
) -> int:
    """Queue the events of these types between two positions, the last one included, again if they
    were sent; return their number.

    With ``since`` only those that were recorded then or later.
    """
    bounds = {"last_epoch": last.epoch, "last_xid": last.xid, "last_version": last.version}
    values = {"name": name, "types": list(types), "now": now, "since": since}
    cursor = await connection.execute(_QUEUE, {**after._asdict(), **bounds, **values})
    return cursor.rowcount


async def read_due(
    connection: Connection, name: str, most: int, now: datetime
) -> list[DueDelivery]:
    """Return up to ``most`` deliveries that are due, the oldest first; none while the endpoint is
    disabled or paused.
    """
    rows = await connection.fetch(_DUE, {"name": name, "most": most, "now": now})
    return [_due(*row) for row in rows]


def _due(
    version: int,
    attempts: int,
    event_type: str | None,
    org_id: str,
    at: datetime,
    data: str,
) -> DueDelivery:
    if event_type is None:
        return DueDelivery(version, attempts, None)
    raw = msgspec.Raw(data.encode())
    event = OutboundEvent(event_id(version), event_type, org_id, at, version, raw)
    return DueDelivery(version, attempts, event)


async def mark_delivered(
    connection: Connection, name: str, version: int, status: int | None, now: datetime
) -> None:
    """Record that the receiver has accepted an event."""
    values = {"name": name, "event": version, "status": status, "now": now}
    await connection.execute(_DELIVERED, values)
    await connection.execute(_SUCCEEDED, {"name": name, "now": now})


async def mark_failed(
    connection: Connection,
    name: str,
    version: int,
    *,
    status: int | None,
    error: str | None,
    next_attempt_at: datetime | None,
) -> None:
    """Record a failed attempt; without a next one the delivery is held."""
    values = {
        "name": name,
        "event": version,
        "status": status,
        "error": error,
        "next": next_attempt_at,
    }
    await connection.execute(_FAILED, values)


async def note_failure(
    connection: Connection, name: str, pause: datetime | None, now: datetime
) -> datetime:
    """Record that an attempt failed, and until when the endpoint pauses; return since when its
    attempts have failed.
    """
    failing_since: datetime | None = await connection.fetch_value(
        _FAILING, {"name": name, "pause": pause, "now": now}
    )
    return failing_since or now


async def count_attempts(connection: Connection, name: str, accepted: int, failed: int) -> None:
    """Add to the numbers of attempts."""
    await connection.execute(_COUNT, {"name": name, "accepted": accepted, "failed": failed})


async def disable(connection: Connection, name: str, reason: str, now: datetime) -> bool:
    """Disable an endpoint; return False if it is disabled already."""
    values = {"name": name, "reason": reason, "now": now}
    return (await connection.execute(_DISABLE, values)).rowcount > 0


async def enable(connection: Connection, name: str) -> None:
    """Enable an endpoint, and forget its failures."""
    await connection.execute(_ENABLE, (name,))


async def release(
    connection: Connection, name: str, after: int, now: datetime
) -> tuple[int, int | None]:
    """Queue up to `ROWS_PER_STATEMENT` undelivered deliveries after a version, from the first
    attempt on; return their number, and the last version.
    """
    values = {"name": name, "after": after, "most": ROWS_PER_STATEMENT, "now": now}
    [(number, last)] = await connection.fetch(_RELEASE, values)
    return number, last


async def release_one(connection: Connection, name: str, version: int, now: datetime) -> bool:
    """Queue a delivery again, delivered or not; return False if there is none of this event, or the
    event is no longer kept.
    """
    values = {"name": name, "event": version, "now": now}
    return (await connection.execute(_RELEASE_ONE, values)).rowcount > 0


async def remove(connection: Connection, name: str, version: int) -> None:
    """Remove a delivery whose event is no longer kept."""
    await connection.execute(_REMOVE, (name, version))


async def position_of(connection: Connection, name: str) -> Position | None:
    """Return the position of an endpoint; None if no worker has seen it yet."""
    row = await connection.fetch_row(_POSITION, (name,))
    return Position(*row) if row else None


async def read_endpoint(
    connection: Connection, name: str, types: Sequence[str], most: int | None = None
) -> EndpointRow | None:
    """Return an endpoint that receives these types; None if no worker has seen it yet. ``most``
    limits how many deliveries of a status are counted.
    """
    values = {"name": name, "types": list(types), "most": MAX_COUNTED, "deliveries": most}
    row = await connection.fetch_row(_STATE, values)
    return EndpointRow(*row) if row else None
