"""The whole service in the test's own event loop, on a real database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2

from tenantry.app import build_app
from tenantry.common.clock import Clock, Timeouts, system_clock
from tenantry.server.asgi_types import AsgiApp
from tenantry.server.dispatch import Dispatcher
from tenantry.settings import EMBEDDED, Settings, load
from tests.support.direct_requests import answering_directly
from tests.support.patience import PATIENT
from tests.support.pgbouncer import pooler_of

WEBHOOK_SECRET: Final = "whsec_of_the_tests_0123456789"
PEPPER: Final = "pepper-of-the-tests-0123456789abcdef"
OPERATOR_TOKEN: Final = "operator+token+of+the+tests+0123456789"
BASE_URL: Final = "http://tenantry.test"


def make_settings(**values: str) -> Settings:
    """Settings as the environment would give them; names are those of the variables."""
    defaults = {
        "DATABASE_URL": EMBEDDED,
        "PROVIDER_WEBHOOK_SECRET": WEBHOOK_SECRET,
        "API_KEY_PEPPER": PEPPER,
        "SESSION_SECRET": "session-secret-of-the-tests-0123456789",
        "OPERATOR_TOKEN": OPERATOR_TOKEN,
        "RUN_JOBS": "false",
    }
    return load({**defaults, **values})


@asynccontextmanager
async def running_app(
    conninfo: str,
    timeouts: Timeouts = PATIENT,
    /,
    *,
    clock: Clock = system_clock,
    **values: str,
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the whole service on this database; ``values`` are settings, by variable name."""
    app = make_app(conninfo, clock, timeouts, **values)
    async with lifespan(app), client_of(app) as client:
        yield client


def make_app(
    conninfo: str, clock: Clock = system_clock, timeouts: Timeouts = PATIENT, **values: str
) -> AsgiApp:
    """The whole service on this database, not started yet; ``values`` are settings, by variable
    name.
    """
    if pooler := pooler_of(conninfo):
        values = {"DATABASE_URL": conninfo, "DATABASE_POOLER_URL": pooler, **values}
    return build_app(make_settings(**values), conninfo, clock, timeouts=timeouts)


def client_of(app: AsgiApp) -> httpx2.AsyncClient:
    """A client that calls the application in this process; the service answers its hot routes as
    behind its own server.
    """
    if isinstance(app, Dispatcher):
        app = answering_directly(app)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
    return httpx2.AsyncClient(transport=transport, base_url=BASE_URL, timeout=30)


@asynccontextmanager
async def lifespan(app: AsgiApp) -> AsyncIterator[None]:
    """The application started, and stopped after the block (ASGI lifespan protocol)."""
    to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    from_app: asyncio.Queue[Any] = asyncio.Queue()
    running = asyncio.create_task(_run(app, to_app, from_app))
    await to_app.put({"type": "lifespan.startup"})
    started = await from_app.get()
    if started["type"] != "lifespan.startup.complete":
        raise RuntimeError(f"the application did not start: {started}")
    try:
        yield
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        await running


async def _run(
    app: AsgiApp, to_app: "asyncio.Queue[dict[str, Any]]", from_app: "asyncio.Queue[Any]"
) -> None:
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    await app(scope, to_app.get, from_app.put)
