"""The limits on clients: slow, large, malformed and numerous requests. The test advances the
clock.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Final

import pytest

from tenantry.server.asgi_types import HotRequest, HotResponse, Receive, Scope, Send
from tenantry.server.client_limits import (
    CONNECTION_MONITOR,
    MAX_CHUNKS,
    MAX_DISCARDED_BYTES,
    MAX_FRAMING_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    MAX_TARGET_BYTES,
    ClientLimits,
    ConnectionMonitor,
)
from tenantry.server.cors import CorsPolicy
from tenantry.server.dispatch import Dispatcher, HotRoutes
from tenantry.server.metrics import Metrics
from tenantry.server.protocol import HttpProtocol
from tests.support.cases import cases
from tests.support.http_line import Line
from tests.support.serving import served

END: Final = b"Host: a\r\n\r\n"
GET: Final = b"GET /other HTTP/1.1\r\n"
POST: Final = b"POST /other HTTP/1.1\r\n"
WAYS: Final = [b"/hot/a", b"/other"]
LIMITS: Final = ClientLimits(connections=4, bodies=10_000)
IDLE: Final = 5
LARGE: Final = b"x" * 1_000_000
BOTH_WAYS: Final = pytest.mark.parametrize("path", WAYS)


class Application:
    """A dispatcher that answers with the body, on a hot route and elsewhere; below ``/held`` after
    its release.
    """

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.seen: list[tuple[str, bytes, list[bytes]]] = []
        self.seconds = 0.0
        self.metrics = Metrics(several_processes=False)
        hot = HotRoutes()
        hot.add_prefix("/hot/", "/hot/{anything}", self.answer)
        hot.add("POST", "/api/v1/hot", self.answer)
        self.dispatcher = Dispatcher(
            hot, self, self.metrics, cors=CorsPolicy(["https://app.example"])
        )
        self.monitor = ConnectionMonitor(
            LIMITS,
            lambda limit: self.metrics.closed_by_limit.labels(limit).inc(),
            now=lambda: self.seconds,
        )
        self.dispatcher.state[CONNECTION_MONITOR] = self.monitor

    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds
        self.monitor.close_overdue()

    def cut_short(self, limit: str) -> bool:
        return (
            f'tenantry_client_limits_exceeded_total{{limit="{limit}"}} 1.0'
            in self.metrics.render().decode()
        )

    async def answer(self, request: HotRequest) -> HotResponse:
        body = await request.body()
        self.seen.append((request.path, body, []))
        return HotResponse(200, [], body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                await send({"type": f"{(await receive())['type']}.complete"})
            return
        if scope["path"] == "/refused":
            await send(
                {
                    "type": "http.response.start",
                    "status": 401,
                    "headers": [(b"content-length", b"0")],
                }
            )
            await send({"type": "http.response.body"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        if scope["path"] == "/large":
            body = LARGE
        if scope["path"].startswith("/held"):
            await self.release.wait()
        self.seen.append((scope["path"], body, [name for name, _ in scope["headers"]]))
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"%d" % len(body))],
            }
        )
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
async def address(application: Application) -> AsyncIterator[str]:
    async with served(application.dispatcher, http=HttpProtocol, keep_alive=IDLE) as address:
        yield address
        application.release.set()


@pytest.fixture
async def line(address: str) -> AsyncIterator[Line]:
    line = await Line.to(address)
    yield line
    line.close()


async def is_refused(line: Line, status: int, code: str) -> dict[str, str]:
    """Check that the next response is a problem document with a request id, and the last one."""
    found, headers, body = await line.answer()
    problem = json.loads(body)
    assert (found, headers["content-type"], headers["connection"]) == (
        status,
        "application/problem+json",
        "close",
    )
    assert (problem["code"], problem["status"]) == (code, status)
    assert problem["requestId"] == headers["x-request-id"]
    assert await line.is_closed()
    return headers


async def connected(address: str) -> Line:
    """A connection that the server knows of."""
    line = await Line.to(address)
    await line.send(b"")
    return line


async def ask(line: Line, path: bytes = b"/other") -> int:
    await line.send(b"GET " + path + b" HTTP/1.1\r\n" + END)
    return (await line.answer())[0]


# Slow


async def test_slow_head_gets_a_timeout(line: Line, application: Application) -> None:
    await line.send(GET, b"X-Request-Id: mine\r\n", b"X-Slow: ")
    application.pass_time(LIMITS.head - 1)
    await line.send(b"ly")
    application.pass_time(1)
    headers = await is_refused(line, 408, "request_timeout")
    assert headers["x-request-id"] == "mine"
    assert application.cut_short("head_seconds")


async def test_timeout_of_a_later_head_starts_at_its_first_byte(
    line: Line, application: Application
) -> None:
    assert await ask(line) == 200
    application.pass_time(IDLE - 1)
    await line.send(GET)
    application.pass_time(LIMITS.head - 1)
    await line.send(END)
    assert (await line.answer())[0] == 200
    await line.send(GET)
    application.pass_time(LIMITS.head)
    await is_refused(line, 408, "request_timeout")


@BOTH_WAYS
async def test_slow_body_gets_a_timeout(line: Line, application: Application, path: bytes) -> None:
    await line.send(b"POST " + path + b" HTTP/1.1\r\nContent-Length: 4\r\n" + END, b"b")
    application.pass_time(LIMITS.body - 1)
    await line.send(b"o")
    application.pass_time(1)
    await is_refused(line, 408, "request_timeout")
    assert application.cut_short("body_seconds")
    assert application.seen == []


async def test_evicted_client_is_counted_as_disconnected(
    address: str, application: Application
) -> None:
    for way in WAYS:
        slow = await Line.to(address)
        await slow.send(b"POST " + way + b" HTTP/1.1\r\nContent-Length: 4\r\n" + END, b"b")
        application.pass_time(LIMITS.body)
        await is_refused(slow, 408, "request_timeout")
    metrics = application.metrics.render().decode()
    assert 'route="/hot/{anything}",status="499"} 1.0' in metrics
    assert 'route="unknown",status="499"} 1.0' in metrics


@BOTH_WAYS
async def test_body_in_time_is_accepted(line: Line, application: Application, path: bytes) -> None:
    for _ in range(2):
        await line.send(b"POST " + path + b" HTTP/1.1\r\nContent-Length: 4\r\n" + END, b"bo")
        application.pass_time(LIMITS.body - 1)
        await line.send(b"dy")
        assert (await line.answer())[2] == b"body"


async def test_timeout_of_a_pipelined_body_starts_at_its_turn(
    line: Line, application: Application
) -> None:
    await line.send(b"GET /held HTTP/1.1\r\n" + END + POST + b"Content-Length: 4\r\n" + END + b"bo")
    application.pass_time(LIMITS.body)
    application.release.set()
    assert (await line.answer())[0] == 200
    application.pass_time(LIMITS.body - 1)
    await line.send(b"dy")
    assert (await line.answer())[2] == b"body"
    assert not application.cut_short("body_seconds")


async def test_rest_of_a_body_after_its_response_has_a_timeout(
    line: Line, application: Application
) -> None:
    await line.send(b"POST /refused HTTP/1.1\r\nContent-Length: 4\r\n" + END)
    assert (await line.answer())[0] == 401
    application.pass_time(LIMITS.body)
    assert await line.is_closed()


async def test_connection_without_a_request_is_closed(line: Line, application: Application) -> None:
    application.pass_time(LIMITS.head)
    assert await line.is_closed()


async def test_pending_response_is_completed(line: Line, application: Application) -> None:
    await line.send(b"GET /held HTTP/1.1\r\n" + END, GET)
    application.pass_time(LIMITS.body + LIMITS.head)
    application.release.set()
    status, headers, _ = await line.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await line.is_closed()


# Large


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * MAX_TARGET_BYTES + b" HTTP/1.1\r\n" + END,
        GET + b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\n" + END,
        GET + b"X: a\r\n" * MAX_HEADERS + END,
    ],
    ids=["target", "head", "fields"],
)
async def test_head_over_its_limit_is_rejected(
    line: Line, application: Application, head: bytes
) -> None:
    await line.send(head)
    await is_refused(line, 431, "head_too_large")
    assert application.seen == []


async def test_endless_head_is_rejected(line: Line) -> None:
    await line.send(GET + b"X: ", *[b"a" * 1024] * (MAX_HEAD_BYTES // 1024 + 1))
    await is_refused(line, 431, "head_too_large")


@BOTH_WAYS
async def test_head_at_its_limits_is_accepted(line: Line, path: bytes) -> None:
    target = path + b"?" + b"a" * (MAX_TARGET_BYTES - len(path) - 1)
    fields = b"".join(b"X-%d: a\r\n" % n for n in range(MAX_HEADERS - 2))
    size = sum(map(len, (target, b"Hosta", b"XY"))) + sum(
        len(line) - 4 for line in fields.split(b"\r\n")[:-1]
    )
    head = (
        b"GET "
        + target
        + b" HTTP/1.1\r\n"
        + fields
        + b"XY: "
        + b"a" * (MAX_HEAD_BYTES - size - 200)
        + b"\r\n"
    )
    await line.send(head + END)
    assert (await line.answer())[0] == 200


async def test_body_with_too_many_chunks_is_rejected(line: Line, application: Application) -> None:
    await line.send(
        POST + b"Transfer-Encoding: chunked\r\n" + END, b"1\r\na\r\n" * (MAX_CHUNKS + 1)
    )
    await is_refused(line, 400, "invalid_request")
    assert application.seen == []


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"0\r\n", (b"a: " + b"b" * 60 + b"\r\n") * 128),
        (b"0\r\na: ", b"b" * 8192),
        (b"1;a=", b"b" * 8192),
    ],
    ids=["fields behind it", "a field behind it", "extension of a chunk"],
)
async def test_endless_framing_of_a_chunked_body_is_rejected(
    line: Line, begin: bytes, more: bytes
) -> None:
    await line.send(
        POST + b"Transfer-Encoding: chunked\r\n" + END + begin,
        *[more] * (MAX_FRAMING_BYTES // len(more) + 1),
    )
    await is_refused(line, 431, "head_too_large")


@BOTH_WAYS
async def test_oldest_incomplete_body_is_evicted(
    address: str, application: Application, path: bytes
) -> None:
    early, late = await connected(address), await connected(address)
    head = b"POST " + path + b" HTTP/1.1\r\nContent-Length: %d\r\n" % LIMITS.bodies + END
    await early.send(head + b"x" * (LIMITS.bodies - 1))
    application.pass_time(1)
    await late.send(b"POST " + path + b" HTTP/1.1\r\nContent-Length: 4\r\n" + END + b"bo")
    await is_refused(early, 503, "overloaded")
    await late.send(b"dy")
    assert (await late.answer())[2] == b"body"
    assert application.cut_short("bodies")
    late.close()


async def test_body_after_its_response_does_not_count(
    address: str, application: Application
) -> None:
    refused, other = await connected(address), await connected(address)
    await refused.send(b"POST /refused HTTP/1.1\r\nContent-Length: 99999\r\n" + END)
    assert (await refused.answer())[0] == 401
    await refused.send(b"x" * (2 * LIMITS.bodies))
    await other.send(POST + b"Content-Length: 4\r\n" + END, b"bo", b"dy")
    assert (await other.answer())[2] == b"body"
    assert not application.cut_short("bodies")
    for line in (refused, other):
        line.close()


async def test_discarded_body_has_a_limit(line: Line) -> None:
    await line.send(b"POST /refused HTTP/1.1\r\nContent-Length: 999999999999\r\n" + END)
    assert (await line.answer())[0] == 401
    await line.push(*[b"x" * 1_048_576] * (MAX_DISCARDED_BYTES // 1_048_576 + 1))
    assert await line.is_cut_off()


@cases("path", WAYS)
@cases("coding", [b"gzip", b"deflate", b"br", b"zstd", b"identity, gzip"])
async def test_compressed_body_is_refused(
    address: str, application: Application, path: bytes, coding: bytes
) -> None:
    line = await Line.to(address)
    head = b" HTTP/1.1\r\nContent-Length: 4\r\nContent-Encoding: " + coding + b"\r\n"
    for _ in range(2):
        await line.send(b"POST " + path + head + END, b"body")
        status, headers, body = await line.answer()
        assert (status, json.loads(body)["code"]) == (415, "unsupported_media_type")
        assert headers["accept-encoding"] == "identity"
    assert application.seen == []
    line.close()


@BOTH_WAYS
async def test_body_with_identity_encoding_is_accepted(line: Line, path: bytes) -> None:
    await line.send(
        b"POST " + path + b" HTTP/1.1\r\nContent-Length: 4\r\nContent-Encoding: Identity\r\n" + END,
        b"body",
    )
    assert (await line.answer())[2] == b"body"


# Pages of other origins

ORIGIN: Final = b"Origin: https://app.example\r\n"
LENGTH: Final = b"Content-Length: 4\r\n"
BROWSER_REQUESTS: Final = {
    "head that is too large": (
        b"GET /api/v1/x HTTP/1.1\r\n" + ORIGIN + b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\n" + END
    ),
    "two hosts": b"GET /api/v1/x HTTP/1.1\r\nHost: b\r\n" + ORIGIN + END,
    "body that is not complete": b"POST /api/v1/x HTTP/1.1\r\n" + LENGTH + ORIGIN + END + b"b",
    "body of a hot route that is not complete": b"POST /api/v1/hot HTTP/1.1\r\n"
    + LENGTH
    + ORIGIN
    + END
    + b"b",
    "request behind another one": GET
    + END
    + b"POST /api/v1/x HTTP/1.1\r\n"
    + LENGTH
    + ORIGIN
    + END
    + b"b",
}


@pytest.mark.parametrize("sent", BROWSER_REQUESTS.values(), ids=BROWSER_REQUESTS.keys())
@pytest.mark.parametrize("listed", [True, False])
async def test_pages_of_a_listed_origin_can_read_why_a_request_was_rejected(
    line: Line, application: Application, sent: bytes, listed: bool
) -> None:
    await line.send(sent if listed else sent.replace(b"app.example", b"no.example"))
    application.pass_time(LIMITS.body)
    status, headers, _ = await line.answer()
    if status == 200:  # of the request in front
        status, headers, _ = await line.answer()
    assert status in (400, 408, 431)
    assert headers.get("access-control-allow-origin") == ("https://app.example" if listed else None)
    assert headers["vary"] == "Origin"


# Malformed, or to be read in two ways


MALFORMED: Final = {
    "no method": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "unknown method": b"SMUGGLE /other HTTP/1.1\r\n" + END,
    "method in lower case": b"get /other HTTP/1.1\r\n" + END,
    "space before the method": b" " + GET + END,
    "tab in the request line": b"GET\t/other HTTP/1.1\r\n" + END,
    "target without a slash": b"GET other HTTP/1.1\r\n" + END,
    "control character in the target": b"GET /\x01 HTTP/1.1\r\n" + END,
    "byte that is not ASCII in the target": b"GET /\xff HTTP/1.1\r\n" + END,
    "tunnel": b"CONNECT a:443 HTTP/1.1\r\n" + END,
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "bare LF": b"GET /other HTTP/1.1\nHost: a\n\n",
    "bare LF after a field": GET + b"X: a\nY: b\r\n" + END,
    "bare CR in a field": GET + b"X: a\rY: b\r\n" + END,
    "folded field": GET + b"X: a\r\n b\r\n" + END,
    "space before the first field": GET + b" X: a\r\n" + END,
    "space before a colon": GET + b"X : a\r\n" + END,
    "NUL in a field": GET + b"X: a\x00b\r\n" + END,
    "NUL in a field's name": GET + b"X\x00: a\r\n" + END,
    "field without a name": GET + b": a\r\n" + END,
    "field without a colon": GET + b"abc\r\n" + END,
    "no host": GET + b"\r\n",
    "two hosts": GET + b"Host: b\r\n" + END,
    "host whose port is no number": GET + b"Host: a:b\r\n\r\n",
    "host whose port is out of range": GET + b"Host: a:65536\r\n\r\n",
    "host with a path": GET + b"Host: a/b\r\n\r\n",
    "host with a user": GET + b"Host: a@b\r\n\r\n",
    "host that is not ASCII": GET + b"Host: \xe4\r\n\r\n",
    "two lengths": POST + b"Content-Length: 4\r\nContent-Length: 4\r\n" + END + b"body",
    "two different lengths": POST + b"Content-Length: 4\r\nContent-Length: 5\r\n" + END + b"body",
    "list of lengths": POST + b"Content-Length: 4, 4\r\n" + END + b"body",
    "negative length": POST + b"Content-Length: -1\r\n" + END,
    "length with a sign": POST + b"Content-Length: +4\r\n" + END + b"body",
    "empty length": POST + b"Content-Length:\r\n" + END,
    "length past all numbers": POST + b"Content-Length: 99999999999999999999\r\n" + END,
    "length and coding": POST
    + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"
    + END
    + b"0\r\n\r\n",
    "coding and length": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"
    + END
    + b"0\r\n\r\n",
    "two codings": POST
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"
    + END
    + b"0\r\n\r\n",
    "coding twice": POST + b"Transfer-Encoding: chunked, chunked\r\n" + END + b"0\r\n\r\n",
    "unknown coding": POST + b"Transfer-Encoding: xchunked\r\n" + END + b"0\r\n\r\n",
    "compressed coding": POST + b"Transfer-Encoding: gzip, chunked\r\n" + END + b"0\r\n\r\n",
    "coding behind a vertical tab": POST
    + b"Transfer-Encoding: \x0bchunked\r\n"
    + END
    + b"0\r\n\r\n",
    "coding in HTTP/1.0": b"POST /other HTTP/1.0\r\nTransfer-Encoding: chunked\r\n"
    + END
    + b"0\r\n\r\n",
    "chunk of no size": POST + b"Transfer-Encoding: chunked\r\n" + END + b"zz\r\n",
    "chunk of negative size": POST + b"Transfer-Encoding: chunked\r\n" + END + b"-1\r\n",
    "chunk past all numbers": POST + b"Transfer-Encoding: chunked\r\n" + END + b"f" * 17 + b"\r\n",
    "chunk behind a bare LF": POST + b"Transfer-Encoding: chunked\r\n" + END + b"4\nbody\n0\n\n",
    "chunk's extension behind a bare LF": POST
    + b"Transfer-Encoding: chunked\r\n"
    + END
    + b"4;a\nb\r\nbody\r\n0\r\n\r\n",
    "length behind the chunks": POST
    + b"Transfer-Encoding: chunked\r\n"
    + END
    + b"0\r\nContent-Length: 5\r\n\r\n",
}


@cases("path", WAYS)
@cases("name", MALFORMED)
async def test_malformed_request_is_rejected(
    address: str, application: Application, name: str, path: bytes
) -> None:
    line = await Line.to(address)
    await line.send(MALFORMED[name].replace(b"/other", path) + GET + END)
    await is_refused(line, 400, "invalid_request")
    assert application.seen == []
    line.close()


@cases("host", [b"", b"a:", b"a_b.example:65535", b"[::1]:80", b"b%C3%BCcher"])
async def test_every_form_of_a_host_is_accepted(address: str, host: bytes) -> None:
    line = await Line.to(address)
    await line.send(GET + b"Host: " + host + b"\r\n\r\n")
    assert (await line.answer())[0] == 200
    line.close()


@pytest.mark.parametrize("version", [b"", b" HTTP/0.9", b" HTTP/2.0"])
async def test_other_versions_are_rejected(
    line: Line, application: Application, version: bytes
) -> None:
    await line.send(b"GET /other" + version + b"\r\n" + END)
    await is_refused(line, 400, "invalid_request")
    assert application.seen == []


async def test_trailers_are_ignored(line: Line, application: Application) -> None:
    await line.send(
        POST
        + b"Transfer-Encoding: chunked\r\n"
        + END
        + b"4\r\nbody\r\n0\r\nX-Forwarded-For: b\r\n\r\n"
    )
    assert (await line.answer())[2] == b"body"
    assert application.seen == [("/other", b"body", [b"transfer-encoding", b"host"])]


@pytest.mark.parametrize("target", [b"http://b/other", b"http://b:1/other", b"/other#c"])
async def test_target_in_another_form_is_unambiguous(
    line: Line, application: Application, target: bytes
) -> None:
    await line.send(b"GET " + target + b" HTTP/1.1\r\n" + END)
    assert (await line.answer())[0] == 200
    assert [path for path, _, _ in application.seen] == ["/other"]


@pytest.mark.parametrize(
    ("target", "path"), [(b"http://b", "/"), (b"http://b:1?x=1", "/"), (b"*", "*")]
)
async def test_target_without_a_path_is_well_formed(
    line: Line, application: Application, target: bytes, path: str
) -> None:
    await line.send(b"OPTIONS " + target + b" HTTP/1.1\r\n" + END)
    assert (await line.answer())[0] == 200
    assert [seen for seen, _, _ in application.seen] == [path]


async def test_input_after_an_upgrade_request_is_ignored(
    line: Line, application: Application
) -> None:
    await line.send(
        GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n" + END + GET + END
    )
    status, headers, _ = await line.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await line.is_closed()
    assert len(application.seen) == 1


@pytest.mark.parametrize("rest", [b"\x00\x00\r\n\r\n", POST + b"Transfer-Encoding: x\r\n" + END])
async def test_earlier_requests_are_answered_before_a_rejection(
    line: Line, application: Application, rest: bytes
) -> None:
    await line.send(b"GET /held HTTP/1.1\r\n" + END + rest)
    application.release.set()
    status, headers, _ = await line.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await line.is_closed()
    assert len(application.seen) == 1


async def test_malformed_pipelined_body_is_rejected_in_order(
    line: Line, application: Application
) -> None:
    await line.send(
        b"GET /held HTTP/1.1\r\n" + END + POST + b"Transfer-Encoding: chunked\r\n" + END + b"zz\r\n"
    )
    application.release.set()
    assert (await line.answer())[0] == 200
    await is_refused(line, 400, "invalid_request")
    assert len(application.seen) == 1


# Many


async def test_pipelined_requests_have_a_limit(line: Line, application: Application) -> None:
    await line.send((b"GET /held HTTP/1.1\r\n" + END) * (MAX_PIPELINED + 50))
    application.release.set()
    answers = [await line.answer() for _ in range(MAX_PIPELINED + 1)]
    assert {status for status, _, _ in answers} == {200}
    assert ["connection" in headers for _, headers, _ in answers] == [False] * MAX_PIPELINED + [
        True
    ]
    assert await line.is_closed()


async def test_connections_without_a_request_are_evicted_before_idle_ones(
    address: str, application: Application
) -> None:
    busy = await connected(address)
    await busy.send(b"GET /held HTTP/1.1\r\n" + END)
    lines = []
    for path in (b"/other", b"/hot/a"):
        lines.append(await connected(address))
        assert await ask(lines[-1], path) == 200
        application.pass_time(1)
    silent = await connected(address)
    newest = await Line.to(address)
    assert await silent.is_closed()
    assert await ask(newest) == 200
    another = await Line.to(address)
    assert await lines[0].is_closed()
    assert application.cut_short("connections") is False  # two
    for one in (another, lines[1], newest):
        assert await ask(one) == 200
        one.close()
    application.release.set()
    assert (await busy.answer())[0] == 200
    busy.close()


async def test_new_connection_is_rejected_while_all_others_are_busy(
    address: str, application: Application
) -> None:
    busy = [await connected(address) for _ in range(LIMITS.connections)]
    for one in busy:
        await one.send(b"GET /held HTTP/1.1\r\n" + END)
    newcomer = await Line.to(address)
    await is_refused(newcomer, 503, "overloaded")
    application.release.set()
    for one in busy:
        assert (await one.answer())[0] == 200
        one.close()


# Not read


async def test_client_that_does_not_read_is_disconnected(
    line: Line, application: Application
) -> None:
    await line.push((b"GET /large HTTP/1.1\r\n" + END) * MAX_PIPELINED, *[b""] * 100)
    application.pass_time(LIMITS.reading)
    assert await line.is_cut_off()
    assert application.cut_short("reading_seconds")


async def test_client_that_reads_slowly_gets_its_response(
    line: Line, application: Application
) -> None:
    asked = 24
    await line.push((b"GET /large HTTP/1.1\r\n" + END) * asked)
    for _ in range(asked):
        application.pass_time(LIMITS.reading / 4)
        assert (await line.answer())[2] == LARGE


async def test_client_that_does_not_read_and_begins_another_request_is_disconnected(
    line: Line, application: Application
) -> None:
    await line.push(
        (b"GET /large HTTP/1.1\r\n" + END) * MAX_PIPELINED,
        *[b""] * 100,
        b"GET /other",
        *[b""] * 100,
    )
    application.pass_time(LIMITS.head)
    assert application.cut_short("head_seconds")
    application.pass_time(LIMITS.reading)
    assert application.cut_short("reading_seconds")
    assert await line.is_cut_off()


async def test_missing_body_times_out_after_earlier_responses_are_read(
    line: Line, application: Application
) -> None:
    asked = 24
    await line.push(
        (b"GET /large HTTP/1.1\r\n" + END) * asked + POST + b"Content-Length: 5\r\n" + END + b"abc"
    )
    for _ in range(asked):
        assert (await line.answer())[2] == LARGE
    await line.send(*[b""] * 10)
    application.pass_time(LIMITS.body)
    assert application.cut_short("body_seconds")
    await is_refused(line, 408, "request_timeout")
