"""The two paths of a request through the server, which clients cannot distinguish; and idle
connections.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Final

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tenantry.domain.errors import PayloadTooLargeError
from tenantry.server.asgi_types import DirectRequest, HotRequest, HotResponse, Receive, Scope, Send
from tenantry.server.dispatch import Dispatcher, HotRoutes
from tenantry.server.metrics import Metrics
from tenantry.server.protocol import HotRequestCycle, HttpProtocol
from tests.support.cases import cases
from tests.support.http_line import Line
from tests.support.serving import served

HOST: Final = b"Host: a\r\n\r\n"
LARGE: Final = b"x" * 1_000_000
_FORGED: Final = {b"/hot/split": b"a\r\nx-forged: b", b"/hot/feed": b"a\nb", b"/hot/nul": b"a\x00b"}


class Application:
    """A dispatcher with hot routes that respond with the path; below ``/hot/held/`` after their
    release.

    An ASGI application gives the same response on other routes. With ``is_direct`` a batch answers
    the hot routes, without a task of the server for each request.
    """

    def __init__(self, *, is_direct: bool) -> None:
        self._batches: set[asyncio.Task[None]] = set()
        self.request: HotRequest | None = None
        """The last one that began."""
        self.began = asyncio.Event()
        self.release = asyncio.Event()
        self.paths: list[str] = []
        self.clients: list[str] = []
        self.metrics = Metrics(several_processes=False)
        hot = HotRoutes()
        hot.add_prefix("/hot/", "/hot/{anything}", self.answer, self if is_direct else None)
        self.front = Dispatcher(hot, self, self.metrics)

    def begin(self, request: DirectRequest) -> bool:
        self.request = request
        self.began.set()
        if request.path == "/hot/cancelled":
            return False
        batch = asyncio.create_task(self._answer_later(request))
        self._batches.add(batch)
        batch.add_done_callback(self._batches.discard)
        return True

    def finish(self, request: HotRequest) -> HotResponse | None:
        assert isinstance(request.answer, HotResponse)
        return None if request.path == "/hot/unfinished" else request.answer

    async def _answer_later(self, request: DirectRequest) -> None:
        response = await self.answer(request)
        if not request.done():
            request.set_result(response)

    async def answer(self, request: HotRequest) -> HotResponse:
        self.paths.append(request.path)
        self.clients.append(request.scope["client"][0])
        way = b"long" if "http_version" in request.scope else b"short"
        headers = [(b"x-way", way), (b"x-query", request.scope["query_string"])]
        body = request.path.encode()
        if body.startswith(b"/hot/held"):
            await self.release.wait()
        if body == b"/hot/cancelled":
            raise asyncio.CancelledError
        if body in _FORGED:
            headers.append((b"x-split", _FORGED[body]))
        if body == b"/hot/echo":
            try:
                body = await request.body()
            except PayloadTooLargeError:
                return HotResponse(413, headers)
        if body == b"/hot/large":
            body = LARGE
        return HotResponse(200, headers, body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                await send({"type": f"{(await receive())['type']}.complete"})
            return
        body = scope["path"].encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture(params=[False, True], ids=["task", "direct"])
def application(request: pytest.FixtureRequest) -> Application:
    return Application(is_direct=request.param)


@pytest.fixture
async def address(application: Application) -> AsyncIterator[str]:
    async with served(application.front, http=HttpProtocol, keep_alive=1) as address:
        yield address
        application.release.set()


@pytest.fixture
async def line(address: str) -> AsyncIterator[Line]:
    line = await Line.to(address)
    yield line
    line.close()


async def is_closed_as_idle(address: str, path: bytes = b"/other/a") -> None:
    """A connection that is made now is used, and closed once it has been idle for too long: so
    would others be.
    """
    idle = await Line.to(address)
    await idle.send(b"GET " + path + b" HTTP/1.1\r\n" + HOST)
    assert (await idle.answer())[0] == 200
    assert await idle.is_closed()


@pytest.mark.parametrize(
    "end", [b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b" HTTP/1.1\r\nConnection: close\r\n"]
)
async def test_response_is_the_same_on_both_paths(address: str, end: bytes) -> None:
    answers = {}
    for path in (b"/hot/a", b"/%68ot/a"):
        line = await Line.to(address)
        await line.send(b"GET " + path + b"?q=1&r=%41" + end + b"X-Request-Id: one\r\n" + HOST)
        status, headers, body = await line.answer()
        way = headers.pop("x-way")
        answers[way] = status, {**headers, "date": ""}, body, await line.is_closed()
    short, long = answers["short"], answers["long"]
    assert short == long
    assert short[:3] == (
        200,
        short[1]
        | {"x-request-id": "one", "x-query": "q=1&r=%41", "content-length": "6", "date": ""},
        b"/hot/a",
    )


@cases(
    "request_",
    [
        b"GET /hot/a?b#c HTTP/1.1\r\n",
        b"GET /hot/" + b"a" * 300 + b" HTTP/1.1\r\n",
        b"GET /hot/a%2fb HTTP/1.1\r\n",
        b"GET /hot/a;b=1 HTTP/1.1\r\n",
        b"GET http://a/hot/b HTTP/1.1\r\n",
        b"DELETE /hot/a HTTP/1.1\r\n",
        b"GET /hot/a HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AA\r\n",
    ],
)
async def test_other_requests_go_through_asgi(address: str, request_: bytes) -> None:
    line = await Line.to(address)
    await line.send(request_ + HOST)
    status, headers, _ = await line.answer()
    assert (status, headers["x-way"]) == (200, "long")
    line.close()


@cases(
    ("way", "head", "parts"),
    [
        ("short", b"Content-Length: 9\r\n", [b"some body"]),
        ("short", b"Content-Length: 9\r\n", [b"some", b" ", b"body"]),
        ("short", b"Content-Length: 0\r\n", []),
        ("short", b"", []),
        ("short", b"Content-Length: 99999\r\n", [b"x" * 50_000, b"x" * 49_999]),
        ("long", b"Content-Length: 100000\r\n", [b"x" * 50_000, b"x" * 50_000]),
        (
            "long",
            b"Transfer-Encoding: chunked\r\n",
            [b"4\r\nsome\r\n", b"5\r\n body\r\n", b"0\r\n\r\n"],
        ),
    ],
)
async def test_handler_gets_the_whole_body(
    address: str, way: str, head: bytes, parts: list[bytes]
) -> None:
    line = await Line.to(address)
    for _ in range(2):
        await line.send(b"POST /hot/echo HTTP/1.1\r\n" + head + HOST, *parts)
        status, headers, body = await line.answer()
        sent = b"some body" if b"chunked" in head else b"".join(parts)
        assert (status, headers["x-way"], body) == (200, way, sent)
    line.close()


async def test_body_over_the_limit_is_rejected_before_it_is_sent(line: Line) -> None:
    await line.send(b"POST /hot/echo HTTP/1.1\r\nContent-Length: 1048577\r\n" + HOST)
    assert (await line.answer())[0] == 413


@cases(
    "head",
    [
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: +4\r\n",
        b"Content-Length: 4, 4\r\n",
        b"Content-Length: 0x4\r\n",
        b"Content-Length : 4\r\n",
    ],
)
async def test_ambiguous_length_is_rejected(
    address: str, application: Application, head: bytes
) -> None:
    line = await Line.to(address)
    await line.send(b"POST /hot/echo HTTP/1.1\r\n" + head + HOST + b"body")
    assert (await line.head())[0] == 400
    assert application.paths == []
    line.close()


async def test_head_gets_no_body(line: Line) -> None:
    for _ in range(2):
        await line.send(b"HEAD /hot/a HTTP/1.1\r\n" + HOST)
        assert (await line.head())[1]["content-length"] == "6"
    await line.send(b"GET /hot/b HTTP/1.1\r\n" + HOST)
    assert (await line.answer())[2] == b"/hot/b"


async def test_requests_sent_at_once_are_answered_in_their_order(
    line: Line, application: Application
) -> None:
    paths = [b"/hot/held/1", b"/hot/2", b"/other/3", b"/hot/4", b"/other/5"]
    await line.send(b"".join(b"GET " + path + b" HTTP/1.1\r\n" + HOST for path in paths))
    assert application.paths == ["/hot/held/1"]
    application.release.set()
    assert [(await line.answer())[2] for _ in paths] == paths


@cases("path", _FORGED)
async def test_header_with_a_control_character_is_not_sent(address: str, path: bytes) -> None:
    line = await Line.to(address)
    await line.send(b"GET " + path + b" HTTP/1.1\r\n" + HOST)
    status, headers, body = await line.answer()
    assert (status, "x-split" in headers, "x-forged" in headers) == (500, False, False)
    assert headers["x-request-id"] in body.decode()
    assert await line.is_closed()
    line.close()


async def test_idle_connection_is_closed_and_one_in_use_is_not(
    address: str, line: Line, application: Application
) -> None:
    await line.send(b"GET /hot/a HTTP/1.1\r\n" + HOST)
    assert (await line.answer())[0] == 200
    await line.send(b"GET /hot/held/b HTTP/1.1\r\n" + HOST)
    for path in (b"/hot/a", b"/other/a"):
        await is_closed_as_idle(address, path)
    application.release.set()
    assert (await line.answer())[2] == b"/hot/held/b"
    assert await line.is_closed()


@cases("path", [b"/hot/a", b"/hot/echo", b"/other/a"])
async def test_expect_continue_is_answered_immediately(address: str, path: bytes) -> None:
    line = await Line.to(address)
    for _ in range(2):
        await line.send(
            b"POST " + path + b" HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n" + HOST
        )
        assert (await line.head())[0] == 100
        await line.send(b"body")
        status, _, body = await line.answer()
        assert (status, body) == (200, b"body" if path == b"/hot/echo" else path)
    line.close()


@cases("path", [b"/hot/a", b"/other/a"])
async def test_http_1_0_client_gets_no_100_continue(address: str, path: bytes) -> None:
    line = await Line.to(address)
    await line.send(
        b"POST " + path + b" HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n", b"body"
    )
    status, _, body = await line.answer()
    assert (status, body) == (200, path)
    line.close()


async def test_body_of_a_request_to_upgrade_is_not_the_next_request(
    line: Line, application: Application
) -> None:
    body = b"GET /hot/b HTTP/1.1\r\n" + HOST
    head = (
        b"POST /hot/held/a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n"
        % len(body)
    )
    await line.send(head + HOST, body)
    application.release.set()
    assert (await line.answer())[2] == b"/hot/held/a"
    assert await line.is_closed()
    assert application.paths == ["/hot/held/a"]


async def test_body_of_a_get_is_not_waited_for(line: Line) -> None:
    await line.send(b"GET /hot/a HTTP/1.1\r\nContent-Length: 4\r\n" + HOST)
    assert (await line.answer())[2] == b"/hot/a"


async def test_request_after_a_late_body_is_answered(
    address: str, line: Line, application: Application
) -> None:
    await line.send(b"POST /other/a HTTP/1.1\r\nContent-Length: 4\r\n" + HOST)
    assert (await line.answer())[2] == b"/other/a"
    await line.send(b"body" + b"GET /hot/held/b HTTP/1.1\r\n" + HOST)
    await is_closed_as_idle(address)
    application.release.set()
    assert (await line.answer())[2] == b"/hot/held/b"


async def test_request_that_is_cancelled_is_answered_and_the_connection_ends(line: Line) -> None:
    await line.send(b"GET /hot/cancelled HTTP/1.1\r\n" + HOST)
    status, headers, _ = await line.answer()
    assert (status, headers["connection"], "x-request-id" in headers) == (500, "close", True)
    assert await line.is_closed()


@pytest.mark.parametrize("application", [True], indirect=True)
async def test_request_of_a_batch_is_cancelled_as_a_task_is(
    line: Line, application: Application
) -> None:
    await line.send(b"GET /hot/held/a HTTP/1.1\r\n" + HOST)
    await application.began.wait()
    assert isinstance(application.request, HotRequestCycle)
    application.request.cancel("the server stops")
    status, headers, _ = await line.answer()
    assert (status, headers["connection"]) == (500, "close")
    assert await line.is_closed()


@pytest.mark.parametrize("application", [True], indirect=True)
async def test_task_answers_what_a_batch_alone_cannot(line: Line, application: Application) -> None:
    await line.send(b"GET /hot/unfinished HTTP/1.1\r\n" + HOST)
    assert (await line.answer())[2] == b"/hot/unfinished"
    assert application.paths == ["/hot/unfinished", "/hot/unfinished"]  # the batch, then the task


async def test_connection_stays_timed_where_the_answer_came_before_the_body(line: Line) -> None:
    await line.send(b"POST /other/a HTTP/1.1\r\nContent-Length: 4\r\n" + HOST, b"body")
    assert (await line.answer())[2] == b"/other/a"
    assert await line.is_closed()


async def test_client_that_does_not_read_gets_no_further_responses(
    line: Line, application: Application
) -> None:
    asked = 40
    for _ in range(asked):
        await line.send(b"GET /hot/large HTTP/1.1\r\n" + HOST)
    assert len(application.paths) < asked / 2
    for _ in range(asked):
        assert (await line.answer())[2] == LARGE


async def test_disconnect_is_no_error(address: str, application: Application) -> None:
    for sent in (
        b"GET /hot/held/a HTTP/1.1\r\n" + HOST,
        b"POST /hot/b HTTP/1.1\r\nContent-Length: 4\r\n" + HOST,
    ):
        gone = await Line.to(address)
        await gone.send(sent, b"bo")  # of the body, or of another request
        gone.close()
    application.release.set()
    line = await Line.to(address)
    await line.send(b"GET /hot/c HTTP/1.1\r\n" + HOST)
    assert (await line.answer())[0] == 200
    line.close()
    assert application.paths == ["/hot/held/a", "/hot/c"]
    metrics = application.metrics.render().decode()
    for counted in (
        'method="GET",route="/hot/{anything}",status="200"} 2.0',
        'method="POST",route="/hot/{anything}",status="499"} 1.0',
    ):
        assert counted in metrics
    assert 'method="GET",route="/hot/{anything}",status="499"' not in metrics


async def go_on_once_it_ends(idle: Line, half: Line, application: Application) -> None:
    """A server that ends closes idle connections first."""
    assert await idle.is_closed()
    await half.send(b"dy")
    application.release.set()


async def test_pending_requests_are_answered_during_shutdown(application: Application) -> None:
    async with served(application.front, http=HttpProtocol) as address:
        line = await Line.to(address)
        await line.send(b"GET /hot/held/a HTTP/1.1\r\n" + HOST)
        half = await Line.to(address)
        await half.send(b"POST /hot/echo HTTP/1.1\r\nContent-Length: 4\r\n" + HOST, b"bo")
        ending = asyncio.create_task(go_on_once_it_ends(await Line.to(address), half, application))
    await ending
    for one, body in ((line, b"/hot/held/a"), (half, b"body")):
        status, _, answer = await one.answer()
        assert (status, answer) == (200, body)
        assert await one.is_closed()


async def test_trusted_proxy_provides_the_client_address(
    line: Line, application: Application
) -> None:
    for path in (b"/hot/a", b"/%68ot/a"):
        await line.send(
            b"GET " + path + b" HTTP/1.1\r\nX-Forwarded-For: 198.51.100.7, 203.0.113.9\r\n" + HOST
        )
        assert (await line.answer())[0] == 200
    assert application.clients == ["203.0.113.9", "203.0.113.9"]


async def test_requests_leave_nothing_for_the_garbage_collector(line: Line) -> None:
    gc.collect()
    gc.disable()
    try:
        for path in (b"/hot/a", b"/other") * 20:
            await line.send(b"GET " + path + b" HTTP/1.1\r\n" + HOST)
            assert (await line.answer())[0] == 200
        # by `type`: `isinstance` asks objects that stand for others, such as Django's, for theirs
        kept = [type(thing) for thing in gc.get_objects()]
    finally:
        gc.enable()
    assert (
        kept.count(RequestResponseCycle) + kept.count(HotRequestCycle) <= 2
    )  # the connection's last
