"""Header lines, trailers and forwarded addresses: counted by the server's protocol as they
arrive.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from tenantry.server.asgi_types import HotRequest, HotResponse, Receive, Scope, Send
from tenantry.server.client_limits import MAX_CHUNKS, MAX_FORWARDED, MAX_HEADERS
from tenantry.server.dispatch import Dispatcher, HotRoutes
from tenantry.server.metrics import Metrics
from tenantry.server.protocol import HttpProtocol
from tests.support.http_line import Line
from tests.support.serving import served

GET = b"GET /%s HTTP/1.1\r\nHost: a\r\n"


async def answer_client(request: HotRequest) -> HotResponse:
    return HotResponse.text(200, str(request.scope["client"][0]))


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    body = str(scope["client"][0]).encode()
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    hot = HotRoutes()
    hot.add(None, "/hot", answer_client)
    dispatcher: Any = Dispatcher(hot, application, Metrics(several_processes=False))
    behind_proxy: Any = ProxyHeadersMiddleware(dispatcher, "127.0.0.1")
    async with served(behind_proxy, HttpProtocol) as url:
        line = await Line.to(url)
        yield line
        line.close()


def forwarded(number: int) -> bytes:
    return b"X-Forwarded-For: 192.0.2.7" + b", 127.0.0.1" * (number - 1) + b"\r\n"


@pytest.mark.parametrize("path", [b"hot", b"other"])
async def test_line_after_the_last_permitted_one_ends_the_request(line: Line, path: bytes) -> None:
    await line.send(GET % path + b"X: a\r\n" * (MAX_HEADERS + 1))  # and no end of the head
    status, _, body = await line.answer()
    assert (status, b"32768 bytes or 100 headers" in body) == (431, True)
    assert await line.is_closed()


async def test_trailers_count_like_chunks(line: Line) -> None:
    head = b"POST /other HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    await line.send(head + b"1\r\na\r\n0\r\n" + b"X: a\r\n" * (MAX_CHUNKS + 1))
    status, _, body = await line.answer()
    assert (status, b"more than 4096 chunks and trailers" in body) == (400, True)


@pytest.mark.parametrize("path", [b"hot", b"other"])
async def test_addresses_of_proxies_are_bounded(line: Line, path: bytes) -> None:
    await line.send(GET % path + forwarded(MAX_FORWARDED) + b"\r\n")
    assert (await line.answer())[::2] == (200, b"192.0.2.7")
    await line.send(GET % path + forwarded(MAX_FORWARDED + 1) + b"\r\n")
    status, _, body = await line.answer()
    assert (status, b"names more than 100 addresses" in body) == (431, True)
