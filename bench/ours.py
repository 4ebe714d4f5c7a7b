"""The service in the comparison, with each kind of credential and setting that costs a request
something.
"""

import contextlib
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import ClassVar, Final
from uuid import uuid4

from anyio.from_thread import start_blocking_portal

import tenantry
from bench import support
from bench.contestant import Contestant, Dataset, Job, Server, execute, read_value, request
from bench.serving import serving
from tenantry.api import auth, projects, webhooks
from tenantry.db.migrate import migrate
from tests.support.issuer import AUDIENCE, running_issuer, signing_key
from tests.support.ports import free_port

NAME: Final = "tenantry"
RS256: Final = "tenantry/rs256"
CORS: Final = "tenantry/cors"
PATHS: Final = {
    Job.WEBHOOK: webhooks.PATH,
    Job.LIST: projects.PATH,
    Job.VERIFY: f"{auth.VERIFY_PREFIX}projects:read",
    Job.CONSUME: "/api/v1/entitlements/f0/consume",
}
_FEATURES: Final = 10
_MANY: Final = 1_000_000_000
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
_PLANS_WITH_QUOTA: Final = """
[[features]]
id = "calls"
type = "metered"
counts = "requests"
""" + PLANS_WITHOUT_LIMITS.replace("[[plans]]", f"[[plans]]\nfeatures.calls = {_MANY}")
_METERED: Final = [f"f{number}" for number in range(_FEATURES)]
_PLANS_WITH_FEATURES: Final = "\n".join(
    [f'[[features]]\nid = "{feature}"\ntype = "metered"' for feature in _METERED]
    + ['[[plans]]\nid = "free"\n[plans.features]']
    + [f"{feature} = {_MANY}" for feature in _METERED]
)
_TOKEN_LIFETIME: Final = 24 * 3600
_PACKAGES: Final = ("uvicorn", "uvloop", "httptools", "psycopg", "msgspec")


@dataclass
class Tenantry(Contestant):
    """The service as deployed, with jobs."""

    name: str
    title: str
    jobs: Sequence[Job]
    processes: Sequence[int] = (1,)
    plans: str | None = PLANS_WITHOUT_LIMITS
    """The catalog; None for the package's."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further settings."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers of every request."""
    counters: int = 10_000
    """How many counters the requests consume of."""
    has_idempotency_keys: bool = False
    """Whether a request that consumes has an idempotency key."""

    is_peer = False

    def install(self) -> str:
        """Return the versions."""
        packages = [f"{package} {version(package)}" for package in _PACKAGES]
        own = f"tenantry {tenantry.__version__}, Python {platform.python_version()}"
        return ", ".join([own, *packages])

    @contextlib.contextmanager
    def running(self, job: Job, data: Dataset) -> Iterator[Server]:
        """Load the data and start the service."""
        migrate(data.conninfo)
        with self._credentials(data) as (credentials, settings):
            header = "Stripe-Signature" if job is Job.WEBHOOK else "Authorization"
            values = [f"Bearer {credential}" for credential in credentials]
            server = Server(free_port(), 0, PATHS[job], header, values, self.headers)
            variables = {
                "DATABASE_URL": data.conninfo,
                "PORT": str(server.port),
                "WORKERS": str(data.processes),
                "PROVIDER_WEBHOOK_SECRET": support.SECRET,
                "API_KEY_PEPPER": support.PEPPER,
                "SESSION_SECRET": support.PEPPER,
                **settings,
                **self.settings,
            }
            plans = _PLANS_WITH_FEATURES if job is Job.CONSUME else self.plans
            if plans is not None:
                catalog = data.folder / "plans.toml"
                catalog.write_text(plans)
                variables["TENANTRY_PLANS"] = str(catalog)
            command = [sys.executable, "-m", "tenantry", "serve"]
            log = data.folder / "log"
            with serving(command, data.folder, variables, server, log) as running:
                yield running

    @contextlib.contextmanager
    def _credentials(self, data: Dataset) -> Iterator[tuple[list[str], dict[str, str]]]:
        """Load the data; yield the credentials of requests, and the settings that they need."""
        yield support.load(data.conninfo), {}

    def requests(self, job: Job, server: Server) -> list[str]:
        """Compose requests, for consuming one of each counter: of a feature and a tenant."""
        if job is not Job.CONSUME:
            return super().requests(job, server)
        if self.has_idempotency_keys:
            keys = {**server.more_headers, "Idempotency-Key": f"{uuid4()}-<n>"}
            server = Server(server.port, 0, "", credentials=server.credentials, more_headers=keys)
        return [
            request(
                server,
                "POST",
                f"/api/v1/entitlements/f{counter % _FEATURES}/consume",
                server.credentials[counter // _FEATURES],
                '{"amount":1}',
            )
            for counter in range(self.counters)
        ]

    def events_stored(self, data: Dataset) -> int:
        """Count the ledger's events."""
        return int(read_value(data, "SELECT count(*) FROM billing_events"))

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """Read the plan that the service applies."""
        return read_value(data, "SELECT plan FROM tenants WHERE id = %s", f"t{tenant}")

    def revoke(self, data: Dataset, server: Server, number: int) -> None:
        """Revoke a key."""
        del server
        execute(data, "UPDATE api_keys SET revoked_at = now() WHERE id = %s", f"key_{number}")


class _ByToken(Tenantry):
    """The service with access tokens of an identity provider."""

    _issuers: ClassVar[dict[str, str]] = {}
    """The identity provider of each database."""

    @contextlib.contextmanager
    def _credentials(self, data: Dataset) -> Iterator[tuple[list[str], dict[str, str]]]:
        """Run an identity provider; each tenant's user gets an access token."""
        support.load(data.conninfo)
        key, issued = signing_key("RS256", "rs256"), int(time.time())
        claims = {
            "org_role": "member",
            "scope": "openid projects:read",
            "iat": issued,
            "exp": issued + _TOKEN_LIFETIME,
        }
        own = [
            {"sub": f"user{number}", "org_id": f"t{number}", "jti": str(number)}
            for number in range(support.TENANTS)
        ]
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(running_issuer(key)) as issuer,
        ):
            self._issuers[data.conninfo] = issuer.url
            tokens = [issuer.mint(key, claims={**claims, **each}) for each in own]
            yield tokens, {"OIDC_ISSUER": issuer.url, "OIDC_AUDIENCE": AUDIENCE}

    def revoke(self, data: Dataset, server: Server, number: int) -> None:
        """Remove the token's user from the tenant."""
        del server
        execute(
            data,
            "INSERT INTO memberships (issuer, subject, tenant_id, role, removed_at) "
            "VALUES (%s, %s, %s, 'member', now())",
            self._issuers[data.conninfo],
            f"user{number}",
            f"t{number}",
        )


_PAGE: Final = "https://app.example"


def contestants() -> list[Contestant]:
    """Return the service with each of its variations."""
    lists, consume = (Job.LIST,), (Job.CONSUME,)
    return [
        Tenantry(NAME, "the service, API keys, plans without request limits", tuple(Job), (1, 2)),
        _ByToken(RS256, "with access tokens, cached after their first use", lists, (1, 2)),
        Tenantry(
            "tenantry/limited", "with the package's plans, which count requests", lists, plans=None
        ),
        Tenantry(
            "tenantry/quota", "with a feature that counts requests", lists, plans=_PLANS_WITH_QUOTA
        ),
        Tenantry(
            CORS,
            "called by pages of another origin",
            (Job.WEBHOOK, Job.LIST, Job.VERIFY),
            settings={"CORS_ORIGINS": _PAGE},
            headers={"Origin": _PAGE},
        ),
        Tenantry(
            "tenantry/each",
            "a state of each subscription",
            (Job.WEBHOOK,),
            settings={"SUBSCRIPTIONS": "each"},
        ),
        Tenantry("tenantry/one-counter", "which all requests consume of", consume, counters=1),
        Tenantry(
            "tenantry/idempotent", "with idempotency keys", consume, has_idempotency_keys=True
        ),
    ]
