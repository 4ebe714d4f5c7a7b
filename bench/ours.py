"""The service in the comparison: its webhook, and its project list and gateway check by API key and
by token.
"""

import contextlib
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

import psycopg
from anyio.from_thread import start_blocking_portal

import tenantry
from bench import support
from bench.baselines.serving import serving
from bench.contestant import Contestant, Dataset, Job, Server, read_value
from tenantry.api import auth, projects, webhooks
from tenantry.db.migrate import migrate
from tests.support.issuer import AUDIENCE, running_issuer, signing_key

NAME: Final = "tenantry"
JWT: Final = {"RS256": "tenantry/rs256", "ES256": "tenantry/es256"}
"""The names of the contestants that use access tokens, by algorithm."""
LIMITED: Final = "tenantry/limited"
EACH: Final = "tenantry/each"
QUOTA: Final = "tenantry/quota"
CORS: Final = "tenantry/cors"
PLANS_WITHOUT_LIMITS: Final = """
[[plans]]
id = "free"
[[plans]]
id = "pro"
stripe_price_id = "price_pro"
[[plans]]
id = "team"
stripe_price_id = "price_team"
"""
PLANS_WITH_QUOTA: Final = """
[[features]]
id = "calls"
type = "metered"
counts = "requests"
[[plans]]
id = "free"
[plans.features]
calls = 1000000000
[[plans]]
id = "pro"
stripe_price_id = "price_pro"
[plans.features]
calls = 1000000000
"""
PATHS: Final = {
    Job.WEBHOOK: webhooks.PATH,
    Job.LIST: projects.PATH,
    Job.VERIFY: f"{auth.VERIFY_PREFIX}projects:read",
}
_TOKEN_LIFETIME: Final = 24 * 3600
_PACKAGES: Final = ("uvicorn", "uvloop", "httptools", "psycopg", "msgspec")


@dataclass
class Tenantry(Contestant):
    """The service as deployed, with jobs, on plans without request limits unless ``limited``."""

    name: str
    title: str
    jobs: Sequence[Job]
    processes: Sequence[int] = (1, 2)
    algorithm: str | None = None
    """The algorithm of access tokens; None for API keys."""
    limited: bool = False
    plans: str = PLANS_WITHOUT_LIMITS
    """The catalog, unless ``limited``."""
    subscriptions: str = "any"
    """The setting SUBSCRIPTIONS."""
    page_origin: str | None = None
    """The origin of a page that sends every request, and that CORS_ORIGINS lists."""
    _issuers: dict[str, str] = field(default_factory=dict)
    """The identity provider of each database."""

    def install(self) -> str:
        """Return the versions."""
        packages = [f"{package} {version(package)}" for package in _PACKAGES]
        return ", ".join(
            [f"tenantry {tenantry.__version__}", f"Python {platform.python_version()}", *packages]
        )

    @contextlib.contextmanager
    def running(self, job: Job, data: Dataset) -> Iterator[Server]:
        """Load the data and start the service."""
        migrate(data.conninfo)
        credentials = support.load(data.conninfo)
        port = support.free_port()
        variables = {
            "DATABASE_URL": data.conninfo,
            "PORT": str(port),
            "WORKERS": str(data.processes),
            "PROVIDER_WEBHOOK_SECRET": data.secret,
            "API_KEY_PEPPER": support.PEPPER,
            "SESSION_SECRET": support.PEPPER,
            "SUBSCRIPTIONS": self.subscriptions,
        }
        if self.page_origin is not None:
            variables["CORS_ORIGINS"] = self.page_origin
        if not self.limited:
            catalog = data.folder / "plans.toml"
            catalog.write_text(self.plans)
            variables["TENANTRY_PLANS"] = str(catalog)
        with contextlib.ExitStack() as stack:
            if self.algorithm is not None:
                issuer, credentials = stack.enter_context(_issuer(self.algorithm, data.tenants))
                variables |= {"OIDC_ISSUER": issuer, "OIDC_AUDIENCE": AUDIENCE}
                self._issuers[data.conninfo] = issuer
            command = [sys.executable, "-m", "tenantry", "serve"]
            url = f"http://127.0.0.1:{port}{projects.PATH}"
            pid = stack.enter_context(
                serving(command, data.folder, variables, url=url, log=data.folder / "log")
            )
            header = "Stripe-Signature" if job is Job.WEBHOOK else "Authorization"
            origin = {} if self.page_origin is None else {"Origin": self.page_origin}
            values = [f"Bearer {credential}" for credential in credentials]
            yield Server(port, pid, PATHS[job], header, values, origin)

    def events_stored(self, data: Dataset) -> int:
        """Count the ledger's events."""
        return int(read_value(data, "SELECT count(*) FROM billing_events"))

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """Read the plan that the service applies."""
        return read_value(data, "SELECT plan FROM tenants WHERE id = %s", f"t{tenant}")

    def revoke(self, data: Dataset, server: Server, number: int) -> None:
        """Revoke a key, or remove a token's user from the tenant."""
        del server
        with psycopg.connect(data.conninfo) as connection:
            if self.algorithm is None:
                connection.execute(
                    "UPDATE api_keys SET revoked_at = now() WHERE id = %s", (f"key_{number}",)
                )
            else:
                connection.execute(
                    "INSERT INTO memberships (issuer, subject, tenant_id, role, removed_at) "
                    "VALUES (%s, %s, %s, 'member', now())",
                    (self._issuers[data.conninfo], f"user{number}", f"t{number}"),
                )


def contestants() -> list[Contestant]:
    """Return the service with each kind of credential."""
    tokens = [
        Tenantry(
            name,
            f"with {algorithm} access tokens, cached after their first use",
            (Job.LIST,),
            (1, 2),
            algorithm,
        )
        for algorithm, name in JWT.items()
    ]
    limited = "with the package's plans, which count requests"
    return [
        Tenantry(NAME, "the service, API keys, plans without request limits", tuple(Job)),
        *tokens,
        Tenantry(LIMITED, limited, (Job.LIST,), (1,), limited=True),
        Tenantry(
            QUOTA,
            "with a feature that counts requests",
            (Job.LIST,),
            (1,),
            plans=PLANS_WITH_QUOTA,
        ),
        Tenantry(
            CORS,
            "called by pages of another origin",
            tuple(Job),
            (1,),
            page_origin="https://app.example",
        ),
        Tenantry(EACH, "a state of each subscription", (Job.WEBHOOK,), (1,), subscriptions="each"),
    ]


@contextlib.contextmanager
def _issuer(algorithm: str, tenants: int) -> Iterator[tuple[str, list[str]]]:
    """Run an identity provider; yield its address and an access token for each tenant's user."""
    key, issued = signing_key(algorithm, algorithm.lower()), int(time.time())
    claims = {
        "org_role": "member",
        "scope": "openid projects:read",
        "iat": issued,
        "exp": issued + _TOKEN_LIFETIME,
    }
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running_issuer(key)) as issuer,
    ):
        yield (
            issuer.url,
            [
                issuer.mint(
                    key,
                    claims={
                        **claims,
                        "sub": f"user{number}",
                        "org_id": f"t{number}",
                        "jti": str(number),
                    },
                )
                for number in range(tenants)
            ],
        )
