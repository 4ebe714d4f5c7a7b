"""The service in the comparison: its webhook, and its projects and its gateway check by API key and by token."""

import contextlib
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

import psycopg

import tenantry
from bench import support
from bench.baselines.serving import serving
from bench.contestant import Contestant, Job, Server, World
from tenantry.api import auth, projects, webhooks
from tenantry.db.migrate import migrate
from tests.support.issuer import AUDIENCE

NAME: Final = "tenantry"
JWT: Final = {"RS256": "tenantry/rs256", "ES256": "tenantry/es256"}
"""The names of the contestants that take tokens, by algorithm."""
LIMITED: Final = "tenantry/limited"
WITHOUT_LIMITS: Final = """
[[plans]]
id = "free"
[[plans]]
id = "pro"
stripe_price_id = "price_pro"
"""
PATHS: Final = {Job.WEBHOOK: webhooks.PATH, Job.LIST: projects.PATH, Job.VERIFY: f"{auth.VERIFY_PREFIX}projects:read"}
_ISSUER_SECONDS: Final = 30
_PACKAGES: Final = ("uvicorn", "uvloop", "httptools", "psycopg", "msgspec")


@dataclass
class Tenantry:
    """The service as it is deployed, jobs included, on plans without limits on requests unless ``limited``."""

    name: str
    title: str
    jobs: Sequence[Job]
    processes: Sequence[int] = (1, 2)
    algorithm: str | None = None
    """Of the tokens that are sent; API keys are, where there is none."""
    limited: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    """More variables."""

    def install(self) -> str:
        """It is there."""
        return ", ".join(
            [
                f"tenantry {tenantry.__version__}",
                f"Python {platform.python_version()}",
                *(f"{package} {version(package)}" for package in _PACKAGES),
            ]
        )

    @contextlib.contextmanager
    def running(self, job: Job, world: World) -> Iterator[Server]:
        """Load the world, start the service."""
        migrate(world.conninfo)
        keys = support.load(world.conninfo)
        with contextlib.ExitStack() as stack:
            settings = dict(self.settings)
            if self.algorithm is not None:
                issuer = stack.enter_context(_issuer(self.algorithm, world))
                settings |= {"OIDC_ISSUER": issuer, "OIDC_AUDIENCE": AUDIENCE}
                keys = (world.folder / "tokens").read_text().split()
            if not self.limited:
                catalog = world.folder / "plans.toml"
                catalog.write_text(WITHOUT_LIMITS)
                settings["TENANTRY_PLANS"] = str(catalog)
            pid, port = stack.enter_context(_service(world, settings))
            header = "Stripe-Signature" if job is Job.WEBHOOK else "Authorization"
            yield Server(port, pid, PATHS[job], header, [f"Bearer {key}" for key in keys])

    def events_stored(self, world: World) -> int:
        """All in the ledger."""
        return int(_value(world, "SELECT count(*) FROM billing_events"))

    def plan_of(self, world: World, tenant: int) -> str:
        """The plan that the service works with."""
        return _value(world, "SELECT plan FROM tenants WHERE id = %s", f"t{tenant}")

    def revoke(self, world: World, server: Server, number: int) -> None:
        """Revoke a key, or remove a token's user from the tenant."""
        del server
        with psycopg.connect(world.conninfo) as connection:
            if self.algorithm is None:
                connection.execute("UPDATE api_keys SET revoked_at = now() WHERE id = %s", (f"key_{number}",))
            else:
                issuer = (world.folder / "address").read_text()
                connection.execute(
                    "INSERT INTO memberships (issuer, subject, tenant_id, role, removed_at) "
                    "VALUES (%s, %s, %s, 'member', now())",
                    (issuer, f"user{number}", f"t{number}"),
                )


def contestants() -> list[Contestant]:
    """The service, by what it is sent."""
    every = (Job.WEBHOOK, Job.LIST, Job.VERIFY)
    tokens = [
        Tenantry(
            name, f"the same with {algorithm} access tokens, known after the first time", (Job.LIST,), (1, 2), algorithm
        )
        for algorithm, name in JWT.items()
    ]
    return [
        Tenantry(NAME, "the service, API keys, plans without request limits", every),
        *tokens,
        Tenantry(
            LIMITED, "the same with the package's plans, whose requests are counted", (Job.LIST,), (1,), limited=True
        ),
    ]


@contextlib.contextmanager
def _service(world: World, settings: dict[str, str]) -> Iterator[tuple[int, int]]:
    """Process id and port of a service."""
    port = support.free_port()
    variables = {
        "DATABASE_URL": world.conninfo,
        "PORT": str(port),
        "WORKERS": str(world.processes),
        "PROVIDER_WEBHOOK_SECRET": world.secret,
        "API_KEY_PEPPER": support.PEPPER,
        "SESSION_SECRET": support.PEPPER,
        **settings,
    }
    command = [sys.executable, "-m", "tenantry", "serve"]
    url = f"http://127.0.0.1:{port}{projects.PATH}"
    with serving(command, world.folder, variables, url=url, log=world.folder / "log") as pid:
        yield pid, port


@contextlib.contextmanager
def _issuer(algorithm: str, world: World) -> Iterator[str]:
    """The address of an identity provider, whose tokens are in the world's folder by then."""
    command = [sys.executable, "-m", "bench.issuer", algorithm, str(world.tenants), str(world.folder)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1])
    try:
        address, until = world.folder / "address", time.monotonic() + _ISSUER_SECONDS
        while not address.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the identity provider does not start")
            time.sleep(0.05)
        yield address.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _value(world: World, query: str, *parameters: str) -> str:
    with psycopg.connect(world.conninfo) as connection:
        row = connection.execute(query, parameters).fetchone()
    return str(row[0]) if row else ""
