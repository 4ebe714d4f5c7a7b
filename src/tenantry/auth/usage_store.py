"""Counts of requests by tenant, API key and outcome: one row an hour, and one a day.

Both are indexed twice, for the keys of a tenant and for all of them, with the number in the index.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from tenantry.common.clock import from_epoch
from tenantry.db.connection import Connection
from tenantry.domain.plans import Count
from tenantry.domain.usage import (
    ALL_USERS,
    RecentUsage,
    RequestOutcome,
    UsageCount,
    UsageInterval,
    UsageQuery,
)


class CountedRequests(NamedTuple):
    """So many requests of a tenant's key had this outcome."""

    org_id: str
    key_id: str
    outcome: RequestOutcome
    number: int


# A process whose last write was interrupted cannot know whether it was committed. The number of
# its batch says so, since it is written with the counts.
_CLAIM_BATCH: Final = """
INSERT INTO usage_writers AS w (id, batch, complete_until)
VALUES (%(writer)s, %(batch)s, %(complete_until)s)
ON CONFLICT (id) DO UPDATE
   SET batch = excluded.batch, complete_until = excluded.complete_until
 WHERE w.batch < excluded.batch
"""
# Rows in one order, so that two processes never wait for each other. Nothing is counted for an
# ended tenant, whose rows are removed, perhaps now.
_ADD: Final = """
INSERT INTO {table} AS u (org_id, {time}, key_id, outcome, number)
SELECT c.org_id, %(at)s, c.key_id, c.outcome, c.number
  FROM unnest(%(orgs)s::text[], %(keys)s::text[], %(outcomes)s::text[], %(numbers)s::bigint[])
       AS c (org_id, key_id, outcome, number)
  JOIN tenants t ON t.id = c.org_id AND t.deleted_at IS NULL
 ORDER BY c.org_id COLLATE "C", c.key_id COLLATE "C", c.outcome COLLATE "C"
ON CONFLICT (org_id, key_id, {time}, outcome) DO UPDATE
   SET number = u.number + excluded.number
"""
_ADD_HOURS: Final = _ADD.format(table="usage_hours", time="hour")
_ADD_DAYS: Final = _ADD.format(table="usage_days", time="day")
_FORGET_WRITER: Final = "DELETE FROM usage_writers WHERE id = %s"
# A process that has not written for so long has ended, or will write its counts late.
_COMPLETE_UNTIL: Final = """
SELECT min(complete_until) FROM usage_writers WHERE complete_until > %s::timestamptz - interval '5 minutes'
"""
# As seconds, which are read in a fifth of the time of timestamps. What is told apart is in the
# text: by parameters, one plan for all of them sorts every row: 180,000 took 310 ms instead of 140.
_READ: Final = """
SELECT extract(epoch FROM {time})::bigint, sum(number)::bigint, {tenant}, {key}, {outcome}
  FROM {table}
 WHERE {time} >= %(since)s AND {time} < %(until)s {only}
 GROUP BY {time}, 3, 4, 5
 ORDER BY {time}, 3, 4, 5
 LIMIT %(most)s
"""
_OF_TENANT: Final = "AND org_id = %(org_id)s"
_OF_KEYS: Final = "AND org_id = %(org_id)s AND key_id = ANY (%(key_ids)s)"
_TABLES: Final = {
    UsageInterval.HOUR: {"table": "usage_hours", "time": "hour"},
    UsageInterval.DAY: {"table": "usage_days", "time": "day"},
}
_ALIKE: Final = "NULL::text"
"""Stands in place of a column that a query does not tell apart."""
_BUSIEST: Final = """
SELECT key_id
  FROM {table}
 WHERE org_id = %(org_id)s AND {time} >= %(since)s AND {time} < %(until)s AND key_id <> %(all_users)s
 GROUP BY key_id
 ORDER BY sum(number) DESC, key_id
 LIMIT %(most)s
"""
# Each tenant reads a bounded number of rows, from the indexes alone.
_RECENT: Final = """
SELECT t.id, days.number, days.rows,
       (SELECT hour FROM usage_hours WHERE org_id = t.id ORDER BY hour DESC LIMIT 1)
  FROM unnest(%(tenants)s::text[]) AS t (id)
 CROSS JOIN LATERAL (SELECT coalesce(sum(number), 0)::bigint AS number, count(*) AS rows
                       FROM (SELECT number
                               FROM usage_days
                              WHERE org_id = t.id AND day >= %(since)s
                              LIMIT %(most)s + 1) AS k) AS days
"""
_MOST_RECENT: Final = 2000
_BUSIEST_KEYS: Final = {i: _BUSIEST.format(**names) for i, names in _TABLES.items()}


async def claim_batch(
    connection: Connection, writer: str, batch: int, complete_until: datetime
) -> bool:
    """Record that a process writes this batch; return False if it was written before."""
    values = {"writer": writer, "batch": batch, "complete_until": complete_until}
    return (await connection.execute(_CLAIM_BATCH, values)).rowcount > 0


async def add(connection: Connection, hour: datetime, counts: Sequence[CountedRequests]) -> None:
    """Add counts of one hour, each key and outcome at most once."""
    values: dict[str, Any] = {
        "orgs": [count.org_id for count in counts],
        "keys": [count.key_id for count in counts],
        "outcomes": [count.outcome.value for count in counts],
        "numbers": [count.number for count in counts],
    }
    await connection.execute(_ADD_HOURS, {**values, "at": hour})
    await connection.execute(_ADD_DAYS, {**values, "at": UsageInterval.DAY.begin(hour)})


async def forget_writer(connection: Connection, writer: str) -> None:
    """Remove a process that has written everything."""
    await connection.execute(_FORGET_WRITER, (writer,))


async def complete_until(connection: Connection, now: datetime) -> datetime:
    """Return the moment until which every process that counts has written its counts."""
    return await connection.fetch_value(_COMPLETE_UNTIL, (now,)) or now


async def read(connection: Connection, wanted: UsageQuery, most: int | None) -> list[UsageCount]:
    """Read counts, oldest first, at most so many; None for all."""
    rows = await connection.fetch(*read_statement(wanted, most))
    moments = {second: from_epoch(second) for second, *_ in rows}
    return [
        UsageCount(
            moments[second],
            number,
            UNSET if org_id is None else org_id,
            key_id or None if wanted.by_key else UNSET,
            UNSET if outcome is None else RequestOutcome(outcome),
        )
        for second, number, org_id, key_id, outcome in rows
    ]


async def read_all(connection: Connection, org_id: str, now: datetime) -> list[UsageCount]:
    """Read the days of a tenant, by key and outcome, oldest first."""
    days = UsageInterval.DAY
    wanted = UsageQuery(
        interval=days,
        since=now - days.kept,
        until=now,
        by_key=True,
        by_outcome=True,
        org_id=org_id,
    )
    return await read(connection, wanted, None)


async def busiest_keys(connection: Connection, wanted: UsageQuery, most: int) -> list[str]:
    """Return the ids of a tenant's keys with the most requests in the time of a query, the busiest
    first.
    """
    values = {
        "org_id": wanted.org_id,
        "since": wanted.since,
        "until": wanted.until,
        "all_users": ALL_USERS,
        "most": most,
    }
    return await connection.fetch_column(_BUSIEST_KEYS[wanted.interval], values)


async def recent_of_tenants(
    connection: Connection, tenants: Collection[str], since: datetime
) -> dict[str, RecentUsage]:
    """Read the requests of tenants since the beginning of a day, by tenant; across tenants."""
    values = {"tenants": list(tenants), "since": since, "most": _MOST_RECENT}
    rows = await connection.fetch(_RECENT, values)
    return {
        org_id: RecentUsage(Count(number, examined > _MOST_RECENT), last_hour)
        for org_id, number, examined, last_hour in rows
    }


def read_statement(wanted: UsageQuery, most: int | None) -> tuple[str, dict[str, Any]]:
    """Return the statement that reads counts, and its values."""
    values = {
        "org_id": wanted.org_id,
        "since": wanted.since,
        "until": wanted.until,
        "key_ids": list(wanted.key_ids or ()),
        "most": most,
    }
    statement = _READ.format(
        **_TABLES[wanted.interval],
        tenant="org_id" if wanted.by_tenant else _ALIKE,
        key="key_id" if wanted.by_key else _ALIKE,
        outcome="outcome" if wanted.by_outcome else _ALIKE,
        only=_narrowed(wanted),
    )
    return statement, values


def _narrowed(wanted: UsageQuery) -> str:
    """Return the condition on the tenant and the keys of a query."""
    if wanted.org_id is None:
        return ""
    return _OF_TENANT if wanted.key_ids is None else _OF_KEYS
