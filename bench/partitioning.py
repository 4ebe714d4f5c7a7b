"""Partition a large ledger under load, and measure what partitions cost: ``python -m
bench.partitioning``.

Needs Debian's ``wrk`` and 1.2 GB of disk for each million rows. First the throughput of events with
ledgers of different numbers of monthly partitions, in turn; then the scripts of
examples/partitioning on a ledger of ``--rows`` rows while clients send events.
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import psycopg
from psycopg import sql

from bench import events, ours
from bench.case import BenchCase
from bench.contestant import Dataset, Job
from bench.faults.client import OK, LoadClient
from bench.support import TENANTS, Cluster, cluster
from tests.support.postgres import partition_ledger

_CLIENTS: Final = 16
_PAUSE: Final = 0.03
"""Mean of seconds between two events of a client."""
_QUIET: Final = 10.0
"""Seconds of load before and after the migration."""
_CHUNK: Final = 1_000_000
_YEAR: Final = 365 * 24 * 3600
_STATE: Final = """
{"plan":"pro","subscription_status":"active","provider_status":"active","cancel_at_period_end":false,
"current_period_end":1900000000,"subscription_id":"sub_1","subscription_created":1735689600}
""".strip().replace("\n", "")
_ROWS: Final = """
INSERT INTO billing_events (id, arrival, type, created, received_at, livemode, api_version, org_id, customer_id,
       subscription_id, subscription_created, status, price_id, current_period_end, cancel_at_period_end, previous,
       tenant_id, outcome, reason, before, after)
SELECT 'evt_1' || lpad(to_hex(created), 8, '0') || left(md5(n::text), 15), n, 'customer.subscription.updated',
       created, to_timestamp(created), true, '2025-03-31.basil', tenant, 'cus_' || tenant, 'sub_' || tenant, 1735689600,
       'active', 'price_pro', created + 2592000, false, '{{}}', tenant, 'applied',
       'The subscription is active: price price_pro means plan pro.', {state}, {state}
  FROM (SELECT n, 'old' || hashint8(n) % 1000000 AS tenant, {first} + n * {year} / {rows} AS created
          FROM generate_series({start}::bigint, {end}::bigint) AS n) AS numbered
"""
_ADD_TENANTS: Final = """
WITH added AS (INSERT INTO tenants (id, name, owner_id, owner_email)
               SELECT 't' || n, 'Tenant ' || n, 'user' || n, n || '@example.com'
                 FROM generate_series(%(first)s::int, %(last)s::int) AS n
               RETURNING id)
INSERT INTO customers (id, tenant_id, linked_by) SELECT replace(id, 't', 'cus_'), id, 'bench' FROM added
"""
_SIZE: Final = "SELECT pg_total_relation_size(%s::regclass) / 1e9"


class Sent(NamedTuple):
    """An event's answer: when it came, on the monotonic clock, its status, and how long it took in
    seconds.
    """

    at: float
    status: int
    took: float


def main() -> None:
    """Measure and print."""
    options = _arguments()
    with (
        tempfile.TemporaryDirectory(prefix="tenantry-bench-") as name,
        cluster(Path(name) / "database") as postgres,
    ):
        if options.months:
            _compare(postgres, Path(name), options)
        if options.rows:
            with _loaded(postgres, Path(name), options.rows) as case:
                _migrate(postgres, case, options)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.partitioning")
    parser.add_argument(
        "--rows", type=int, default=20_000_000, help="rows of the large ledger; 0 for none"
    )
    parser.add_argument(
        "--months", nargs="*", type=int, default=[0, 1, 12, 24, 60], help="0 is without partitions"
    )
    parser.add_argument("--connections", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--seconds", type=int, default=3, help="length of each run")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def _compare(postgres: Cluster, folder: Path, options: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        cases = [
            stack.enter_context(_started(postgres, folder, f"months{months}"))
            for months in options.months
        ]
        for case, months in zip(cases, options.months, strict=True):
            if months:
                _partition(case, months)
        _measure(postgres, cases, options)


@contextlib.contextmanager
def _started(postgres: Cluster, folder: Path, name: str) -> Iterator[BenchCase]:
    """Start a service with a separate database."""
    case = BenchCase(ours.Tenantry(name, "the service", (Job.WEBHOOK,)), Job.WEBHOOK, 1)
    (folder / name).mkdir()
    try:
        case.start(postgres, name, folder / name)
        case.check()
        case.warm_up(postgres, 64, 2)
        yield case
    finally:
        case.stop()


def _measure(postgres: Cluster, cases: Sequence[BenchCase], options: argparse.Namespace) -> None:
    for connections in options.connections:
        for case in cases:
            case.figures.pop(connections, None)
        for _ in range(options.rounds):
            for case in cases:
                case.measure(postgres, connections, options.seconds)
        usual = statistics.median(figure.per_second for figure in cases[0].figures[connections])
        for case in cases:
            figures = case.figures[connections]
            rate = statistics.median(figure.per_second for figure in figures)
            server, database = (
                statistics.median(getattr(figure, name) for figure in figures)
                for name in ("server_us", "database_us")
            )
            print(
                f"{connections:3} connections, {case.contestant.name}: {rate:,.0f} events/s, {rate / usual:.2f}; "
                f"service {server:.0f} us, database {database:.0f} us, "
                f"p99 {statistics.median(figure.p99_ms for figure in figures):.1f} ms",
                flush=True,
            )


def _first_month() -> datetime:
    return (
        datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        + timedelta(days=32)
    ).replace(day=1)


def _partition(case: BenchCase, months: int) -> None:
    first = _first_month()
    partition_ledger(_conninfo(case), first=first, until=first + timedelta(days=30.5 * months))


def _conninfo(case: BenchCase) -> str:
    return case.started[0].conninfo


@contextlib.contextmanager
def _loaded(postgres: Cluster, folder: Path, rows: int) -> Iterator[BenchCase]:
    """Start a service with a ledger of so many events of the last year, of a million other
    tenants.
    """
    with (
        _started(postgres, folder, "large") as case,
        psycopg.connect(_conninfo(case), autocommit=True) as connection,
    ):
        began = time.monotonic()
        first = int(time.time()) - _YEAR - 8 * 24 * 3600
        names = {"state": _STATE, "first": first, "year": _YEAR, "rows": rows}
        for start in range(1, rows + 1, _CHUNK):
            values = {**names, "start": start, "end": min(start + _CHUNK - 1, rows)}
            connection.execute(
                sql.SQL(_ROWS).format(
                    **{name: sql.Literal(value) for name, value in values.items()}
                )
            )
        connection.execute("SELECT setval('billing_arrivals', %s)", (rows + 1,))
        loaded = time.monotonic()
        connection.execute("VACUUM (ANALYZE) billing_events")
        [[size]] = connection.execute(_SIZE, ("billing_events",))
        print(
            f"\n{rows:,} rows loaded in {loaded - began:.0f} s, {size:.1f} GB with indexes; "
            f"first vacuum {time.monotonic() - loaded:.0f} s",
            flush=True,
        )
        yield case


def _migrate(postgres: Cluster, case: BenchCase, options: argparse.Namespace) -> None:
    print("before the migration")
    _measure(postgres, [case], options)
    asyncio.run(_migrate_under_load(case))
    print("after the migration")
    _measure(postgres, [case], options)


async def _migrate_under_load(case: BenchCase) -> None:
    data, server = case.started
    sent: list[Sent] = []
    # their events would make the other events late
    with psycopg.connect(data.conninfo) as connection:
        connection.execute(_ADD_TENANTS, {"first": TENANTS, "last": TENANTS + _CLIENTS - 1})
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_send(number, data, server.port, server.path, sent))
            for number in range(_CLIENTS)
        ]
        await asyncio.sleep(_QUIET)
        began = time.monotonic()
        await asyncio.to_thread(_partition, case, 24)
        ended = time.monotonic()
        await asyncio.sleep(_QUIET)
        for task in tasks:
            task.cancel()
    print(f"migration to 26 partitions: {ended - began:.1f} s")
    for name, since, until in (
        ("before", 0.0, began),
        ("during", began, ended),
        ("after", ended, ended + _QUIET),
    ):
        part = [each for each in sent if since <= each.at < until]
        took = sorted(each.took for each in part)
        print(
            f"  {name}: {len(part):,} events, statuses {dict(Counter(each.status for each in part))}, "
            f"p50 {1000 * took[len(took) // 2]:.1f} ms, p99 {1000 * took[len(took) * 99 // 100]:.1f} ms, "
            f"longest {1000 * took[-1]:.0f} ms, longest time without a 200 {1000 * _longest_gap(part):.0f} ms",
            flush=True,
        )
    with psycopg.connect(data.conninfo) as connection:
        [[stored]] = connection.execute(
            "SELECT count(*) FROM billing_events WHERE id LIKE 'evt_load_%'"
        )
    print(f"  {sum(each.status == OK for each in sent):,} events acknowledged, {stored:,} stored")


def _longest_gap(sent: Sequence[Sent]) -> float:
    accepted = [each.at for each in sent if each.status == OK]
    return max(later - earlier for earlier, later in itertools.pairwise(accepted))


async def _send(number: int, data: Dataset, port: int, path: str, sent: list[Sent]) -> None:
    chance = random.Random(number)  # noqa: S311  # no secret
    with contextlib.closing(LoadClient([port], chance)) as client:
        while True:
            await asyncio.sleep(chance.expovariate(1 / _PAUSE))
            body = events.compose(
                TENANTS + number, f"evt_load_{number}_{len(sent)}", int(time.time())
            )
            began = time.monotonic()
            answer = await client.send(
                "POST", path, f"Stripe-Signature: {events.sign(body, data.secret)}", body
            )
            sent.append(Sent(time.monotonic(), answer.status, time.monotonic() - began))


if __name__ == "__main__":
    main()
