"""What a check-up reads of the database: its version and schema, and what in it needs somebody's attention."""

from collections.abc import Collection
from datetime import datetime
from typing import Final

import msgspec

from tenantry.db.database import Connection
from tenantry.domain.billing.events import CHECKOUT_COMPLETED, SUBSCRIPTION_TYPES, SUBSCRIPTION_UPDATED

MOST_LISTED: Final = 20

# Some statements read the whole ledger: they may take longer than a request's, but not for ever.
PATIENCE: Final = "SET statement_timeout = '30s'"
VERSION: Final = "SELECT current_setting('server_version_num')::int, current_setting('server_version')"
HAS_REVISION: Final = "SELECT to_regclass('alembic_version') IS NOT NULL"
REVISION: Final = "SELECT max(version_num) FROM alembic_version"
OLD_KEYS: Final = """
SELECT k.id, k.name, k.org_id, k.created_at, count(*) OVER ()
  FROM api_keys k
  JOIN tenants t ON t.id = k.org_id AND t.deleted_at IS NULL
 WHERE k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > %(now)s) AND k.created_at <= %(made_until)s
 ORDER BY k.created_at, k.id
 LIMIT %(most)s
"""
FAULTY_EVENTS: Final = """
SELECT count(*) FILTER (WHERE outcome = 'invalid'),
       count(*) FILTER (WHERE outcome = 'ignored' AND org_id IS NULL
                          AND (type = ANY(%(subscription_types)s)
                               OR type = %(checkout)s AND checkout_mode = 'subscription'))
  FROM billing_events
 WHERE received_at > %(since)s
"""
UNKNOWN_PRICES: Final = """
SELECT price_id, count(*)
  FROM billing_events
 WHERE type = %(updated)s AND received_at > %(since)s AND price_id <> ALL(%(known)s)
 GROUP BY price_id
 ORDER BY count(*) DESC, price_id
 LIMIT %(most)s
"""


class Server(msgspec.Struct, frozen=True):
    """A PostgreSQL server; ``number`` is its version as ``server_version_num`` has it (180001 is 18.1)."""

    number: int
    version: str


class OldKey(msgspec.Struct, frozen=True):
    """An active key that was made long ago."""

    id: str
    name: str
    org_id: str
    created_at: datetime


class FaultyEvents(msgspec.Struct, frozen=True):
    """How many events could not be used, how many named no tenant, and which prices no plan has (the most frequent)."""

    invalid: int
    without_org: int
    unknown_prices: list[tuple[str, int]]


async def be_patient(connection: Connection) -> None:
    """Let the connection's statements take up to 30 s."""
    await connection.execute(PATIENCE)


async def read_server(connection: Connection) -> Server:
    """The server's version."""
    cursor = await connection.execute(VERSION)
    [(number, version)] = await cursor.fetchall()
    return Server(number, version)


async def read_revision(connection: Connection) -> str | None:
    """The schema's revision; None for a database that was never migrated."""
    cursor = await connection.execute(HAS_REVISION)
    if not (await cursor.fetchall())[0][0]:
        return None
    cursor = await connection.execute(REVISION)
    [(revision,)] = await cursor.fetchall()
    return str(revision) if revision else None


async def read_old_keys(connection: Connection, now: datetime, made_until: datetime) -> tuple[list[OldKey], int]:
    """The active keys of living tenants that were made at ``made_until`` or before, the oldest 20; and their number."""
    cursor = await connection.execute(OLD_KEYS, {"now": now, "made_until": made_until, "most": MOST_LISTED})
    rows = await cursor.fetchall()
    return [OldKey(*row[:4]) for row in rows], rows[0][4] if rows else 0


async def read_faulty_events(connection: Connection, since: datetime, known_prices: Collection[str]) -> FaultyEvents:
    """What was unexpected about the events received after ``since``."""
    cursor = await connection.execute(
        FAULTY_EVENTS,
        {"since": since, "subscription_types": list(SUBSCRIPTION_TYPES), "checkout": CHECKOUT_COMPLETED},
    )
    [(invalid, without_org)] = await cursor.fetchall()
    cursor = await connection.execute(
        UNKNOWN_PRICES,
        {"since": since, "updated": SUBSCRIPTION_UPDATED, "known": list(known_prices), "most": MOST_LISTED},
    )
    return FaultyEvents(invalid, without_org, [(price, count) for price, count in await cursor.fetchall()])
