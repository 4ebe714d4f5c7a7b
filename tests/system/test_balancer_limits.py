"""Limits that the example load balancers enforce on foreign addresses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tenantry.integrations.oidc.claim_checks import MAX_TOKEN_BYTES
from tenantry.server.asgi_types import Receive, Scope, Send
from tests.support.http_line import Line
from tests.support.proxies import BALANCERS, running_balancer
from tests.support.serving import LOOPBACK, served

MOST: Final = 100
UNTRUSTED_NETWORK: Final = "192.0.2.0/24"


class Application:
    """Answers what it is asked; below ``/held`` once it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.held = asyncio.Semaphore(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                await send({"type": f"{(await receive())['type']}.complete"})
            return
        if scope["path"] == "/held":
            self.held.release()
            await self.let_go.wait()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
        )
        await send({"type": "http.response.body"})


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture(params=BALANCERS)
async def balancer(
    request: pytest.FixtureRequest, application: Application, tmp_path: Path
) -> AsyncIterator[str]:
    """The address of a server for which this machine is a remote one."""
    async with served(application) as address:
        port = int(address.rpartition(":")[2])
        async with running_balancer(
            request.param, tmp_path, [port, port], UNTRUSTED_NETWORK
        ) as front:
            yield f"http://{LOOPBACK}:{front}"
        application.let_go.set()


async def status(address: str, path: bytes, token: bytes = b"") -> int:
    line = await Line.to(address)
    credential = b"Authorization: Bearer " + token + b"\r\n" if token else b""
    await line.send(
        b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n" + credential + b"Connection: close\r\n\r\n"
    )
    found, _ = await line.head()
    line.close()
    return found


async def test_metrics_and_readiness_are_hidden(balancer: str) -> None:
    assert [await status(balancer, path) for path in (b"/metrics", b"/readyz", b"/healthz")] == [
        404,
        404,
        200,
    ]


async def test_longest_token_passes(balancer: str) -> None:
    assert await status(balancer, b"/healthz", b"a" * MAX_TOKEN_BYTES) == 200


async def test_address_has_so_much_under_way_and_no_more(
    balancer: str, application: Application
) -> None:
    lines = [await Line.to(balancer) for _ in range(MOST)]
    for line in lines:
        await line.send(b"GET /held HTTP/1.1\r\nHost: a\r\n\r\n")
        await application.held.acquire()
    # HAProxy takes in no such connection
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        assert await status(balancer, b"/healthz") == 429
    application.let_go.set()
    for line in lines:
        assert (await line.answer())[0] == 200
        await line.send(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await line.answer())[0] == 200
        line.close()
