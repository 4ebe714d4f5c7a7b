"""The servers of `bench.upper_bounds`: ``python -m bench.upper_bound_server NAME PORT SECRET
PLANS``.

``constant`` answers OK. ``no-database`` is the service as `tenantry.app` builds it, with another
store: each key is found and belongs to a tenant with 20 projects; each batch of events is accepted
and discarded. So batches are formed as usual, and the fold and all waiting for PostgreSQL are left
out.
"""

import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Final

import uvicorn

from bench.support import PEPPER, project_documents
from bench.upper_bounds import CONSTANT
from tenantry.app import build_app
from tenantry.auth import authentication
from tenantry.auth.authentication_store import KeyQuery, KeyRow
from tenantry.billing import ingest
from tenantry.cli.serve import bind, server_config
from tenantry.common import process
from tenantry.db.connection import Rows
from tenantry.db.database import Lane
from tenantry.server.asgi_types import AsgiApp, Receive, Scope, Send
from tenantry.settings import load

_NO_ENTRIES: Final = SimpleNamespace(entries=(), unparked=())
_HEADERS: Final = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"2")]


@contextlib.asynccontextmanager
async def _no_connection(_lane: Lane, *, autocommit: bool = False) -> AsyncIterator[None]:
    """Replace `Lane.use`."""
    del autocommit
    yield


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
        access=None,
        suspended=False,
        deleted=False,
        digest=b"",
        recent_address=None,
        external_id=None,
        metadata=None,
        page=projects,
    )


_WITHOUT_PROJECTS: Final = _key([])
_WITH_PROJECTS: Final = _key(project_documents())


async def _look_up(*_: object) -> list[Rows]:
    return []


def _keys_in(_answer: Sequence[Rows], queries: Sequence[KeyQuery]) -> list[KeyRow]:
    return [_WITHOUT_PROJECTS if query.window is None else _WITH_PROJECTS for query in queries]


async def _settle(*_: object) -> SimpleNamespace:
    return _NO_ENTRIES


async def _write(*_: object, **__: object) -> None:
    """Discard the batch."""


async def _answer_ok(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, if there is one, and answer OK."""
    if scope["method"] == "POST":
        while (await receive()).get("more_body", False):
            pass
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": b"OK"})


def _without_lifespan(service: AsgiApp, state: dict[str, object]) -> AsgiApp:
    """Answer lifespan events with this state instead of opening the database."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await service(scope, receive, send)
            return
        scope["state"].update(state)
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    return app


def main(name: str, port: int, secret: str, catalog: str) -> None:
    """Serve one of the two in one process, with the service's own server."""
    secrets = {
        "PROVIDER_WEBHOOK_SECRET": secret,
        "API_KEY_PEPPER": PEPPER,
        "SESSION_SECRET": PEPPER,
    }
    settings = load({**secrets, "DATABASE_URL": "embedded", "TENANTRY_PLANS": catalog})
    if name == CONSTANT:
        app = _without_lifespan(_answer_ok, {})
    else:
        Lane.use = _no_connection  # type: ignore[assignment, method-assign]
        Lane.look_up = _look_up  # type: ignore[method-assign]
        authentication.keys_in = _keys_in  # type: ignore[assignment, attr-defined]
        ingest.apply_batch, ingest.write_and_commit = _settle, _write  # type: ignore[assignment]
        service = build_app(settings, "")
        app = _without_lifespan(service, service.state)
    config = server_config(settings, app)
    process.set_for_serving()
    with bind("127.0.0.1", port) as bound:
        uvicorn.Server(config).run(sockets=[bound])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
