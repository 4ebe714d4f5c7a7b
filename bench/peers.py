"""What teams use today for the same jobs: each is an app in a folder of `bench/baselines`."""

import base64
import contextlib
import hashlib
import json
import os
import shutil
import string
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import httpx2
import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Jsonb

from bench.contestant import Contestant, Dataset, Job, Server, execute, read_value
from bench.events import BEGIN
from bench.serving import StartError, serving
from bench.support import KEYS, PROJECTS, SECRET, TENANTS, vacuum
from tests.support.ports import free_port

POOL_SIZE: Final = 20
"""Connections of all processes of one server on Node together."""
_FOLDER: Final = Path(__file__).parent / "baselines"
_PACKAGES: Final = ("fastapi", "sqlalchemy", "asyncpg", "stripe", "uvicorn", "uvloop", "httptools")
_LETTERS: Final = string.ascii_letters
_ENVIRONMENT: Final = {
    "dbname": "PGDATABASE",
    "host": "PGHOST",
    "password": "PGPASSWORD",
    "port": "PGPORT",
    "user": "PGUSER",
}
"""What node-postgres calls the parts of a connection string."""
_AUTH_SECRET: Final = "bench-4b1f7c09d2e86a35c7f1908e2d6b53aa"  # noqa: S105  # of a run's own database
_ADD_FASTAPI_TENANTS: Final = """
INSERT INTO tenants (id, name, plan, subscription_status, stripe_customer_id)
SELECT 't' || n, 'Tenant ' || n, 'free', 'none', 'cus_' || n FROM generate_series(0, %s - 1) AS n
"""
_ADD_FASTAPI_KEYS: Final = """
INSERT INTO api_keys (id, tenant_id, digest)
SELECT n - 1, 't' || (n - 1) %% %s, digest FROM unnest(%s::text[]) WITH ORDINALITY AS key (digest, n)
"""
_ADD_FASTAPI_PROJECTS: Final = """
INSERT INTO projects (id, tenant_id, name, created_at, updated_at)
SELECT t.id || '_' || n, t.id, 'Project ' || n, now() - n * interval '1 minute', now()
  FROM tenants t, generate_series(1, %s) AS n
"""
_ADD_USERS: Final = """
INSERT INTO "user" (id, name, email, "emailVerified")
SELECT 'user' || n, 'User ' || n, n || '@example.com', true FROM generate_series(0, %s - 1) AS n
"""
_ADD_ORGANIZATIONS: Final = """
INSERT INTO organization (id, name, slug, "createdAt")
SELECT 't' || n, 'Tenant ' || n, 'tenant-' || n, now() FROM generate_series(0, %s - 1) AS n
"""
_ADD_MEMBERS: Final = """
INSERT INTO member (id, "organizationId", "userId", role, "createdAt")
SELECT 'member' || n, 't' || n, 'user' || n, 'owner', now() FROM generate_series(0, %s - 1) AS n
"""
_MAKE_PROJECTS: Final = """
CREATE TABLE projects (
  id text PRIMARY KEY, org_id text NOT NULL REFERENCES organization, name text NOT NULL, description text,
  created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
)
"""
_ADD_PROJECTS: Final = """
INSERT INTO projects
SELECT o.id || '_' || n, o.id, 'Project ' || n, NULL, now() - n * interval '1 minute', now()
  FROM organization o, generate_series(1, %s) AS n
"""
_ADD_KEYS: Final = """
COPY apikey (id, "configId", start, "referenceId", key, enabled, "rateLimitEnabled", "requestCount", "createdAt",
             "updatedAt", permissions) FROM STDIN
"""
_ADD_SUBSCRIPTIONS: Final = """
INSERT INTO stripe.subscriptions (id, object, status, customer, created, items, last_synced_at)
SELECT 'sub_' || n, 'subscription', 'active', 'cus_' || n, %s, %s, to_timestamp(%s)
  FROM generate_series(0, %s - 1) AS n
"""
_ADD_ITEMS: Final = """
INSERT INTO stripe.subscription_items
       (id, object, subscription, price, quantity, deleted, created, last_synced_at)
SELECT 'si_' || n, 'subscription_item', 'sub_' || n, 'price_free', 1, false, %s, to_timestamp(%s)
  FROM generate_series(0, %s - 1) AS n
"""


def contestants() -> list[Contestant]:
    """Return all that can run here; say which cannot."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        sys.stderr.write("bench: node or npm is missing, so the peers from npm are left out\n")
        return [FastApi()]
    return [FastApi(), CachedKeys(), SyncEngine()]


class _Peer(Contestant):
    """An app in a folder."""

    folder: str
    paths: Mapping[Job, str]
    header: str = "Stripe-Signature"
    """For the credential, or for the signature of an event."""
    migrate: Sequence[str] = ("node", "server.js", "migrate")
    """Creates the tables."""
    serve: Sequence[str] = ("node", "server.js")

    @contextlib.contextmanager
    def running(self, job: Job, data: Dataset) -> Iterator[Server]:
        """Run the server, on a database with its tables and the data in them."""
        port, folder = free_port(), _FOLDER / self.folder
        database = conninfo_to_dict(data.conninfo)
        variables = {
            **{_ENVIRONMENT[key]: str(value) for key, value in database.items()},
            "DATABASE_URL": data.conninfo,
            "NODE_ENV": "production",
            "PORT": str(port),
            "PROCESSES": str(data.processes),
            "POOL_SIZE": str(POOL_SIZE // data.processes),
            "UVICORN_PORT": str(port),
            "UVICORN_WORKERS": str(data.processes),
            "BETTER_AUTH_SECRET": _AUTH_SECRET,
            "BETTER_AUTH_URL": f"http://127.0.0.1:{port}",
            "STRIPE_WEBHOOK_SECRET": SECRET,
        }
        _run(self.migrate, folder, variables)
        with psycopg.connect(data.conninfo) as connection:
            credentials = self.load(connection)
        vacuum(data.conninfo)
        header = "Stripe-Signature" if job is Job.WEBHOOK else self.header
        server = Server(port, 0, self.paths[job], header, credentials)
        with serving(self.serve, folder, variables, server, data.folder / "log") as running:
            yield running

    @abstractmethod
    def load(self, connection: psycopg.Connection) -> list[str]:
        """Insert the data into the peer's tables; return the credentials."""


class FastApi(_Peer):
    """The endpoints that most teams write, in the environment of the tests."""

    name = "fastapi-orm"
    title = "the usual endpoint: FastAPI, SQLAlchemy's asynchronous ORM, asyncpg, uvicorn"
    jobs = (Job.WEBHOOK, Job.LIST)
    paths: Mapping[Job, str] = {Job.WEBHOOK: "/webhooks/stripe", Job.LIST: "/projects"}
    folder = "."
    header = "Authorization"
    migrate = (sys.executable, "-m", "fastapi_orm.models")
    serve = (
        *(sys.executable, "-m", "uvicorn", "fastapi_orm.app:app", "--loop", "uvloop"),
        *("--http", "httptools", "--log-level", "warning", "--no-access-log"),
    )

    def install(self) -> str:
        """Return the versions: `make .venv/.dev` installs the packages."""
        return ", ".join(f"{name} {version(name)}" for name in _PACKAGES)

    def load(self, connection: psycopg.Connection) -> list[str]:
        """Key n belongs to tenant n modulo `TENANTS`."""
        keys = [f"sk_{_secret(number)}" for number in range(KEYS)]
        digests = [hashlib.sha256(key.encode()).hexdigest() for key in keys]
        connection.execute(_ADD_FASTAPI_TENANTS, (TENANTS,))
        connection.execute(_ADD_FASTAPI_KEYS, (TENANTS, digests))
        connection.execute(_ADD_FASTAPI_PROJECTS, (PROJECTS,))
        return [f"Bearer {key}" for key in keys]

    def events_stored(self, data: Dataset) -> int:
        """Count the stored events."""
        return int(read_value(data, "SELECT count(*) FROM stripe_events"))

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """Read the tenant's plan."""
        return read_value(data, "SELECT plan FROM tenants WHERE id = %s", f"t{tenant}")

    def revoke(self, data: Dataset, server: Server, number: int) -> None:
        """Revoke a key, which each request looks up."""
        del server
        execute(data, "UPDATE api_keys SET revoked_at = now() WHERE id = %s", number)


class _NodePeer(_Peer):
    """A package of npm behind a small server: ``server.js`` in a folder."""

    def install(self) -> str:
        """Install the locked packages, unless that is done already."""
        folder = _FOLDER / self.folder
        if not (folder / "node_modules").exists():
            subprocess.run(["npm", "ci", "--ignore-scripts", "--silent"], cwd=folder, check=True)
        node = _run(["node", "--version"], folder, {}).strip()
        packages = json.loads((folder / "package.json").read_text())["dependencies"]
        return ", ".join([f"node {node}", *(f"{name} {of}" for name, of in packages.items())])


class CachedKeys(_NodePeer):
    """better-auth's API keys in secondary storage."""

    name = "better-auth-keys-cached"
    title = (
        "better-auth, API keys in secondary storage (each process's own memory, where its documentation has Redis), "
        "updates deferred: another process's revocations are never seen; its limit of requests per key off"
    )
    jobs = (Job.LIST, Job.VERIFY)
    paths: Mapping[Job, str] = {Job.LIST: "/projects", Job.VERIFY: "/verify"}
    folder = "better_auth_keys"
    header = "x-api-key"

    def load(self, connection: psycopg.Connection) -> list[str]:
        """Tenant n is an organization that ``user<n>`` owns; the application has the projects."""
        for statement in (_ADD_USERS, _ADD_ORGANIZATIONS, _ADD_MEMBERS):
            connection.execute(statement, (TENANTS,))
        connection.execute(_MAKE_PROJECTS)
        connection.execute(_ADD_PROJECTS, (PROJECTS,))
        connection.execute("CREATE INDEX ON projects (org_id, created_at DESC, id DESC)")
        keys = [_secret(number) for number in range(KEYS)]
        usual = (True, False, 0, "now()", "now()", '{"projects":["read"]}')
        with connection.cursor() as cursor, cursor.copy(_ADD_KEYS) as copy:
            for number, key in enumerate(keys):
                tenant = f"t{number % TENANTS}"
                copy.write_row((f"key_{number}", "default", key[:6], tenant, _hash(key), *usual))
        return keys

    def revoke(self, data: Dataset, server: Server, number: int) -> None:
        """Disable a key by ``auth.api.updateApiKey``, in the one process that takes the request."""
        del data
        body = {"keyId": f"key_{number}", "userId": f"user{number % TENANTS}"}
        httpx2.post(f"http://127.0.0.1:{server.port}/revoke", json=body).raise_for_status()


class SyncEngine(_NodePeer):
    """A Stripe sync engine."""

    name = "stripe-sync"
    title = (
        "Supabase's Stripe sync engine behind fastify, no calls of the provider's API: copies the subscription and its "
        "items, unless synced later, in three transactions; keeps no events (stored = subscriptions changed)"
    )
    jobs = (Job.WEBHOOK,)
    paths: Mapping[Job, str] = {Job.WEBHOOK: "/webhooks"}
    folder = "stripe_sync"
    keeps_events = False

    def load(self, connection: psycopg.Connection) -> list[str]:
        """Store subscriptions, synced when they began, and the index that the engine lacks."""
        nothing = Jsonb({"object": "list", "data": []})
        connection.execute(_ADD_SUBSCRIPTIONS, (BEGIN, nothing, BEGIN, TENANTS))
        connection.execute(_ADD_ITEMS, (BEGIN, BEGIN, TENANTS))
        connection.execute("CREATE INDEX ON stripe.subscription_items (subscription)")
        return []

    def events_stored(self, data: Dataset) -> int:
        """Count the subscriptions that an event has changed."""
        changed = (
            "SELECT count(*) FROM stripe.subscriptions WHERE last_synced_at > to_timestamp(%s)"
        )
        return int(read_value(data, changed, BEGIN))

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """Read the price of the subscription's item."""
        query = (
            "SELECT price FROM stripe.subscription_items WHERE subscription = %s AND NOT deleted"
        )
        return read_value(data, query, f"sub_{tenant}")


def _run(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> str:
    """Run a command in a folder; return what it printed. Raises `StartError`."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise StartError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _secret(number: int) -> str:
    """Return a key as the plugin makes them: 64 letters."""
    digest = hashlib.shake_256(b"%d" % number).digest(64)
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)


def _hash(key: str) -> str:
    """Return what the plugin stores of a key."""
    return base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()).rstrip(b"=").decode()
