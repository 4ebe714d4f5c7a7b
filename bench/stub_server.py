"""The service's hot routes without a database: ``python -m bench.stub_server PORT SECRET PLANS``.

It is the service, wired by its own ``tenantry.app``, but for what its store says: a key is always found, and it is a
tenant's with 20 projects; a batch of events is always settled, unread and unwritten. So the fold is left out too, and
everything that waits for PostgreSQL, while batches are formed as ever.
"""

import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Final

import msgspec

from bench.asgi import serve
from bench.support import PEPPER, PROJECTS
from tenantry.app import build_app
from tenantry.auth import authentication
from tenantry.auth.authentication_store import KeyQuery, KeyRow
from tenantry.billing import ledger
from tenantry.db.database import Database
from tenantry.domain.access import Mode
from tenantry.domain.projects import Project
from tenantry.server.asgi_types import AsgiApp, Receive, Scope, Send
from tenantry.settings import load

_NOTHING: Final = SimpleNamespace(entries=(), unparked=())


class _Lane:
    """Where a connection would come from."""

    @contextlib.asynccontextmanager
    async def use(self, *, autocommit: bool = False) -> AsyncIterator[None]:
        del autocommit
        yield


def _no_lane(_database: Database, _options: str = "") -> _Lane:
    return _Lane()


def _key(projects: list[str]) -> KeyRow:
    return KeyRow(
        id="key_1",
        org_id="t1",
        scopes=["projects:read"],
        access_level="SCOPED",
        mode="live",
        expires_at=None,
        revoked_at=None,
        plan="free",
        subscription_status="none",
        suspended=False,
        deleted=False,
        digest=b"",
        lately_from=None,
        projects=projects,
    )


def _documents() -> list[str]:
    now = datetime.now(UTC)
    page = [Project(f"t1_{n}", "t1", f"Project {n}", None, Mode.LIVE, now, now) for n in range(PROJECTS)]
    return [msgspec.json.encode(project).decode() for project in page]


_WITHOUT_PROJECTS: Final = _key([])
_WITH_PROJECTS: Final = _key(_documents())


async def _find_keys(_connection: None, queries: Sequence[KeyQuery], _now: datetime) -> list[KeyRow]:
    return [_WITHOUT_PROJECTS if query.window is None else _WITH_PROJECTS for query in queries]


async def _settle(*_: object) -> SimpleNamespace:
    return _NOTHING


async def _write(*_: object, **__: object) -> None:
    """Nothing."""


def build(secret: str, catalog: str) -> AsgiApp:
    """The service with a store of constants; ``catalog`` is the file of its plans."""
    Database.lane = _no_lane  # type: ignore[assignment, method-assign]
    authentication.find_keys = _find_keys  # type: ignore[assignment, attr-defined]
    ledger.settle, ledger.write = _settle, _write  # type: ignore[assignment]
    secrets = {"PROVIDER_WEBHOOK_SECRET": secret, "API_KEY_PEPPER": PEPPER, "SESSION_SECRET": PEPPER}
    service = build_app(load({**secrets, "DATABASE_URL": "embedded", "TENANTRY_PLANS": catalog}), "")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await service(scope, receive, send)
            return
        scope["state"].update(service.state)
        while (message := await receive())["type"] != "lifespan.shutdown":  # it would open the database
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    return app


if __name__ == "__main__":
    serve(build(secret=sys.argv[2], catalog=sys.argv[3]), int(sys.argv[1]))
