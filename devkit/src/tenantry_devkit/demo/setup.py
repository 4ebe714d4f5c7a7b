"""The demo's example data: tenants, users, keys and projects, and the file of its settings."""

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from dotenv import dotenv_values

from tenantry.accounts import tenants_store
from tenantry.accounts.projects import ProjectService
from tenantry.accounts.tenants import TenantInput, TenantService
from tenantry.auth.api_keys import OPERATOR, ApiKeyService
from tenantry.billing import ledger_queries_store
from tenantry.common.clock import from_epoch
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.access import AccessLevel, Mode, Principal, PrincipalKind
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.errors import TenantExistsError
from tenantry_devkit.files import write_private
from tenantry_devkit.identity_provider import DemoUser

TENANT: Final = "demo"
CUSTOMER: Final = "cus_demo"
AUDIENCE: Final = "tenantry-api"
CLIENT_ID: Final = "tenantry-dashboard"
TEST_KEY: Final = "TENANTRY_DEMO_TEST_KEY"
USERS: Final = (
    DemoUser(sub="olivia", name="Olivia Owner", email="olivia@demo.example", org_id=TENANT, role="owner"),
    DemoUser(sub="adam", name="Adam Admin", email="adam@demo.example", org_id=TENANT, role="admin"),
    DemoUser(sub="mia", name="Mia Member", email="mia@demo.example", org_id=TENANT, role="member"),
    DemoUser(sub="nora", name="Nora Newcomer", email="nora@new.example"),
)


class DemoFile:
    """The demo's own settings, in a file that only its owner may read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.values: dict[str, str] = {}

    def load(self) -> None:
        if self._path.exists():
            self.values = {name: value for name, value in dotenv_values(self._path).items() if value is not None}
        fresh = {
            "PROVIDER_WEBHOOK_SECRET": f"whsec_{secrets.token_hex(24)}",
            "PROVIDER_SECRET_KEY": f"sk_test_{secrets.token_hex(24)}",
            # the simulated provider does not know the events of `trigger`: users reconcile on request
            "RECONCILE_HOURS": "0",
            "API_KEY_PEPPER": secrets.token_hex(32),
            "SESSION_SECRET": secrets.token_hex(32),
            "OPERATOR_TOKEN": f"op_{secrets.token_hex(24)}",
            "OIDC_CLIENT_SECRET": secrets.token_hex(24),
        }
        self.save({name: value for name, value in fresh.items() if name not in self.values})

    def save(self, more: Mapping[str, str]) -> None:
        self.values.update(more)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{name}={value}\n" for name, value in self.values.items())
        write_private(self._path, f"# Made by `tenantry demo`; for this machine only.\n{text}".encode())


async def seed(
    database: Database, tenants: TenantService, keys: ApiKeyService, projects: ProjectService
) -> tuple[str, str] | None:
    """Create the demo tenant with projects and keys; return its live and test key, or None if it exists."""
    owner = USERS[0]
    wanted = TenantInput(
        name="Demo Company", owner_email=owner.email or "", owner_id=owner.sub, stripe_customer_id=CUSTOMER, plan="free"
    )
    async with _opened(database):
        try:
            await tenants.create_as_operator(BY_OPERATOR, TENANT, wanted)
        except TenantExistsError:
            return None
        created = []
        for mode, project in ((Mode.LIVE, "First project"), (Mode.TEST, "First test project")):
            principal = Principal(
                kind=PrincipalKind.USER,
                id=OPERATOR,
                org_id=TENANT,
                mode=mode,
                scopes=("*:*",),
                access_level=AccessLevel.OWNER,
                plan="free",
                subscription_status="none",
                expires_at=None,
            )
            await projects.create(principal, BY_OPERATOR, project, None, None)
            key = await keys.create(
                principal,
                BY_OPERATOR,
                org_id=TENANT,
                name=f"Demo {mode} key",
                scopes=(),
                access_level=AccessLevel.OWNER,
                mode=mode,
                expires_at=None,
                claim=None,
            )
            created.append(key.secret)
        return created[0], created[1]


async def next_moment(database: Database, now: datetime) -> datetime:
    """Return ``now``, or the second after the newest event, which may be ahead of the clock."""
    async with _opened(database), database.transaction(ACROSS_TENANTS) as connection:
        newest = from_epoch(await ledger_queries_store.newest_second(connection))
    return now if newest is None else max(now, newest + timedelta(seconds=1))


async def has_other_tenants(database: Database) -> bool:
    """Whether the database has tenants, but not the demo's."""
    async with _opened(database), database.transaction(ACROSS_TENANTS) as connection:
        return await tenants_store.has_tenants_without_customer(connection, TENANT, CUSTOMER)


@asynccontextmanager
async def _opened(database: Database) -> AsyncIterator[None]:
    await database.open()
    try:
        yield
    finally:
        await database.close()
