"""Checks of the database server: whether it keeps what it acknowledges, has room, and can tidy up."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from tenantry.cli.doctor import server_store as store
from tenantry.cli.doctor.finding import Finding, error, ok, warning
from tenantry.cli.doctor.server_store import OldTransaction, Room, UntidyTable
from tenantry.common.clock import Clock
from tenantry.db.connection import Connection

CONNECTIONS: Final = "connections"
DURABILITY: Final = "durability"
CLOCKS: Final = "clock"
SIZE: Final = "size"
UPKEEP: Final = "upkeep"
LARGEST_SKEW: Final = timedelta(seconds=2)
"""By how much the clocks may differ."""
LONGEST_TRANSACTION: Final = timedelta(minutes=5)
LEAST_DEAD: Final = 100_000
DEAD_SHARE: Final = 0.5
OLDEST_ROW: Final = 1_000_000_000
"""Transactions; PostgreSQL stops writing at about two thousand million."""
MOST_KEPT_FOR_SLOT: Final = 1 << 30
LONGEST_CONFIRMATION: Final = timedelta(seconds=2)
"""For which a standby in order lets a commit wait, at most."""

_LOSING: Final = {
    "fsync": "after a crash of the machine the whole database may be unusable",
    "full_page_writes": "after a crash of the machine pages may be torn, and what is in them lost",
    "synchronous_commit": "the last events and revocations before a crash are lost, though they were acknowledged",
}
_ASKED: Final = (
    *_LOSING,
    "autovacuum",
    "in_hot_standby",
    "max_connections",
    "reserved_connections",
    "server_encoding",
    "superuser_reserved_connections",
    "transaction_read_only",
)
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
_UNIT: Final = 1024


def server_checks(
    connection: Connection, needed: int | None, clock: Clock | None
) -> dict[str, Callable[[], Awaitable[list[Finding]]]]:
    """The checks, by subject. ``needed`` is how many connections the set-up may open; ``clock`` is this machine's."""
    checks: dict[str, Callable[[], Awaitable[list[Finding]]]] = {
        DURABILITY: partial(_check_settings, connection),
        UPKEEP: partial(_check_upkeep, connection),
        SIZE: partial(_check_size, connection),
    }
    if needed is not None:
        checks[CONNECTIONS] = partial(_check_connections, connection, needed)
    if clock is not None:
        checks[CLOCKS] = partial(_check_clock, connection, clock)
    return checks


async def _check_settings(connection: Connection) -> list[Finding]:
    settings = await store.read_settings(connection, _ASKED)
    unconfirmed = await store.count_unconfirmed(connection, LONGEST_CONFIRMATION)
    return [*judge_writing(settings), *judge_unconfirmed(unconfirmed), *judge_durability(settings)]


async def _check_connections(connection: Connection, needed: int) -> list[Finding]:
    settings = await store.read_settings(connection, _ASKED)
    return [judge_room(settings, await store.read_room(connection), needed)]


async def _check_clock(connection: Connection, clock: Clock) -> list[Finding]:
    before = clock()
    theirs = await store.read_clock(connection)
    return [judge_clock(before, theirs, clock())]


async def _check_size(connection: Connection) -> list[Finding]:
    return [judge_size(*await store.read_sizes(connection))]


async def _check_upkeep(connection: Connection) -> list[Finding]:
    settings = await store.read_settings(connection, _ASKED)
    found = [
        *judge_autovacuum(settings),
        *judge_untidy(await store.untidy_tables(connection, LEAST_DEAD, DEAD_SHARE)),
        *judge_age(await store.read_age(connection)),
        *judge_transactions(await store.old_transactions(connection, LONGEST_TRANSACTION)),
    ]
    if settings.get("transaction_read_only") != "on":
        found += judge_slots(await store.idle_slots(connection))
        found += judge_archive(await store.read_unarchived(connection))
    return found or [ok(UPKEEP, "nothing keeps the database from tidying up")]


def judge_writing(settings: Mapping[str, str]) -> list[Finding]:
    """Whether the database takes what we write, and in which letters."""
    found = []
    if settings.get("transaction_read_only") == "on" and settings.get("in_hot_standby") != "on":
        found.append(
            error(
                "database",
                "is read-only",
                "Find out who has set default_transaction_read_only: providers of databases do where a disk is nearly "
                "full.",
                why="Nothing can be written: every change is answered 503 or 500.",
            )
        )
    encoding = settings.get("server_encoding", "UTF8")
    if encoding != "UTF8":
        found.append(
            error(
                "database",
                f"has the encoding {encoding}",
                "Make a database with ENCODING 'UTF8' TEMPLATE template0, and move the data there.",
                why="Names and events with other letters than its own are refused.",
            )
        )
    return found


def judge_unconfirmed(number: int) -> list[Finding]:
    """Commits that wait for a synchronous standby."""
    if not number:
        return []
    return [
        error(
            DURABILITY,
            f"commits wait for a synchronous standby, {number} now",
            "Bring the standby back. Or, if a failover may lose commits from now on: ALTER SYSTEM SET "
            "synchronous_standby_names = ''; SELECT pg_reload_conf(); and set it again once the standby has caught up.",
            why="Nothing is acknowledged without it: every change is answered 503, and waits hold connections.",
        )
    ]


def judge_durability(settings: Mapping[str, str]) -> list[Finding]:
    """Settings by which what was acknowledged may be lost."""
    found = [
        warning(DURABILITY, f"{name} is off", f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();", why=f"{why}.")
        for name, why in ((name, why[0].upper() + why[1:]) for name, why in _LOSING.items())
        if settings.get(name) == "off"
    ]
    return found or [ok(DURABILITY, "what is acknowledged is on the disk")]


def judge_room(settings: Mapping[str, str], room: Room, needed: int) -> Finding:
    """Whether so many connections can be opened."""
    reserved = sum(int(settings.get(name, 0)) for name in ("superuser_reserved_connections", "reserved_connections"))
    limits = {
        "max_connections, less those reserved": int(settings["max_connections"]) - reserved,
        "the limit of the database": room.of_database,
        "the limit of the user": room.of_user,
    }
    what, most = min(((what, limit) for what, limit in limits.items() if limit is not None), key=lambda found: found[1])
    told = f"up to {needed} needed by this set-up, {room.open} open now, {most} to be had ({what})"
    if needed <= most:
        return ok(CONNECTIONS, told)
    return warning(
        CONNECTIONS,
        told,
        "Raise max_connections (PostgreSQL restarts for it) or the limit named, lower WORKERS or DATABASE_POOL_SIZE, "
        "or put a pooler in between (DATABASE_POOLER_URL). Count each instance and each `tenantry worker`.",
        why="When much is to be done, processes get no connection, and answer 503.",
    )


def judge_clock(before: datetime, theirs: datetime, after: datetime) -> Finding:
    """Whether the database's clock, asked between two looks at ours, goes with ours."""
    skew = max(before - theirs, theirs - after, timedelta())
    if skew <= LARGEST_SKEW:
        return ok(CLOCKS, "this machine's and the database's go together")
    ahead = "ahead of" if theirs > after else "behind"
    return warning(
        CLOCKS,
        f"the database's is {skew.total_seconds():.0f} s {ahead} this machine's",
        "Let both machines follow a time server (timedatectl set-ntp true).",
        why="Signatures, tokens and keys are judged by this machine's clock, jobs and counts of requests by the "
        "database's: mail leaves late, or good signatures are refused as too old.",
    )


def judge_size(size: int, tables: Sequence[tuple[str, int]]) -> Finding:
    """How big it is, and what of."""
    listed = ", ".join(f"{name} {in_units(number)}" for name, number in tables)
    return ok(SIZE, f"{in_units(size)}; biggest: {listed or 'no table'}")


def judge_autovacuum(settings: Mapping[str, str]) -> list[Finding]:
    """Whether the server tidies up by itself."""
    if settings.get("autovacuum") != "off":
        return []
    return [
        warning(
            UPKEEP,
            "autovacuum is off",
            "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf();",
            why="Tables grow with every change, queries slow down, and in the end PostgreSQL stops writing.",
        )
    ]


def judge_untidy(tables: Sequence[UntidyTable]) -> list[Finding]:
    """Tables that are mostly rows which nobody sees any more."""
    return [
        warning(
            UPKEEP,
            f"the table {table.name} has {table.dead} dead rows beside {table.live} living ones",
            f"VACUUM (ANALYZE) {table.name}; then see what kept autovacuum from it: an old transaction, its settings.",
            why="Each query reads past them.",
        )
        for table in tables
    ]


def judge_age(age: int) -> list[Finding]:
    """Whether transaction numbers are being used up."""
    if age < OLDEST_ROW:
        return []
    return [
        warning(
            UPKEEP,
            f"the oldest rows were made {age} transactions ago, and were never frozen",
            "VACUUM (FREEZE), as the owner; end old transactions, and drop replication slots that nobody reads.",
            why="At about 2,000,000,000 PostgreSQL stops writing.",
        )
    ]


def judge_transactions(transactions: Sequence[OldTransaction]) -> list[Finding]:
    """Transactions that have been open for long."""
    if not transactions:
        return []
    oldest = transactions[0]
    who = f" of {oldest.application}" if oldest.application else ""
    return [
        warning(
            UPKEEP,
            f"a transaction{who} has been open for {oldest.seconds / 60:.0f} min ({oldest.state or 'state not known'})",
            "Commit it or end it: pg_stat_activity, or pg_prepared_xacts for a prepared one, has it by its age; "
            "pg_terminate_backend(pid), or ROLLBACK PREPARED.",
            why="It may hold locks that requests wait for, and no dead row can be removed while it lasts.",
        )
    ]


def judge_slots(slots: Sequence[tuple[str, int]]) -> list[Finding]:
    """Replication slots that keep the log for nobody."""
    return [
        warning(
            UPKEEP,
            f"the replication slot {name} is read by nobody, and {in_units(kept)} of the log are kept for it",
            f"Start what reads it, or SELECT pg_drop_replication_slot('{name}').",
            why="The log grows until the disk is full, and then PostgreSQL stops.",
        )
        for name, kept in slots
        if kept >= MOST_KEPT_FOR_SLOT
    ]


def judge_archive(unarchived: str | None) -> list[Finding]:
    """A log that cannot be archived."""
    if unarchived is None:
        return []
    return [
        warning(
            UPKEEP,
            f"the archiving of the log fails at {unarchived}",
            "PostgreSQL's log says why; mend archive_command or its target. Delete nothing below pg_wal.",
            why="No restore leads past that file, and the log grows until the disk is full; then PostgreSQL stops.",
        )
    ]


def judge_disk(free: int, total: int) -> Finding:
    """Whether the disk of the embedded database has room: a tenth of it."""
    told = f"{in_units(free)} of {in_units(total)} free"
    if free >= total // 10:
        return ok("disk", told)
    return warning(
        "disk",
        told,
        "Make room, or move TENANTRY_DATA_DIR to a larger disk while nothing runs.",
        why="When the disk is full PostgreSQL stops.",
    )


def in_units(number: int) -> str:
    """A number of bytes for people."""
    size, unit = float(number), 0
    while size >= _UNIT and unit < len(_UNITS) - 1:
        size, unit = size / _UNIT, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
