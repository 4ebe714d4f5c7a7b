"""The demo's example data: tenants, users, keys and projects, and the file of its settings."""

import os
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
from dotenv import dotenv_values

from tenantry.accounts import tenants_store as tenant_store
from tenantry.accounts.projects import ProjectService
from tenantry.accounts.tenants import TenantInput, TenantService
from tenantry.auth.api_keys import OPERATOR, ApiKeyService
from tenantry.billing import ledger_queries_store as billing
from tenantry.common.clock import from_epoch
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.access import AccessLevel, Mode, Principal, PrincipalKind
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.errors import TenantExistsError
from tenantry_devkit.identity_provider import DemoUser

TENANT: Final = "demo"
CUSTOMER: Final = "cus_demo"
AUDIENCE: Final = "tenantry-api"
CLIENT_ID: Final = "tenantry-dashboard"
TEST_KEY: Final = "TENANTRY_DEMO_TEST_KEY"


OWNER_ALONE: Final = 0o600


def write_private(path: Path, content: bytes) -> None:
    """Replace ``path`` by a file with mode 0600; a reader sees the old content or the whole new one."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with open(fresh, "xb", opener=lambda name, flags: os.open(name, flags, OWNER_ALONE)) as file:
        file.write(content)
    fresh.replace(path)


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
        """Read the file, and make the secrets that are missing."""
        if self._path.exists():
            self.values = {name: value for name, value in dotenv_values(self._path).items() if value is not None}
        fresh = {
            "PROVIDER_WEBHOOK_SECRET": f"whsec_{secrets.token_hex(24)}",
            "PROVIDER_SECRET_KEY": f"sk_test_{secrets.token_hex(24)}",
            # the simulated provider does not know what `trigger` makes up: comparing with it is for people to ask for
            "RECONCILE_HOURS": "0",
            "API_KEY_PEPPER": secrets.token_hex(32),
            "SESSION_SECRET": secrets.token_hex(32),
            "OPERATOR_TOKEN": f"op_{secrets.token_hex(24)}",
            "OIDC_CLIENT_SECRET": secrets.token_hex(24),
        }
        self.keep({name: value for name, value in fresh.items() if name not in self.values})

    def keep(self, more: Mapping[str, str]) -> None:
        """Add values and write the file."""
        self.values.update(more)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{name}={value}\n" for name, value in self.values.items())
        write_private(self._path, f"# Made by `tenantry demo`; for this machine only.\n{text}".encode())


class SeedKeys(msgspec.Struct, frozen=True):
    """The demo tenant's keys."""

    live: str
    test: str


async def seed(tenants: TenantService, keys: ApiKeyService, projects: ProjectService) -> SeedKeys | None:
    """Make the demo tenant with a project and two OWNER keys; None if it is there already."""
    owner = USERS[0]
    wanted = TenantInput(
        name="Demo Company", owner_email=owner.email or "", owner_id=owner.sub, stripe_customer_id=CUSTOMER, plan="free"
    )
    try:
        await tenants.create_as_operator(BY_OPERATOR, TENANT, wanted)
    except TenantExistsError:
        return None
    made = []
    for mode in (Mode.LIVE, Mode.TEST):
        principal = _owner(mode)
        name = "First project" if mode is Mode.LIVE else "First test project"
        await projects.create(principal, BY_OPERATOR, name, None, None)
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
        made.append(key.secret)
    return SeedKeys(*made)


def _owner(mode: Mode) -> Principal:
    return Principal(
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


async def next_moment(database: Database, now: datetime) -> datetime:
    """The earliest moment from ``now`` on that is later than all events so far, which may be ahead of the clock.

    Opens and closes the database.
    """
    await database.open()
    try:
        async with database.transaction(ACROSS_TENANTS) as connection:
            newest = from_epoch(await billing.newest_second(connection))
    finally:
        await database.close()
    return now if newest is None else max(now, newest + timedelta(seconds=1))


async def is_of_others(database: Database) -> bool:
    """Whether the database has tenants, and the demo has never made its own there.

    Opens and closes the database.
    """
    await database.open()
    try:
        async with database.transaction(ACROSS_TENANTS) as connection:
            return await tenant_store.has_tenants_without_customer(connection, TENANT, CUSTOMER)
    finally:
        await database.close()


async def seed_database(
    database: Database, tenants: TenantService, keys: ApiKeyService, projects: ProjectService
) -> SeedKeys | None:
    """`seed`, with the database opened and closed around it."""
    await database.open()
    try:
        return await seed(tenants, keys, projects)
    finally:
        await database.close()
