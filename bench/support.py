"""What the benchmarks share: a database with tenants and keys, and server processes on ports of this machine."""

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psycopg

from tenantry.db.migrate import migrate
from tenantry.domain import api_keys
from tenantry.domain.access import Mode
from tenantry_devkit.embedded_postgres import EmbeddedServer
from tests.support.hammer import Connection

TENANTS: Final = 1000
KEYS: Final = 2000
PROJECTS: Final = 20
SECRET: Final = "whsec_bench_0123456789abcdef"  # noqa: S105  # of this run's own database
PEPPER: Final = "bench-pepper-0123456789abcdef0123456789abcdef"
FOLDER: Final = Path(__file__).parent
_PATIENCE: Final = 10.0


def require_wrk() -> None:
    """End with a message where wrk is missing."""
    if shutil.which("wrk") is None:
        sys.exit("bench: wrk is missing; install it with: apt-get install wrk")


@contextlib.contextmanager
def database(folder: Path) -> Iterator[str]:
    """The connection string of a PostgreSQL from the wheel with the service's schema."""
    server = EmbeddedServer(folder, options=("shared_buffers=512MB",))
    server.start()
    try:
        migrate(server.conninfo)
        yield server.conninfo
    finally:
        server.stop()


def load(conninfo: str) -> list[str]:
    """Store the tenants ``t0``, ``t1`` ... with their projects and keys; returns the keys' secrets.

    Key ``key_n`` belongs to tenant n modulo `TENANTS`, and may read projects.
    """
    secrets = [api_keys.compose_secret(Mode.LIVE, hashlib.sha256(b"%d" % n).digest()) for n in range(KEYS)]
    with psycopg.connect(conninfo) as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tenants (id, name, owner_id, owner_email, stripe_customer_id) "
            "SELECT 't' || n, 'Tenant ' || n, 'user' || n, n || '@example.com', 'cus_' || n "
            "FROM generate_series(0, %s - 1) AS n",
            (TENANTS,),
        )
        cursor.execute(
            "INSERT INTO customers (id, tenant_id, linked_by) SELECT stripe_customer_id, id, 'bench' FROM tenants"
        )
        cursor.execute(
            "INSERT INTO projects (id, org_id, mode, name, created_at, updated_at) "
            "SELECT t.id || '_' || n, t.id, 'live', 'Project ' || n, now() - n * interval '1 minute', now() "
            "FROM tenants t, generate_series(1, %s) AS n",
            (PROJECTS,),
        )
        with cursor.copy(
            "COPY api_keys (id, org_id, digest, name, scopes, access_level, mode, start, last4, created_at, "
            "created_by) FROM STDIN"
        ) as copy:
            for number, secret in enumerate(secrets):
                digest = api_keys.digest(secret.encode(), PEPPER.encode())
                copy.write_row(
                    (f"key_{number}", f"t{number % TENANTS}", digest, "bench", ["projects:read"], "SCOPED", "live",
                     *api_keys.shown_parts(secret), "now()", "bench")
                )  # fmt: skip
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
    return secrets


def make_owners(conninfo: str, tenants: Sequence[str]) -> list[str]:
    """Give each of these tenants an OWNER key; returns the secrets."""
    secrets = [api_keys.compose_secret(Mode.LIVE, b"%032d" % number) for number in range(len(tenants))]
    with psycopg.connect(conninfo) as connection:
        for tenant, secret in zip(tenants, secrets, strict=True):
            connection.execute(
                "INSERT INTO api_keys (id, org_id, digest, name, scopes, access_level, mode, start, last4, created_at, "
                "created_by) VALUES (%s, %s, %s, 'owner', '{*:*}', 'OWNER', 'live', %s, %s, now(), 'bench')",
                (
                    f"key_owner_{tenant}", tenant, api_keys.digest(secret.encode(), PEPPER.encode()),
                    *api_keys.shown_parts(secret),
                ),
            )  # fmt: skip
    return secrets


@contextlib.contextmanager
def process(arguments: list[str], port: int, **variables: str) -> Iterator[int]:
    """A Python module that serves on ``port``, with these variables; yields its process id once it answers."""
    running = subprocess.Popen([sys.executable, "-m", *arguments], env={**os.environ, **variables})
    try:
        _await(port)
        yield running.pid
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(30)


def service(port: int, conninfo: str, **variables: str) -> contextlib.AbstractContextManager[int]:
    """The service in one process, with further settings."""
    return process(["tenantry", "serve"], port, **{**settings(port, conninfo), "DRAIN_SECONDS": "0", **variables})


def settings(port: int, conninfo: str) -> dict[str, str]:
    """What the service needs to be told to run on this port and this database."""
    secrets = {"PROVIDER_WEBHOOK_SECRET": SECRET, "API_KEY_PEPPER": PEPPER, "SESSION_SECRET": PEPPER}
    return {"DATABASE_URL": conninfo, "PORT": str(port), **secrets}


async def send_paced(port: int, key: str, pace: Mapping[str, int], seconds: float) -> list[float | None]:
    """Ask for each path so many times a second with this key, each time whatever became of the times before.

    Returns the ms that each answer took; None where it was not a 200. Connections stay open; a request that finds none
    free opens another.
    """
    idle: deque[Connection] = deque()
    started = time.perf_counter()

    async def send(path: str, due: float) -> float | None:
        await asyncio.sleep(started + due - time.perf_counter())
        begun = time.perf_counter()
        connection = idle.popleft() if idle else Connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(_PATIENCE):
                status = await connection.status("GET", path, key)
        except (OSError, EOFError):
            connection.close()
            return None
        idle.append(connection)
        return (time.perf_counter() - begun) * 1000 if status == 200 else None

    took = await asyncio.gather(
        *(send(path, n / rate) for path, rate in pace.items() for n in range(int(seconds * rate)))
    )
    for connection in idle:
        connection.close()
    return took


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await(port: int) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/projects", timeout=1).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit(f"bench: nothing answers on port {port}")
