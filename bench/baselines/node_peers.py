"""Peers on Node: better-auth's API keys, its Stripe plugin, and a Stripe sync engine, each in a
separate folder.
"""

import base64
import contextlib
import hashlib
import json
import shutil
import string
import subprocess
import sys
import urllib.request
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Jsonb

from bench.baselines import serving
from bench.contestant import Contestant, Dataset, Job, Server, read_value, vacuum
from bench.events import BEGIN
from bench.support import free_port

POOL_SIZE: Final = 20
"""Connections of all processes of one server together."""

_LETTERS: Final = string.ascii_letters
_ENVIRONMENT: Final = {
    "dbname": "PGDATABASE",
    "host": "PGHOST",
    "password": "PGPASSWORD",
    "port": "PGPORT",
    "user": "PGUSER",
}
"""What node-postgres calls the parts of a connection string."""
_SECRET: Final = "bench-4b1f7c09d2e86a35c7f1908e2d6b53aa"  # noqa: S105  # of the run's own database


def contestants() -> list[Contestant]:
    """The peers; none, and a message, where Node.js or npm is missing."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        sys.stderr.write("bench: node or npm is missing, so the peers from npm are left out\n")
        return []
    return [Keys(), CachedKeys(), StripePlugin(), SyncEngine()]


class _Peer(Contestant):
    """A package of npm behind a small server: ``server.js`` in a folder beside this file."""

    name: str
    title: str
    jobs: Sequence[Job]
    paths: Mapping[Job, str]
    processes: Sequence[int] = (1, 2)
    folder: str
    header: str
    variables: Mapping[str, str] = {}

    def install(self) -> str:
        """Install the locked packages, unless that is done already; returns what the server uses,
        with versions.
        """
        folder = self._path()
        node = subprocess.run(
            ["node", "--version"], check=True, capture_output=True, text=True
        ).stdout.strip()
        done = folder / "node_modules" / ".installed"
        wanted = hashlib.sha256(
            (folder / "package-lock.json").read_bytes() + node.encode()
        ).hexdigest()
        if not done.exists() or done.read_text() != wanted:
            subprocess.run(["npm", "ci", "--ignore-scripts", "--silent"], cwd=folder, check=True)
            done.write_text(wanted)
        packages = json.loads((folder / "package.json").read_text())["dependencies"]
        return ", ".join(
            [f"node {node.removeprefix('v')}", *(f"{name} {of}" for name, of in packages.items())]
        )

    @contextlib.contextmanager
    def running(self, job: Job, data: Dataset) -> Iterator[Server]:
        """The peer's server, on a database with its tables and the data in them."""
        port = free_port()
        variables = {
            **{
                _ENVIRONMENT[key]: str(value)
                for key, value in conninfo_to_dict(data.conninfo).items()
            },
            "NODE_ENV": "production",
            "PORT": str(port),
            "PROCESSES": str(data.processes),
            "POOL_SIZE": str(POOL_SIZE // data.processes),
            "BETTER_AUTH_SECRET": _SECRET,
            "BETTER_AUTH_URL": f"http://127.0.0.1:{port}",
            "STRIPE_WEBHOOK_SECRET": data.secret,
            **self.variables,
        }
        serving.run(["node", "server.js", "migrate"], self._path(), variables)
        with psycopg.connect(data.conninfo) as connection:
            credentials = self.load(connection, data)
        vacuum(data)
        with serving.serving(
            ["node", "server.js"],
            self._path(),
            variables,
            url=f"http://127.0.0.1:{port}/",
            log=data.folder / "node.log",
        ) as pid:
            yield Server(port, pid, self.paths[job], self.header, credentials)

    @abstractmethod
    def load(self, connection: psycopg.Connection, data: Dataset) -> list[str]:
        """Insert the data into the peer's tables; returns the credentials."""

    def _path(self) -> Path:
        return Path(__file__).parent / self.folder


class Keys(_Peer):
    """better-auth's API keys in PostgreSQL."""

    name = "better-auth-keys"
    title = "better-auth, API keys of organizations in PostgreSQL, node:http; its limit of requests per key off"
    jobs: Sequence[Job] = (Job.LIST, Job.VERIFY)
    paths: Mapping[Job, str] = {Job.LIST: "/projects", Job.VERIFY: "/verify"}
    folder = "better_auth_keys"
    header = "x-api-key"

    def load(self, connection: psycopg.Connection, data: Dataset) -> list[str]:
        """Tenant n is an organization that ``user<n>`` owns; the projects are in a table of the
        application.
        """
        _load_users(connection, data)
        keys = [_secret(number) for number in range(data.keys)]
        with connection.cursor() as cursor:
            cursor.execute(
                'INSERT INTO organization (id, name, slug, "createdAt") '
                "SELECT 't' || n, 'Tenant ' || n, 'tenant-' || n, now() FROM generate_series(0, %s - 1) AS n",
                (data.tenants,),
            )
            cursor.execute(
                'INSERT INTO member (id, "organizationId", "userId", role, "createdAt") '
                "SELECT 'member' || n, 't' || n, 'user' || n, 'owner', now() FROM generate_series(0, %s - 1) AS n",
                (data.tenants,),
            )
            cursor.execute(
                "CREATE TABLE projects (id text PRIMARY KEY, org_id text NOT NULL REFERENCES organization, "
                "name text NOT NULL, description text, created_at timestamptz NOT NULL, "
                "updated_at timestamptz NOT NULL)"
            )
            cursor.execute(
                "INSERT INTO projects SELECT o.id || '_' || n, o.id, 'Project ' || n, NULL, "
                "now() - n * interval '1 minute', now() FROM organization o, generate_series(1, %s) AS n",
                (data.projects,),
            )
            cursor.execute("CREATE INDEX ON projects (org_id, created_at DESC, id DESC)")
            with cursor.copy(
                'COPY apikey (id, "configId", start, "referenceId", key, enabled, "rateLimitEnabled", '
                '"requestCount", "createdAt", "updatedAt", permissions) FROM STDIN'
            ) as copy:
                for number, key in enumerate(keys):
                    copy.write_row(
                        (
                            f"key_{number}",
                            "default",
                            key[:6],
                            f"t{number % data.tenants}",
                            _hash(key),
                            True,
                            False,
                            0,
                            "now()",
                            "now()",
                            '{"projects":["read"]}',
                        )
                    )
        return keys

    def revoke(self, data: Dataset, server: Server, number: int) -> None:
        """Disable a key by ``auth.api.updateApiKey``, in the one process that takes the request."""
        body = json.dumps(
            {"keyId": f"key_{number}", "userId": f"user{number % data.tenants}"}
        ).encode()
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/revoke", body, timeout=30).close()


class CachedKeys(Keys):
    """better-auth's API keys in secondary storage."""

    name = "better-auth-keys-cached"
    title = (
        "better-auth, API keys in secondary storage (each process's own memory, where its documentation has Redis), "
        "updates deferred: another process's revocations are never seen"
    )
    variables: Mapping[str, str] = {"KEY_STORAGE": "memory"}


class StripePlugin(_Peer):
    """better-auth's Stripe plugin."""

    name = "better-auth-stripe"
    title = (
        "better-auth's Stripe plugin, node:http: finds the subscription and updates it, in two transactions; keeps no "
        "events, so repeats and late ones apply too (stored = subscriptions changed); its rate limit off"
    )
    jobs: Sequence[Job] = (Job.WEBHOOK,)
    paths: Mapping[Job, str] = {Job.WEBHOOK: "/api/auth/stripe/webhook"}
    folder = "better_auth_stripe"
    header = "Stripe-Signature"

    def load(self, connection: psycopg.Connection, data: Dataset) -> list[str]:
        """Tenant n's subscription belongs to ``user<n>``. Finds subscriptions by an index, which
        the plugin lacks.
        """
        _load_users(connection, data)
        connection.execute(
            'INSERT INTO subscription (id, plan, "referenceId", "stripeCustomerId", "stripeSubscriptionId", status) '
            "SELECT 'subscription' || n, 'free', 'user' || n, 'cus_' || n, 'sub_' || n, 'active' "
            "FROM generate_series(0, %s - 1) AS n",
            (data.tenants,),
        )
        connection.execute('CREATE INDEX ON subscription ("stripeSubscriptionId")')
        return []

    def events_stored(self, data: Dataset) -> int:
        """How many subscriptions an event has changed; the events themselves are not kept."""
        return int(
            read_value(
                data, 'SELECT count(*)::text FROM subscription WHERE "periodStart" IS NOT NULL'
            )
        )

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """See `Contestant`."""
        return read_value(
            data, 'SELECT plan FROM subscription WHERE "stripeSubscriptionId" = %s', f"sub_{tenant}"
        )


class SyncEngine(_Peer):
    """A Stripe sync engine."""

    name = "stripe-sync"
    title = (
        "Supabase's Stripe sync engine behind fastify, no calls of the provider's API: copies the subscription and its "
        "items, unless synced later, in three transactions; keeps no events (stored = subscriptions changed)"
    )
    jobs: Sequence[Job] = (Job.WEBHOOK,)
    paths: Mapping[Job, str] = {Job.WEBHOOK: "/webhooks"}
    folder = "stripe_sync"
    header = "Stripe-Signature"

    def load(self, connection: psycopg.Connection, data: Dataset) -> list[str]:
        """Subscriptions, synced when they began. Finds their items by an index, which the engine
        lacks.
        """
        connection.execute(
            "INSERT INTO stripe.subscriptions (id, object, status, customer, created, items, last_synced_at) "
            "SELECT 'sub_' || n, 'subscription', 'active', 'cus_' || n, %s, %s, to_timestamp(%s) "
            "FROM generate_series(0, %s - 1) AS n",
            (BEGIN, Jsonb({"object": "list", "data": []}), BEGIN, data.tenants),
        )
        connection.execute(
            "INSERT INTO stripe.subscription_items (id, object, subscription, price, quantity, deleted, created, "
            "last_synced_at) SELECT 'si_' || n, 'subscription_item', 'sub_' || n, 'price_free', 1, false, %s, "
            "to_timestamp(%s) FROM generate_series(0, %s - 1) AS n",
            (BEGIN, BEGIN, data.tenants),
        )
        connection.execute("CREATE INDEX ON stripe.subscription_items (subscription)")
        return []

    def events_stored(self, data: Dataset) -> int:
        """How many subscriptions an event has changed; the events themselves are not kept."""
        changed = "SELECT count(*)::text FROM stripe.subscriptions WHERE last_synced_at > to_timestamp(%s)"
        return int(read_value(data, changed, BEGIN))

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """The price of the subscription's item."""
        return read_value(
            data,
            "SELECT price FROM stripe.subscription_items WHERE subscription = %s AND NOT deleted",
            f"sub_{tenant}",
        )


def _load_users(connection: psycopg.Connection, data: Dataset) -> None:
    connection.execute(
        'INSERT INTO "user" (id, name, email, "emailVerified") '
        "SELECT 'user' || n, 'User ' || n, n || '@example.com', true FROM generate_series(0, %s - 1) AS n",
        (data.tenants,),
    )


def _secret(number: int) -> str:
    """A key as the plugin makes them: 64 letters."""
    return "".join(
        _LETTERS[byte % len(_LETTERS)] for byte in hashlib.shake_256(b"%d" % number).digest(64)
    )


def _hash(key: str) -> str:
    """What the plugin stores of a key."""
    return base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()).rstrip(b"=").decode()
