"""Load shedding as clients see it: real connections, and an application that waits."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Final

import pytest
import uvloop

from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry.server.cors import CORS_POLICY, CorsPolicy
from tenantry.server.load_shedding import OVERLOAD_DETECTOR, LoadSheddingProtocol, OverloadDetector
from tenantry.server.metrics import Metrics
from tests.support.http_line import Line
from tests.support.serving import served

API: Final = b"GET /api/v1/projects HTTP/1.1\r\nHost: a\r\n"
EVENT: Final = b"POST /api/v1/webhooks/payment-provider HTTP/1.1\r\nHost: a\r\n"
END: Final = b"\r\n"


class Application:
    """Answers each request with its body after its release; accepts one at a time."""

    def __init__(self) -> None:
        self.detector = OverloadDetector(Metrics(several_processes=False), minimum=1, initial=1)
        self.paths: list[str] = []
        self.release = asyncio.Event()
        self._has_begun = asyncio.Event()
        self.gone: Callable[[], None] = lambda: None
        """Called when a request ends whose client has disconnected."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            scope["state"][OVERLOAD_DETECTOR] = self.detector
            scope["state"][CORS_POLICY] = CorsPolicy(["https://app.example"])
            for _ in range(2):
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
            return
        self.paths.append(scope["path"])
        message = await receive()
        self._has_begun.set()
        await self.release.wait()
        body = message["body"]
        while message["more_body"]:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone()
                return
            body += message["body"]
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def until_started(self) -> None:
        """Return once a request is in progress."""
        await self._has_begun.wait()


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
async def address(application: Application) -> AsyncIterator[str]:
    async with served(application, http=LoadSheddingProtocol) as address:
        yield address
        application.release.set()


@pytest.fixture
async def first(address: str, application: Application) -> AsyncIterator[Line]:
    """A connection with the one request that the process has room for."""
    line = await Line.to(address)
    await line.send(API + END)
    await application.until_started()
    yield line
    line.close()


@pytest.fixture
async def line(address: str, first: Line) -> AsyncIterator[Line]:
    """Another connection, whose requests are shed."""
    line = await Line.to(address)
    yield line
    line.close()


async def test_shed_api_request_gets_a_problem_document(line: Line) -> None:
    await line.send(API + b"X-Request-Id: mine\r\n" + END)
    status, headers, body = await line.answer()
    assert (status, headers["retry-after"], headers["x-request-id"]) == (503, "1", "mine")
    assert headers["content-type"] == "application/problem+json"
    problem = json.loads(body)
    assert (problem["code"], problem["status"], problem["requestId"]) == ("overloaded", 503, "mine")


@pytest.mark.parametrize("origin", [b"https://app.example", b"https://other.example", None])
async def test_shed_api_request_is_readable_for_pages_of_a_listed_origin(
    line: Line, origin: bytes | None
) -> None:
    await line.send(API + (b"Origin: %b\r\n" % origin if origin else b"") + END)
    status, headers, _ = await line.answer()
    assert (status, headers["vary"]) == (503, "Origin")
    assert headers.get("access-control-allow-origin", "").encode() == (
        origin if origin and b"app" in origin else b""
    )


async def test_shed_webhook_is_readable_for_no_page(line: Line) -> None:
    await line.send(EVENT + b"Origin: https://app.example\r\nContent-Length: 4\r\n\r\nbody")
    status, headers, _ = await line.answer()
    assert status == 503
    assert not {"access-control-allow-origin", "vary"} & headers.keys()


async def test_shed_webhook_gets_plain_text(line: Line, application: Application) -> None:
    await line.send(EVENT + b"Content-Length: 4\r\n\r\nbody")
    status, headers, body = await line.answer()
    assert (status, headers["retry-after"], body) == (503, "1", b"Service unavailable")
    assert application.paths == ["/api/v1/projects"]


async def test_connection_is_good_for_the_next_request(
    line: Line, first: Line, application: Application
) -> None:
    for _ in range(3):
        await line.send(EVENT + b"Content-Length: 4\r\n\r\nbody")
        assert (await line.answer())[0] == 503
    application.release.set()
    assert (await first.answer())[0] == 200
    await line.send(EVENT + b"Content-Length: 4\r\n\r\nbody")
    assert (await line.answer())[0] == 200


async def test_late_body_of_a_shed_request_is_not_parsed_as_a_request(
    line: Line, first: Line, application: Application
) -> None:
    await line.send(EVENT + b"Content-Length: 62\r\n\r\n", API, b"Secret: in the body\r\n\r\n")
    assert (await line.answer())[0] == 503
    application.release.set()
    assert (await first.answer())[0] == 200
    await line.send(API + END)
    assert (await line.answer())[0] == 200
    assert application.paths == ["/api/v1/projects"] * 2


async def test_request_that_waits_behind_another_does_not_count_as_arriving(
    first: Line, application: Application
) -> None:
    await first.send(EVENT + b"Content-Length: 4\r\n\r\nbo")
    assert application.detector.arriving == 0  # the one before it is under way
    application.release.set()
    assert (await first.answer())[0] == 200
    await first.send(b"d")
    assert application.detector.arriving == 1
    await first.send(b"y")
    assert (await first.answer())[0] == 200
    assert application.detector.arriving == 0


async def test_incomplete_requests_do_not_cause_overload(
    address: str, application: Application
) -> None:
    halves = [await Line.to(address) for _ in range(3)]
    for half in halves:
        await half.send(EVENT + b"Content-Length: 4\r\n\r\nbo")
    application.release.set()
    lines = [await Line.to(address) for _ in range(2)]
    for line in lines:
        await line.send(API + END)
        assert (await line.answer())[0] == 200
    await halves[0].send(b"dy")
    assert (await halves[0].answer())[0] == 200
    for connection in (*lines, *halves):
        connection.close()


async def test_disconnected_clients_do_not_cause_overload(
    address: str, application: Application
) -> None:
    halves = [await Line.to(address) for _ in range(3)]
    for half in halves:
        await half.send(EVENT + b"Content-Length: 4\r\n\r\nbo")
    line = await Line.to(address)
    for half in halves:
        half.close()
        await line.send(b"")
    await line.send(API + END)
    application.release.set()
    assert (await line.answer())[0] == 200
    line.close()
    assert application.detector.arriving == 0


def test_request_is_accepted_after_a_disconnected_one_ends() -> None:
    uvloop.run(ask_as_another_ends())


async def ask_as_another_ends() -> None:
    """Run on the serving loop, which reads input between a task's end and its callbacks."""
    application = Application()
    application.release.set()
    async with served(application, http=LoadSheddingProtocol) as address:
        half, line = await Line.to(address), await Line.to(address)
        await half.send(EVENT + b"Content-Length: 4\r\n\r\nbo")
        await line.send(b"")
        application.gone = lambda: line.send_now(API + END)
        half.close()
        assert (await line.answer())[0] == 200
        line.close()
    assert application.detector.arriving == 0


async def test_only_whole_names_of_headers_count(
    line: Line, first: Line, application: Application
) -> None:
    alike = b"X-Content-Length: 99\r\nX-X-Request-Id: theirs\r\nProxy-Connection: close\r\n"
    await line.send(EVENT + alike + b"Content-Length: 4\r\n\r\nbody")
    status, headers, _ = await line.answer()
    assert (status, headers["x-request-id"] == "theirs", "connection" in headers) == (
        503,
        False,
        False,
    )
    application.release.set()
    assert (await first.answer())[0] == 200
    await line.send(API + END)
    assert (await line.answer())[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",),
        (API, b"GET /api/v1/x HTTP/1.1\r\n\r\n"),
        (API + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",),
        (API + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",),
        (API + b"Content-Length: 1, 1\r\n\r\n",),
        (API + END + API + END,),
        (API + b"X: y\n\r\n" + API + END,),
    ],
    ids=[
        "health",
        "head in two parts",
        "chunked",
        "two lengths",
        "odd length",
        "two at once",
        "bare line feed",
    ],
)
async def test_unusual_requests_go_to_the_parser(
    line: Line, application: Application, sent: tuple[bytes, ...]
) -> None:
    """The parser may accept or reject it, but must not take any part of it for a request."""
    application.release.set()
    await line.send(*sent)
    assert (await line.answer())[0] in (200, 400)


@pytest.mark.parametrize(
    "request_line", [b"GET /api/v1/projects HTTP/1.0\r\n\r\n", API + b"Connection: close\r\n\r\n"]
)
async def test_connection_ends_where_the_client_wants_that(line: Line, request_line: bytes) -> None:
    await line.send(request_line)
    status, headers, _ = await line.answer()
    assert (status, headers["connection"]) == (503, "close")
    assert await line.is_closed()
