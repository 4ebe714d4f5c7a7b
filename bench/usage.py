"""Measure reading and writing of usage: ``python -m bench.usage``.

Fills the tables with 3.4 million hours, of 2,240 keys in 90 days, and the days of 400 days; reads
what the dashboard's pages read, and shows how PostgreSQL does it. ``--minutes 10`` lets four
processes write the same rows for so long, each in another order, and counts the deadlocks.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from msgspec.structs import replace

from tenantry.auth.usage import UsageService
from tenantry.auth.usage_counting import UsageCounter
from tenantry.auth.usage_store import read_statement
from tenantry.common.clock import system_clock
from tenantry.db.connection import Connection
from tenantry.db.database import Database
from tenantry.domain.usage import (
    MOST_COUNTS,
    RequestOutcome,
    UsageInterval,
    UsageQuery,
    usage_query,
)
from tests.support.postgres import running_server
from tests.support.principals import make_principal

_NOW: Final = datetime(2026, 11, 27, 18, 41, tzinfo=UTC)
_BUSY_KEYS: Final = 1000
"""Of the tenant acme, whose pages are read; each sends requests in one hour of three."""
_PAGE: Final = 50
_TIMES: Final = 50
_WRITERS: Final = 4
_ROWS: Final = 600
_ADD_TENANTS: Final = """
INSERT INTO tenants (id, name, owner_id, owner_email)
SELECT id, id, 'user', 'owner@x.example'
  FROM unnest(ARRAY['acme'] || ARRAY(SELECT 'org-' || n FROM generate_series(1, 40) n)) AS id
"""
_KEY: Final = "'key_01975c3a51c2a1b3c5d7e9f1' || lpad(n::text, 8, '0')"
_ADD_HOURS: Final = f"""
INSERT INTO usage_hours (org_id, key_id, hour, outcome, number)
SELECT CASE WHEN n <= {_BUSY_KEYS} THEN 'acme' ELSE 'org-' || n %% 40 + 1 END, {_KEY}, hour, 'accepted', 100
  FROM generate_series(%(first)s, %(now)s, interval '1 hour') AS hour
 CROSS JOIN generate_series(1, 2240) AS n
 WHERE n > {_BUSY_KEYS} OR (n + extract(hour FROM hour)::int) %% 3 = 0
"""  # noqa: S608  # our own text
_ADD_DAYS: Final = f"""
INSERT INTO usage_days (org_id, key_id, day, outcome, number)
SELECT CASE WHEN n <= {_BUSY_KEYS} THEN 'acme' ELSE 'org-' || n %% 40 + 1 END, {_KEY}, day, outcome, 100
  FROM generate_series(%(first)s, %(now)s, interval '1 day') AS day
 CROSS JOIN generate_series(1, 2240) AS n
 CROSS JOIN unnest(CASE WHEN n %% 10 = 0 THEN ARRAY['accepted', 'rate_limited', 'forbidden']
                   ELSE ARRAY['accepted'] END) AS outcome
"""  # noqa: S608  # our own text


class _Page(NamedTuple):
    """What a page reads, and the query below it."""

    name: str
    read: Callable[[UsageService], Awaitable[object]]
    query: UsageQuery


def _pages() -> list[_Page]:
    owner = make_principal(owner=True)
    keys = tuple(f"key_01975c3a51c2a1b3c5d7e9f1{n:08}" for n in range(10, 10 + _PAGE))
    hours = usage_query(UsageInterval.HOUR, None, None, _NOW, org_id="acme")
    days = usage_query(UsageInterval.DAY, None, None, _NOW, org_id="acme")
    hours_of_all = replace(hours, by_key=True)
    days_of_all = replace(days, by_key=True)
    return [
        _Page("the tenant by hour, 24 h", lambda service: service.recent_hours(owner), hours),
        _Page(
            f"{_PAGE} keys by day, 30 days",
            lambda service: service.days_of_keys(owner, keys),
            replace(days, by_key=True, key_ids=keys),
        ),
        _Page(
            "a key by day and outcome, 30 days",
            lambda service: service.outcomes_of_key(owner, keys[0]),
            replace(days, by_outcome=True, key_ids=keys[:1]),
        ),
        _Page(
            "all 1,000 keys by hour, 24 h",
            lambda service: service.read(owner, hours_of_all),
            hours_of_all,
        ),
        _Page(
            "all 1,000 keys by day, 30 days",
            lambda service: service.read(owner, days_of_all),
            days_of_all,
        ),
    ]


async def _fill(connection: Connection) -> None:
    await connection.execute(_ADD_TENANTS)
    for statement, interval in ((_ADD_HOURS, UsageInterval.HOUR), (_ADD_DAYS, UsageInterval.DAY)):
        first = interval.begin(_NOW - interval.kept)
        await connection.execute(statement.encode(), {"first": first, "now": _NOW})
    for table in ("usage_hours", "usage_days"):
        await connection.execute(f"VACUUM ANALYZE {table}".encode())
        number = await connection.fetch_value(f"SELECT count(*) FROM {table}")  # noqa: S608
        size = await connection.fetch_value(
            "SELECT pg_size_pretty(pg_total_relation_size(%s))", (table,)
        )
        print(f"{table}: {number:,} rows, {size} with indexes")


async def _read(connection: Connection, database: Database) -> None:
    service = UsageService(database, lambda: _NOW)
    for page in _pages():
        await page.read(service)
        took = sorted([await _milliseconds(page.read(service)) for _ in range(_TIMES)])
        print(f"\n{page.name}: median {statistics.median(took):.1f} ms, least {took[0]:.1f} ms")
        statement, values = read_statement(page.query, MOST_COUNTS)
        for line in await connection.fetch_column(
            f"EXPLAIN (ANALYZE, COSTS OFF) {statement}", values
        ):
            if "Scan" in line or "Heap Fetches" in line:
                print(f"  {line.strip()}")


async def _milliseconds(reading: Awaitable[object]) -> float:
    began = time.perf_counter()
    await reading
    return (time.perf_counter() - began) * 1000


async def _write(conninfo: str, seed: int, minutes: float) -> int:
    """Write the same rows as the others until the time is over; return how often."""
    order = random.Random(seed)  # noqa: S311  # the same orders for the same seed
    keys = [f"key_{number:04}" for number in range(_ROWS)]
    database = Database(conninfo, pool_size=1)
    await database.open()
    counter = UsageCounter(database, system_clock)
    until = time.monotonic() + minutes * 60
    writes = 0
    while time.monotonic() < until:
        order.shuffle(keys)
        for key_id in keys:
            counter.count(("acme", key_id), RequestOutcome.ACCEPTED)
        await counter.write()
        writes += 1
    await counter.close()
    await database.close()
    return writes


async def _write_all(connection: Connection, conninfo: str, minutes: float) -> None:
    writes = await asyncio.gather(*(_write(conninfo, seed, minutes) for seed in range(_WRITERS)))
    counted = await connection.fetch_count(
        "SELECT sum(number)::bigint FROM usage_days WHERE org_id = 'acme' AND key_id LIKE 'key_0___'"
    )
    deadlocks = await connection.fetch_count(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    print(f"\n{_WRITERS} writers, {minutes:g} minutes: {sum(writes):,} writes of {_ROWS} rows")
    print(f"  requests not counted: {sum(writes) * _ROWS - counted}, deadlocks: {deadlocks}")


async def _measure(minutes: float) -> None:
    with running_server() as server, server.database() as conninfo:
        async with await Connection.connect(conninfo, autocommit=True) as connection:
            database = Database(conninfo, pool_size=1)
            await database.open()
            await _fill(connection)
            await _read(connection, database)
            if minutes:
                await _write_all(connection, conninfo, minutes)
            await database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=0, help="let four processes write so long")
    asyncio.run(_measure(parser.parse_args().minutes))


if __name__ == "__main__":
    main()
