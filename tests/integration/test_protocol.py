"""How answers leave: as a whole or in parts, the client sees no difference; and how long a connection stays."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tenantry.http.front import Front, HotRoutes
from tenantry.http.metrics import Metrics
from tenantry.http.problems import Header
from tenantry.http.protocol import LeanProtocol
from tenantry.http.raw import WHOLE_ANSWER, RawAnswer, RawRequest, Receive, Scope, Send
from tests.support.browser import served
from tests.support.http_line import Line

HOST: Final = b"Host: a\r\n\r\n"


class Application:
    """Answers with the path, as a whole below ``/whole/``; below ``/held/`` once it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                await send({"type": f"{(await receive())['type']}.complete"})
            return
        body = scope["path"].encode()
        if body.startswith(b"/held"):
            await self.let_go.wait()
        headers: list[Header] = [(b"content-length", b"%d" % len(body)), (b"x-query", scope["query_string"])]
        if body == b"/whole/split":
            headers.append((b"x-split", b"a\r\nx-forged: b"))
        at_once: Callable[..., Any] | None = scope.pop(WHOLE_ANSWER, None)
        if at_once is None or not body.startswith(b"/whole") or not at_once(200, headers, body):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
async def address(application: Application) -> AsyncIterator[str]:
    async with served(application, http=LeanProtocol, keep_alive=1) as address:
        yield address
        application.let_go.set()


@pytest.fixture
async def line(address: str) -> AsyncIterator[Line]:
    line = await Line.to(address)
    yield line
    line.close()


@pytest.mark.parametrize("end", [b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b" HTTP/1.1\r\nConnection: close\r\n"])
async def test_answer_is_the_same_as_a_whole_and_in_parts(address: str, end: bytes) -> None:
    answers = []
    for path in (b"/parts/a", b"/whole/a"):
        line = await Line.to(address)
        await line.send(b"GET " + path + b"?q=1" + end + HOST)
        status, headers, body = await line.answer()
        assert body == path
        assert "date" in headers
        answers.append((status, {**headers, "date": ""}, await line.is_closed()))
    assert answers[0] == answers[1]


async def test_head_gets_no_body(line: Line) -> None:
    for _ in range(2):
        await line.send(b"HEAD /whole/a HTTP/1.1\r\n" + HOST)
        assert (await line.head())[1]["content-length"] == "8"
    await line.send(b"GET /whole/b HTTP/1.1\r\n" + HOST)
    assert (await line.answer())[2] == b"/whole/b"


async def test_requests_sent_at_once_are_answered_in_their_order(line: Line, application: Application) -> None:
    paths = [b"/held/1", b"/whole/2", b"/parts/3", b"/whole/4"]
    await line.send(b"".join(b"GET " + path + b" HTTP/1.1\r\n" + HOST for path in paths))
    application.let_go.set()
    assert [(await line.answer())[2] for _ in paths] == paths


async def test_header_with_a_line_break_is_not_sent(line: Line) -> None:
    await line.send(b"GET /whole/split HTTP/1.1\r\n" + HOST)
    status, headers, _ = await line.answer()
    assert (status, "x-split" in headers, "x-forged" in headers) == (500, False, False)


async def test_idle_connection_is_closed_and_one_in_use_is_not(
    address: str, line: Line, application: Application
) -> None:
    await line.send(b"GET /whole/a HTTP/1.1\r\n" + HOST)
    assert (await line.answer())[0] == 200
    await line.send(b"GET /held/b HTTP/1.1\r\n" + HOST)
    for _ in range(2):
        idle = await Line.to(address)
        await idle.send(b"GET /whole/a HTTP/1.1\r\n" + HOST)
        assert (await idle.answer())[0] == 200
        assert await idle.is_closed()
    application.let_go.set()
    assert (await line.answer())[2] == b"/held/b"
    assert await line.is_closed()


async def test_client_that_keeps_its_body_back_is_answered_and_the_connection_ends(line: Line) -> None:
    await line.send(b"POST /whole/a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 9\r\n" + HOST)
    status, headers, body = await line.answer()
    assert (status, headers["connection"], body) == (200, "close", b"/whole/a")
    assert await line.is_closed()


async def test_connection_stays_timed_where_the_answer_came_before_the_body(line: Line) -> None:
    await line.send(b"POST /whole/a HTTP/1.1\r\nContent-Length: 4\r\n" + HOST, b"body")
    assert (await line.answer())[2] == b"/whole/a"
    assert await line.is_closed()


async def test_client_that_is_gone_is_no_fault(address: str, application: Application) -> None:
    gone = await Line.to(address)
    await gone.send(b"GET /held/a HTTP/1.1\r\n" + HOST)
    gone.close()
    application.let_go.set()
    line = await Line.to(address)
    await line.send(b"GET /whole/a HTTP/1.1\r\n" + HOST)
    assert (await line.answer())[0] == 200
    line.close()


async def test_requests_leave_nothing_for_the_garbage_collector(application: Application) -> None:
    async def greet(_: RawRequest) -> RawAnswer:
        return RawAnswer.text(200, "hello")

    hot = HotRoutes()
    hot.add("GET", "/hot", greet)
    front = Front(hot, application, Metrics(several_processes=False))
    async with served(front, http=LeanProtocol) as address:
        line = await Line.to(address)
        gc.collect()
        gc.disable()
        try:
            for path in (b"/hot", b"/parts") * 20:
                await line.send(b"GET " + path + b" HTTP/1.1\r\n" + HOST)
                assert (await line.answer())[0] == 200
            kept = sum(isinstance(thing, RequestResponseCycle) for thing in gc.get_objects())
        finally:
            gc.enable()
        line.close()
    assert kept <= 1  # the connection's last
