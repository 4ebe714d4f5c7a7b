"""What PostgreSQL says of itself: its settings, its room, and what keeps it from tidying up."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tenantry.db.connection import Connection

MOST_LISTED: Final = 5
BE_LOGIN: Final = "SELECT set_config('role', 'none', false)"
SETTINGS: Final = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
CLOCK: Final = "SELECT clock_timestamp()"
ROOM: Final = """
SELECT d.datconnlimit, r.rolconnlimit,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
  FROM pg_database d, pg_roles r
 WHERE d.datname = current_database() AND r.rolname = current_user
"""
SIZES: Final = """
SELECT relname, pg_total_relation_size(oid)
  FROM pg_class
 WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace
 ORDER BY 2 DESC, 1
 LIMIT %(most)s
"""
SIZE: Final = "SELECT pg_database_size(current_database())"
UNTIDY: Final = """
SELECT relname, n_live_tup, n_dead_tup
  FROM pg_stat_user_tables
 WHERE n_dead_tup >= %(least)s AND n_dead_tup > n_live_tup * %(share)s
 ORDER BY n_dead_tup DESC, relname
 LIMIT %(most)s
"""
AGE: Final = "SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()"
# Of sessions of other users only a superuser sees more than that they are there.
OLD_TRANSACTIONS: Final = """
SELECT extract(epoch FROM now() - xact_start)::float8, coalesce(state, ''), coalesce(application_name, '')
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
   AND xact_start < now() - %(longest)s
 UNION ALL
SELECT extract(epoch FROM now() - prepared)::float8, 'prepared', ''
  FROM pg_prepared_xacts
 WHERE database = current_database() AND prepared < now() - %(longest)s
 ORDER BY 1 DESC
 LIMIT %(most)s
"""
IDLE_SLOTS: Final = """
SELECT slot_name, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint
  FROM pg_replication_slots
 WHERE NOT active AND restart_lsn IS NOT NULL
 ORDER BY 2 DESC
 LIMIT %(most)s
"""
UNARCHIVED: Final = """
SELECT last_failed_wal
  FROM pg_stat_archiver
 WHERE current_setting('archive_mode') <> 'off' AND last_failed_time > coalesce(last_archived_time, '-infinity')
"""
# Of sessions of other users only a superuser sees what they wait for.
UNCONFIRMED: Final = """
SELECT count(*)
  FROM pg_stat_activity
 WHERE wait_event = 'SyncRep' AND state_change < clock_timestamp() - %(longest)s
"""


class Room(msgspec.Struct, frozen=True):
    """How many connections the database and the user may have (None: no limit of their own), and how many are open."""

    of_database: int | None
    of_user: int | None
    open: int


class UntidyTable(msgspec.Struct, frozen=True):
    """A table with rows that nobody sees any more."""

    name: str
    live: int
    dead: int


class OldTransaction(msgspec.Struct, frozen=True):
    """A transaction that has been open for so many seconds; ``state`` is what its session does."""

    seconds: float
    state: str
    application: str


async def be_login(connection: Connection) -> None:
    """Give up the role that the session has taken: a user is told of its own sessions and limits, and of no others."""
    await connection.execute(BE_LOGIN)


async def read_settings(connection: Connection, names: Sequence[str]) -> dict[str, str]:
    """The server's settings of these names, as they are for this session; those that it does not have are left out."""
    cursor = await connection.execute(SETTINGS, (list(names),))
    return dict(await cursor.fetchall())


async def read_clock(connection: Connection) -> datetime:
    """What time the server has."""
    cursor = await connection.execute(CLOCK)
    [(now,)] = await cursor.fetchall()
    assert isinstance(now, datetime)  # noqa: S101  # for the types
    return now


async def read_room(connection: Connection) -> Room:
    """How many connections there may be, and are."""
    cursor = await connection.execute(ROOM)
    [(of_database, of_user, number)] = await cursor.fetchall()
    return Room(of_database if of_database >= 0 else None, of_user if of_user >= 0 else None, number)


async def read_sizes(connection: Connection) -> tuple[int, list[tuple[str, int]]]:
    """The database's size, and its biggest tables with theirs, in bytes; indexes and all included."""
    cursor = await connection.execute(SIZE)
    [(size,)] = await cursor.fetchall()
    cursor = await connection.execute(SIZES, {"most": MOST_LISTED})
    return size, [(name, number) for name, number in await cursor.fetchall()]


async def untidy_tables(connection: Connection, least: int, share: float) -> list[UntidyTable]:
    """Tables with ``least`` dead rows or more, and more than this share of the living ones."""
    cursor = await connection.execute(UNTIDY, {"least": least, "share": share, "most": MOST_LISTED})
    return [UntidyTable(*row) for row in await cursor.fetchall()]


async def read_age(connection: Connection) -> int:
    """How many transactions ago the oldest row was made that has not been frozen."""
    cursor = await connection.execute(AGE)
    [(age,)] = await cursor.fetchall()
    return int(age)


async def old_transactions(connection: Connection, longest: timedelta) -> list[OldTransaction]:
    """Transactions of other sessions that have been open for longer than this, the oldest first."""
    cursor = await connection.execute(OLD_TRANSACTIONS, {"longest": longest, "most": MOST_LISTED})
    return [OldTransaction(*row) for row in await cursor.fetchall()]


async def idle_slots(connection: Connection) -> list[tuple[str, int]]:
    """Replication slots that nobody reads, and how many bytes of the log are kept for each."""
    cursor = await connection.execute(IDLE_SLOTS, {"most": MOST_LISTED})
    return [(name, kept) for name, kept in await cursor.fetchall()]


async def read_unarchived(connection: Connection) -> str | None:
    """The file of the log whose archiving failed, where that was the last try."""
    cursor = await connection.execute(UNARCHIVED)
    return next((name for (name,) in await cursor.fetchall()), None)


async def count_unconfirmed(connection: Connection, longest: timedelta) -> int:
    """Commits that a synchronous standby has not confirmed for longer than this."""
    cursor = await connection.execute(UNCONFIRMED, {"longest": longest})
    [(number,)] = await cursor.fetchall()
    return int(number)
