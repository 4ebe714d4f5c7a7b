"""The demo's example data, the file of its settings, and its payment provider."""

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from dotenv import dotenv_values
from msgspec.structs import replace

from tenantry.accounts import tenants_store
from tenantry.accounts.projects import ProjectService
from tenantry.auth.api_keys import ApiKeyService
from tenantry.billing import ledger_queries_store
from tenantry.cli.operator_services import operator_services
from tenantry.common.clock import from_epoch, system_clock
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.domain.api_keys import KeyTerms
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.errors import TenantExistsError
from tenantry.domain.permissions import AccessLevel, Mode, operator_principal
from tenantry.domain.tenants import TenantInput
from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry.settings import Settings
from tenantry_devkit.demo import troubled_tenant
from tenantry_devkit.demo.companion import generated_settings
from tenantry_devkit.files import write_private
from tenantry_devkit.identity_tokens import DemoUser
from tenantry_devkit.local.samples import TENANT
from tenantry_devkit.simulator import AccountState, Simulator

_log = logging.getLogger(__name__)

CUSTOMER: Final = "cus_demo"
AUDIENCE: Final = "tenantry-api"
CLIENT_ID: Final = "tenantry-dashboard"
PROVIDER_FILE: Final = "payment-provider.json"
_PLAIN: Final = re.compile(r"[^\s'\"][^\r\n]*")
_POLL_SECONDS: Final = 0.1
_SAVE_SECONDS: Final = 1.0
USERS: Final = (
    DemoUser(
        sub="olivia",
        name="Olivia Owner",
        email="olivia@demo.example",
        org_id=TENANT,
        role="owner",
    ),
    DemoUser(
        sub="adam",
        name="Adam Admin",
        email="adam@demo.example",
        org_id=TENANT,
        role="admin",
    ),
    DemoUser(
        sub="mia",
        name="Mia Member",
        email="mia@demo.example",
        org_id=TENANT,
        role="member",
    ),
    DemoUser(sub="nora", name="Nora Newcomer", email="nora@new.example"),
    DemoUser(sub="otto", name="Otto Operator", email="otto@vendor.example", is_operator=True),
)
OPERATORS: Final = tuple(user for user in USERS if user.is_operator)


class DemoFile:
    """The demo's own settings, in a file that only its owner may read; it gets those that it
    lacks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.generated = generated_settings()
        self.values = dict[str, str]()
        self.save({**self.generated, **read_demo_file(path)})

    def save(self, more: Mapping[str, str]) -> None:
        """Write these values beside the others; an empty value removes the name."""
        self.values = {name: value for name, value in {**self.values, **more}.items() if value}
        text = "".join(f"{name}={_quoted(value)}\n" for name, value in self.values.items())
        write_private(
            self._path, f"# Made by `tenantry demo`; for this machine only.\n{text}".encode()
        )


def read_demo_file(path: Path) -> dict[str, str]:
    """Read the settings of a demo; empty without one."""
    values = dotenv_values(path, interpolate=False) if path.exists() else {}
    return {name: value for name, value in values.items() if value}


def _quoted(value: str) -> str:
    """Quote a value that dotenv would not read as it is."""
    if _PLAIN.fullmatch(value) and " #" not in value:
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


async def seed(settings: Settings, conninfo: str, *, has_keys: bool) -> tuple[str, str] | None:
    """Create the demo tenant, its projects, and without ``has_keys`` its keys; return the new live
    and test key. With a new tenant comes the one in trouble.

    Return None if the tenant and the keys exist.
    """
    owner = USERS[0]
    wanted = TenantInput(
        name="Demo Company",
        owner_email=owner.email or "",
        owner_id=owner.sub,
        stripe_customer_id=CUSTOMER,
        plan="free",
    )
    async with Database(conninfo, pool_size=1) as database:
        services = operator_services(
            settings, database, asks_provider=False, peppers=settings.peppers
        )
        try:
            await services.tenants.put(BY_OPERATOR, TENANT, wanted, only_new=True)
        except TenantExistsError:
            return None if has_keys else await _create_keys(services.api_keys)
        projects = ProjectService(database, settings.billing.catalog, system_clock)
        for mode, project in ((Mode.LIVE, "First project"), (Mode.TEST, "First test project")):
            principal = replace(operator_principal(TENANT), mode=mode)
            await projects.create(principal, BY_OPERATOR, project, None, None)
        await troubled_tenant.seed(services, settings, database)
        return await _create_keys(services.api_keys)


async def _create_keys(keys: ApiKeyService) -> tuple[str, str]:
    """Create the demo's keys; return the live and the test key."""
    live, test = [
        await keys.create(
            replace(operator_principal(TENANT), mode=mode),
            BY_OPERATOR,
            KeyTerms(
                name=f"Demo {mode} key",
                scopes=(),
                access_level=AccessLevel.OWNER,
                mode=mode,
            ),
            claim=None,
        )
        for mode in (Mode.LIVE, Mode.TEST)
    ]
    return live.secret, test.secret


@asynccontextmanager
async def _across_tenants(conninfo: str) -> AsyncIterator[Connection]:
    async with (
        Database(conninfo, pool_size=1) as database,
        database.transaction(ACROSS_TENANTS) as connection,
    ):
        yield connection


class AccountTimes(NamedTuple):
    """When a new account of the payment provider begins, and up to when it has a history."""

    begin: datetime
    present: datetime


async def account_times(conninfo: str, now: datetime) -> AccountTimes:
    """Return the times of a new account. The present is ``now``, or the second after the newest
    event, which may be ahead of the clock; only a ledger without events gets a history.
    """
    async with _across_tenants(conninfo) as connection:
        newest = from_epoch(await ledger_queries_store.newest_second(connection))
    if newest is None:
        return AccountTimes(now - troubled_tenant.HISTORY, now)
    present = max(now, newest + timedelta(seconds=1))
    return AccountTimes(present, present)


async def has_other_tenants(conninfo: str) -> bool:
    """Whether the database has tenants, but not the demo's."""
    async with _across_tenants(conninfo) as connection:
        return await tenants_store.has_tenants_without_customer(connection, TENANT, CUSTOMER)


class PersistentProvider(Simulator):
    """A payment provider that writes its account to ``file`` after each request and each second of
    changes.

    `run` restores the account of the previous run. Simulated time continues from there, or from the
    begin of a new account, and reaches the present of ``times`` at least. What became due meanwhile
    happens in `begin`, once the service accepts events.
    """

    def __init__(self, file: Path, *, secret_key: str, seed: int, times: AccountTimes) -> None:
        self._file = file
        self._has_begun = threading.Event()
        self._is_present = threading.Event()
        self._written = b""
        self._previous = _read(file)
        start = times.begin if self._previous is None else from_epoch(self._previous.now)
        self._behind = max(times.present - start, timedelta(0))
        self.has_new_history = self._previous is None and times.begin < times.present
        super().__init__(
            secret_key=secret_key,
            seed=seed,
            prices={},
            start=start,
            running=True,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
        self._save()

    def begin(self) -> None:
        """Let time reach the present, and return once the events of that time are sent: what is
        bought earlier would expire with it. Any thread but that of `run` may call it.
        """
        self._has_begun.set()
        self._is_present.wait()

    async def run(self) -> None:
        """Do what becomes due, until canceled; then save the account."""
        if self._previous is not None:
            self.restore(self._previous)
        try:
            while not self._has_begun.is_set():  # noqa: ASYNC110  # another thread sets it
                await asyncio.sleep(_POLL_SECONDS)
            await self.advance(self._behind)
            self._is_present.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(super().run())
                while True:
                    self._save()
                    await asyncio.sleep(_SAVE_SECONDS)
        finally:
            self._is_present.set()
            self._save(always=True)

    def _save(self, *, always: bool = False) -> None:
        """Write the account if more than its time has changed."""
        state = self.state()
        content = replace(state, now=0).encode()
        if always or content != self._written:
            self._written = content
            write_private(self._file, state.encode())


def _read(file: Path) -> AccountState | None:
    try:
        return AccountState.decode(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("cannot read %s, so the payment provider starts empty: %s", file, error)
        return None
