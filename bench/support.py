"""A PostgreSQL for benchmarks, with the service's schema, tenants and keys."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import psycopg
from psycopg import sql

from tenantry.domain import api_keys
from tenantry.domain.permissions import Mode
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
_ADD_CUSTOMERS: Final = """
INSERT INTO customers (id, tenant_id, linked_by) SELECT stripe_customer_id, id, 'bench' FROM tenants
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
    with psycopg.connect(conninfo) as connection:
        connection.execute(_ADD_TENANTS, (TENANTS,))
        connection.execute(_ADD_CUSTOMERS)
        connection.execute(_ADD_PROJECTS, (PROJECTS,))
    secrets = create_keys(conninfo, {f"key_{n}": f"t{n % TENANTS}" for n in range(KEYS)})
    vacuum(conninfo)
    return list(secrets.values())


def create_keys(
    conninfo: str, tenants: Mapping[str, str], *, are_owners: bool = False
) -> dict[str, str]:
    """Create keys by id, each for its tenant; return their secrets by id.

    A key has the scope ``projects:read``, or is an OWNER key.
    """
    scopes, level = (["*:*"], "OWNER") if are_owners else (["projects:read"], "SCOPED")
    pepper = api_keys.Pepper(PEPPER.encode())
    secrets = {
        key_id: api_keys.DEFAULT_FORMAT.compose(Mode.LIVE, hashlib.sha256(key_id.encode()).digest())
        for key_id in tenants
    }
    with (
        psycopg.connect(conninfo) as connection,
        connection.cursor() as cursor,
        cursor.copy(_ADD_KEYS) as copy,
    ):
        for key_id, secret in secrets.items():
            digest, shown = pepper.digest(secret.encode()), api_keys.shown_parts(secret)
            row = (key_id, tenants[key_id], digest, "bench", scopes, level, "live", *shown)
            copy.write_row((*row, "now()", "bench"))
    return secrets


def vacuum(conninfo: str) -> None:
    """Vacuum and analyze a database."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
