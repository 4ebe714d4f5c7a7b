"""Replay over a large ledger: events a second, peak memory, and what is found on it undamaged and damaged.

The ledger is filled by the service's own path, in batches, late events and ties included; the replay is the command
that operators run, in a process of its own. PostgreSQL comes from the wheel with its usual durability.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import psycopg

from tenantry.billing.ingest import WebhookService
from tenantry.db.connection import Connection
from tenantry.db.database import Database
from tenantry.db.migrate import migrate
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import Arrival, Question
from tenantry.settings import load_for_admin
from tenantry_devkit.embedded_postgres import EmbeddedServer

TENANTS: Final = 1000
LONGEST: Final = 20_000
"""Events of the one tenant that has the longest history."""
SIZES: Final = (10_000, 100_000)
BATCH: Final = 256
DAMAGED: Final = 50
BEGIN: Final = 1_700_000_000
ROUNDS: Final = 3
DIFFERENCES: Final = 3


class Run(NamedTuple):
    """One replay: its report and the most memory that its process had."""

    report: dict[str, Any]
    peak_mib: float


class NothingLeaves:
    """Mails and questions are no part of this."""

    async def defer_mail(
        self, _connection: Connection, _ids: Sequence[UUID], _traces: Mapping[UUID, str] | None = None, /
    ) -> None:
        """Drop them."""

    async def defer_questions(
        self, _connection: Connection, _questions: Sequence[Question], _traces: Mapping[str, str] | None = None, /
    ) -> None:
        """Drop them."""


def main() -> None:
    """Fill the ledger step by step and replay it at each size; then damage it, and replay again."""
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as folder:
        server = EmbeddedServer(Path(folder), options=("shared_buffers=512MB",))
        server.start()
        try:
            migrate(server.conninfo)
            _measure(server.conninfo)
        finally:
            server.stop()


def _measure(conninfo: str) -> None:
    _make_tenants(conninfo)
    ledger, filled = _events(), 0
    print(f"{TENANTS} tenants, the longest history a fifth of the ledger; medians of {ROUNDS} rounds")
    print(f"{'ledger':>10} {'filled/s':>10} {'folded/s':>10} {'peak MiB':>10} {'differing':>10}")
    for size in SIZES:
        begun = time.perf_counter()
        asyncio.run(_fill(conninfo, islice(ledger, size - filled)))
        rate = (size - filled) / (time.perf_counter() - begun)
        filled = size
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        runs = sorted((_replay(conninfo, "--dry-run") for _ in range(ROUNDS)), key=lambda run: run.report["seconds"])
        middle = runs[len(runs) // 2]
        assert middle.report["events"] == size
        folded = size / middle.report["seconds"]
        print(f"{size:10,} {rate:10,.0f} {folded:10,.0f} {middle.peak_mib:10.0f} {middle.report['differing']:10}")
    _damage(conninfo)
    for what, options in (("damaged", ["--dry-run"]), ("repaired", []), ("afterwards", ["--dry-run"])):
        report = _replay(conninfo, *options).report
        print(f"{what}: {report['differing']} of {DAMAGED} damaged tenants differ, {report['repaired']} repaired")


def _make_tenants(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute(
            "INSERT INTO tenants (id, name, owner_id, owner_email, stripe_customer_id) "
            "SELECT 't' || n, 'Tenant ' || n, 'user' || n, n || '@example.com', 'cus_' || n "
            "FROM generate_series(0, %s - 1) AS n",
            (TENANTS,),
        )
        connection.execute(
            "INSERT INTO customers (id, tenant_id, linked_by) SELECT stripe_customer_id, id, 'bench' FROM tenants"
        )


def _events() -> Iterator[BillingEvent]:
    """Every fifth event is of tenant 0, in order; of the others some come late, and some share a second."""
    chance = random.Random(1)  # noqa: S311  # no secret is made of it
    for number in range(max(SIZES)):
        longest = number % (max(SIZES) // LONGEST) == 0
        tenant = 0 if longest else chance.randrange(1, TENANTS)
        late = 0 if longest else chance.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 5000))
        kind = chance.choice(
            (ev.SUBSCRIPTION_UPDATED,) * 6 + (ev.SUBSCRIPTION_DELETED, ev.PAYMENT_FAILED, ev.PAYMENT_SUCCEEDED)
        )
        facts: dict[str, Any] = {"customer_id": f"cus_{tenant}", "livemode": True}
        if kind in ev.SUBSCRIPTION_TYPES:
            facts |= {
                "org_id": f"t{tenant}", "subscription_id": f"sub_{tenant}", "subscription_created": BEGIN,
                "status": chance.choice(("active", "trialing", "past_due")),
                "price_id": chance.choice(("price_pro", "price_business")),
                "current_period_end": BEGIN + chance.randrange(10**7), "cancel_at_period_end": chance.random() < 0.1,
                "previous": chance.choice((None, {"status": "active"})),
            }  # fmt: skip
        else:
            facts |= {"invoice_id": f"in_{tenant}_{number // 5000}"}
        yield BillingEvent(id=f"evt_{number:08}", type=kind, created=BEGIN + number // 2 - late, **facts)


async def _fill(conninfo: str, ledger: Iterator[BillingEvent]) -> None:
    settings = load_for_admin({}, needs_pepper=False)
    database = Database(conninfo, pool_size=1)
    await database.open()
    service = WebhookService([database.lane()], settings.billing, NothingLeaves(), lambda: datetime.now(UTC))
    while batch := [Arrival(event, datetime.now(UTC)) for event in islice(ledger, BATCH)]:
        assert not any(isinstance(receipt, Exception) for receipt in await service.apply(batch))
    await service.close()
    await database.close()


def _damage(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute(
            "UPDATE tenants SET plan = 'gold', tip_created = tip_created - 1 "
            "WHERE id IN (SELECT id FROM tenants ORDER BY md5(id) LIMIT %s)",
            (DAMAGED,),
        )


def _replay(conninfo: str, *options: str) -> Run:
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tenantry", "events", "replay", "--json", *options],
            env={**os.environ, "DATABASE_URL": conninfo},
            stdout=out,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, DIFFERENCES):
            sys.exit(f"bench: the replay ended with {process.returncode}")
        out.seek(0)
        return Run(json.load(out), usage.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
