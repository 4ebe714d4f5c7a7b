"""Questions to the primary and to standbys about replication, and registrations of standbys."""

from typing import Final

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from tenantry.db.connection import Connection
from tenantry.db.roles import TAKE_STATISTICS
from tenantry.db.standby_waits import PREPARE_CHANGE
from tenantry.db.statements import TEXT, Statement
from tenantry.domain.standby_checks import REGISTRATION_SECONDS

_DEFAULT_NAME: Final = "walreceiver"
"""PostgreSQL's, where neither ``application_name`` nor ``cluster_name`` is set."""
_NEEDS_STATISTICS: Final = (
    "the login may not read replication statistics: GRANT pg_read_all_stats to it"
)

# Flushed rather than written: every acknowledged change is, and a standby gets no more than that.
# One statement, because its snapshot is older than the position: changes that were committed before
# a registration are in the log up to there.
_POSITION: Final = Statement(
    """
SELECT own.timeline, (own.lsn - '0/0')::bigint, registered.name, registered.version::text
  FROM (SELECT lsn, ('x' || left(pg_walfile_name(lsn), 8))::bit(32)::bigint AS timeline
          FROM pg_current_wal_flush_lsn() AS lsn) AS own
  LEFT JOIN check_standbys AS registered
         ON registered.timeline = own.timeline AND registered.expires_at IS NOT NULL
"""
)
_RECEIVER: Final = Statement(
    "SELECT conninfo, slot_name, current_setting('cluster_name'), current_database() FROM pg_stat_wal_receiver"
)
_REPLICATING: Final = Statement(
    """
SELECT count(*) FILTER (WHERE application_name = $1),
       $2::text IS NULL OR bool_and(coalesce(slot_name, '') = $2) FILTER (WHERE application_name = $1),
       pg_has_role('pg_read_all_stats', 'USAGE'),
       current_database()
  FROM pg_stat_replication
  LEFT JOIN pg_replication_slots ON active_pid = pid
""",
    TEXT,
    TEXT,
)
# The row is written each time, so that a standby that shows it has this primary's history.
_REGISTER: Final = Statement(
    """
INSERT INTO check_standbys (name, timeline, expires_at)
SELECT $1, ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::bigint,
       clock_timestamp() + $2::interval
ON CONFLICT (name) DO UPDATE
   SET (timeline, expires_at, version) = (EXCLUDED.timeline, EXCLUDED.expires_at, EXCLUDED.version)
""",
    TEXT,
    TEXT,
)
STANDBY_STATE: Final = Statement(
    """
SELECT pg_is_in_recovery(), coalesce(pg_last_wal_replay_lsn() - '0/0', 0)::bigint, pg_postmaster_start_time()
"""
)
"""For a statement of its own before that of the lookup: the fields of `StandbyState`, and when the
server was started. Behind a pooler it may not be the server of before.
"""
REGISTRATION_SHOWN: Final = Statement(
    "SELECT version::text FROM check_standbys WHERE name = $1", TEXT
)
"""The version of a standby's registration, as the standby shows it."""


class UnusableStandbyError(Exception):
    """A standby cannot answer checks; the message has the reason and the next step."""


class StandbyIdentity(msgspec.Struct, frozen=True):
    """What the primary knows a standby by."""

    name: str
    """As ``pg_stat_replication`` shows it."""
    slot: str | None = None
    """The replication slot that the standby uses, empty for none; None if it is not known."""
    database: str | None = None
    """The name of the database that the connection leads to; None if there is none."""


class PrimaryPosition(msgspec.Struct, frozen=True):
    """A primary's timeline, how far its log is flushed, in bytes, and the registrations on this
    timeline: their versions by the names of the standbys.
    """

    timeline: int
    lsn: int
    registrations: dict[str, str]


async def read_position(connection: Connection) -> PrimaryPosition:
    """Return the position of a primary, and commit. Raises `psycopg.OperationalError` for a
    standby.
    """
    [rows] = await connection.run_batch(_POSITION(), commit=True)
    timeline, lsn, _, _ = rows[0]
    registrations = {name: version for _, _, name, version in rows if name is not None}
    return PrimaryPosition(timeline, lsn, registrations)


async def check_replicating(connection: Connection, standby: StandbyIdentity) -> None:
    """Raise `UnusableStandbyError` unless the primary sees this standby, and no other of its name,
    and the connection to the standby leads to the same database; and commit.
    """
    name = standby.name
    _, [[number, is_on_slot, may_see, database]] = await connection.run_batch(
        TAKE_STATISTICS(), _REPLICATING(name, standby.slot), commit=True
    )
    if not may_see:
        raise UnusableStandbyError(f"{_NEEDS_STATISTICS} on the primary")
    if number == 0:
        raise UnusableStandbyError(
            f"the primary has no standby {name!r}: it must replicate from the primary itself"
        )
    if number > 1:
        raise UnusableStandbyError(
            f"the primary has {number} standbys {name!r}: "
            "give each an application_name of its own in primary_conninfo, or a cluster_name"
        )
    if not is_on_slot:
        own = (
            f"does not use the slot {standby.slot!r}"
            if standby.slot
            else "has a slot, this one none"
        )
        raise UnusableStandbyError(
            f"the primary's standby {name!r} {own}: it must replicate from the primary itself"
        )
    if standby.database not in (None, database):
        raise UnusableStandbyError(
            f"its database is {standby.database!r}, that of DATABASE_URL is {database!r}"
        )


async def register_standby(connection: Connection, name: str) -> None:
    """Register a standby, or extend its registration, and commit: for good, because a primary that
    crashes must not forget for whom changes wait.
    """
    lease = f"{REGISTRATION_SECONDS} s"
    await connection.run_batch(PREPARE_CHANGE(), _REGISTER(name, lease), commit=True)


async def read_identity(connection: Connection) -> StandbyIdentity:
    """Return what the primary knows this standby by; ``connection`` is in autocommit mode.

    Raises `UnusableStandbyError`, also for PostgreSQL's default name without a slot: a standby that
    follows another standby would be taken for that one.
    """
    try:
        _, rows = await connection.run_batch(TAKE_STATISTICS(), _RECEIVER())
    except psycopg.errors.UndefinedTable as error:
        raise UnusableStandbyError("it does not show its WAL receiver") from error
    if not rows:
        raise UnusableStandbyError("it is no standby that streams from a primary")
    [[receiver, slot, cluster_name, database]] = rows
    if receiver is None:
        raise UnusableStandbyError(f"{_NEEDS_STATISTICS} (replicated from the primary)")
    name = name_given_in(receiver) or cluster_name or _DEFAULT_NAME
    if name == _DEFAULT_NAME and slot is None:
        raise UnusableStandbyError(
            "it has PostgreSQL's default name, which others may have: set cluster_name on it"
        )
    return StandbyIdentity(name, slot or "", database)


def name_given_in(conninfo: str) -> str | None:
    """Return the ``application_name`` in the ``conninfo`` of a WAL receiver, if there is one.

    PostgreSQL shows all options of its connection there, in a fixed order and without quotes: the
    driver could not tell where a value with spaces ends, and may know fewer options. After a change
    of the timeline it shows ``primary_conninfo``, without the fallback.

    Raises `UnusableStandbyError`.
    """
    before, fallback, _ = conninfo.partition(" fallback_application_name=")
    if fallback:
        return before.partition(" application_name=")[2] or None
    try:
        given = conninfo_to_dict(conninfo).get("application_name")
    except psycopg.ProgrammingError:  # its text may contain a part of the password
        raise UnusableStandbyError("its primary_conninfo has options that are not known") from None
    return None if given is None else str(given)
