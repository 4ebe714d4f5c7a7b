"""The service's hot routes without a database: ``python -m bench.stub_server PORT SECRET``.

Everything is the service's own, wired as it is there, but for what the store would say: a key is always found, and it
is a tenant's with 20 projects; a batch of events is always settled, unread and unwritten. So the fold is left out
too, and everything that waits for PostgreSQL, while batches are formed as ever.
"""

import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final

from bench.asgi import serve
from bench.support import PEPPER, PROJECTS
from tenantry.domain.access import Mode
from tenantry.domain.api_keys import Pepper
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.plans import parse_catalog
from tenantry.domain.projects import Project
from tenantry.gateways.provider.signature import SignatureVerifier
from tenantry.http import auth, projects, webhooks
from tenantry.http.auth import GatewayCheck
from tenantry.http.front import Front, HotRoutes
from tenantry.http.metrics import Metrics
from tenantry.http.projects import ProjectList
from tenantry.http.raw import Receive, Scope, Send
from tenantry.http.webhooks import WebhookEndpoint
from tenantry.kit.clock import system_clock
from tenantry.services import authentication, ledger
from tenantry.services.admission import Admission
from tenantry.services.authentication import Authenticator
from tenantry.services.projects import ProjectService
from tenantry.services.rate_limits import RateLimiter
from tenantry.services.webhooks import WebhookService
from tenantry.store import projects as project_store
from tenantry.store.access import KeyRow

_CATALOG: Final = '[[plans]]\nid = "free"\n[[plans]]\nid = "pro"\nstripe_price_id = "price_pro"\n'
_NOTHING: Final = SimpleNamespace(entries=(), healed=())


class _Connection:
    async def commit(self) -> None:
        """Nothing."""


class _Lane:
    """Where a connection comes from."""

    @contextlib.asynccontextmanager
    async def use(self, *, autocommit: bool = False) -> AsyncIterator[_Connection]:
        del autocommit
        yield _Connection()


async def _find_keys(_connection: object, digests: Sequence[bytes]) -> dict[bytes, KeyRow]:
    return {
        digest: KeyRow(
            digest,
            "key_1",
            "t1",
            ["projects:read"],
            "SCOPED",
            "live",
            None,
            None,
            "free",
            "none",
            suspended=False,
            deleted=False,
        )
        for digest in digests
    }


def _pages(now: datetime) -> Callable[..., Awaitable[list[list[Project]]]]:
    page = [Project(f"proj_{n:032x}", "t1", f"Project {n}", None, Mode.LIVE, now, now) for n in range(PROJECTS)]

    async def read_pages(_connection: object, queries: Sequence[object]) -> list[list[Project]]:
        return [page for _ in queries]

    return read_pages


async def _settle(*_: object) -> SimpleNamespace:
    return _NOTHING


async def _write(*_: object, **__: object) -> None:
    """Nothing."""


async def _nothing_else(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})
        return
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await send({"type": "lifespan.shutdown.complete"})


def build(secret: str) -> Front:
    """The hot routes, as ``tenantry.main`` wires them."""
    authentication.find_keys = _find_keys  # type: ignore[attr-defined, assignment]
    project_store.read_pages = _pages(datetime.now(UTC))  # type: ignore[assignment]
    ledger.settle, ledger.write = _settle, _write  # type: ignore[assignment]
    lane: Any = _Lane()
    nobody: Any = None
    metrics, catalog = Metrics(several_processes=False), parse_catalog(_CATALOG)
    policy, verifier = BillingPolicy(catalog), SignatureVerifier([secret], 300)
    authenticator = Authenticator(
        keys=lane, users=lane, peppers=[Pepper(PEPPER.encode())], tokens=None, clock=system_clock
    )
    admission = Admission(authenticator, RateLimiter(lane, catalog, system_clock, lambda _: None))
    events = WebhookService(lane, policy, nobody, system_clock)
    hot = HotRoutes()
    hot.add_any_method(webhooks.PATH, WebhookEndpoint(events, verifier, metrics, system_clock, policy).handle)
    hot.add("GET", projects.PATH, ProjectList(admission, ProjectService(nobody, lane, catalog, system_clock)).handle)
    hot.add_prefix(auth.VERIFY_PREFIX, auth.VERIFY_TEMPLATE, GatewayCheck(admission).handle)
    return Front(hot, _nothing_else, metrics)


def main(port: int, secret: str) -> None:
    """Serve until a signal comes."""
    serve(build(secret), port)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
