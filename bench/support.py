"""A PostgreSQL for benchmarks, with the service's schema, tenants and keys."""

import contextlib
import hashlib
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec
import psycopg
from psycopg import sql

from tenantry.domain import api_keys
from tenantry.domain.permissions import Mode
from tenantry.domain.tenants import Project
from tenantry_devkit.embedded_postgres import EmbeddedServer

TENANTS: Final = 1000
KEYS: Final = 2000
PROJECTS: Final = 20
SECRET: Final = "whsec_bench_0123456789abcdef"  # noqa: S105  # signs events of this run only
PEPPER: Final = "bench-pepper-0123456789abcdef0123456789abcdef"
_OPTIONS: Final = ("shared_buffers=512MB", "max_connections=400")
_DURABLE: Final = ("fsync", "synchronous_commit", "full_page_writes")
_SHOWN: Final = (
    "server_version",
    *_DURABLE,
    "shared_buffers",
    "max_connections",
    "max_wal_size",
    "checkpoint_timeout",
)
_ADD_KEYS: Final = (
    "COPY api_keys (id, org_id, digest, name, scopes, access_level, mode, start, last4, created_at, created_by) "
    "FROM STDIN"
)
_ADD_TENANTS: Final = """
INSERT INTO tenants (id, name, owner_id, owner_email, stripe_customer_id)
SELECT 't' || n, 'Tenant ' || n, 'user' || n, n || '@example.com', 'cus_' || n FROM generate_series(0, %s - 1) AS n
"""
_ADD_PROJECTS: Final = """
INSERT INTO projects (id, org_id, mode, name, created_at, updated_at)
SELECT t.id || '_' || n, t.id, 'live', 'Project ' || n, now() - n * interval '1 minute', now()
  FROM tenants t, generate_series(1, %s) AS n
"""


class Cluster(NamedTuple):
    """A running PostgreSQL."""

    conninfo: str
    """A superuser's connection to the first database."""
    sockets: str
    """The folder of the server's socket."""
    pid: int

    def create(self, database: str) -> str:
        """Create a database; return its URL."""
        self._run(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        return f"postgresql://postgres@/{database}?host={quote(self.sockets, safe='/')}"

    def drop(self, database: str) -> None:
        """Drop a database and end its connections."""
        self._run(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database))
        )

    def checkpoint(self) -> None:
        """Write all dirty pages, so that a run does not pay for earlier writes."""
        self._run(sql.SQL("CHECKPOINT"))

    def settings(self) -> dict[str, str]:
        """Read the settings that affect the results."""
        with psycopg.connect(self.conninfo) as connection:
            query = "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name"
            return dict(connection.execute(query, (list(_SHOWN),)).fetchall())

    def _run(self, statement: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(statement)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start PostgreSQL in a folder. Raises `RuntimeError` if it is not durable."""
    server = EmbeddedServer(folder, options=_OPTIONS)
    server.start()
    try:
        pid = int((folder.resolve() / "postgres" / "postmaster.pid").read_text().split()[0])
        sockets = psycopg.conninfo.conninfo_to_dict(server.conninfo)["host"]
        running = Cluster(server.conninfo, str(sockets), pid)
        settings = running.settings()
        if not all(settings[name] == "on" for name in _DURABLE):
            raise RuntimeError(f"PostgreSQL is not durable: {settings}")
        yield running
    finally:
        server.stop()


def load(conninfo: str) -> list[str]:
    """Store tenants ``t0``, ``t1`` ... with their projects and keys; return the keys' secrets.

    Key ``key_n`` belongs to tenant n modulo `TENANTS` and has the scope ``projects:read``.
    """
    secrets = [
        api_keys.DEFAULT_FORMAT.compose(Mode.LIVE, hashlib.sha256(b"%d" % n).digest())
        for n in range(KEYS)
    ]
    with psycopg.connect(conninfo) as connection:
        connection.execute(_ADD_TENANTS, (TENANTS,))
        connection.execute(
            "INSERT INTO customers (id, tenant_id, linked_by) SELECT stripe_customer_id, id, 'bench' FROM tenants"
        )
        connection.execute(_ADD_PROJECTS, (PROJECTS,))
        _add_keys(
            connection,
            [
                (f"key_{n}", f"t{n % TENANTS}", secret, ["projects:read"], "SCOPED")
                for n, secret in enumerate(secrets)
            ],
        )
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
    return secrets


def create_keys(conninfo: str, tenant: str, count: int) -> dict[str, str]:
    """Create so many keys for a tenant; return the secrets by id."""
    secrets = {
        f"key_{tenant}_{number}": api_keys.DEFAULT_FORMAT.compose(
            Mode.LIVE, hashlib.sha256(b"%d of stock" % number).digest()
        )
        for number in range(count)
    }
    keys = [
        (key_id, tenant, secret, ["projects:read"], "SCOPED") for key_id, secret in secrets.items()
    ]
    with psycopg.connect(conninfo) as connection:
        _add_keys(connection, keys)
    return secrets


def create_owner_keys(conninfo: str, tenants: Sequence[str]) -> list[str]:
    """Create an OWNER key for each of these tenants; return the secrets."""
    secrets = [
        api_keys.DEFAULT_FORMAT.compose(Mode.LIVE, hashlib.sha256(tenant.encode()).digest())
        for tenant in tenants
    ]
    keys = [
        (f"key_owner_{tenant}", tenant, secret, ["*:*"], "OWNER")
        for tenant, secret in zip(tenants, secrets, strict=True)
    ]
    with psycopg.connect(conninfo) as connection:
        _add_keys(connection, keys)
    return secrets


def project_documents() -> list[str]:
    """Compose the JSON of a tenant's projects, as the database does."""
    now = datetime.now(UTC)
    page = [
        Project(f"t1_{n}", "t1", f"Project {n}", None, Mode.LIVE, now, now) for n in range(PROJECTS)
    ]
    return [msgspec.json.encode(project).decode() for project in page]


def free_port() -> int:
    """Find an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _add_keys(
    connection: psycopg.Connection, keys: Sequence[tuple[str, str, str, list[str], str]]
) -> None:
    """Store keys: id, tenant, secret, scopes, access level."""
    with connection.cursor() as cursor, cursor.copy(_ADD_KEYS) as copy:
        for key_id, tenant, secret, scopes, level in keys:
            digest = api_keys.Pepper(PEPPER.encode()).digest(secret.encode())
            shown = api_keys.shown_parts(secret)
            copy.write_row(
                (key_id, tenant, digest, "bench", scopes, level, "live", *shown, "now()", "bench")
            )
