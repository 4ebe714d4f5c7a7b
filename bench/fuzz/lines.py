"""Bytes on a connection to the server's protocol, without a socket."""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import h11
import uvicorn
from uvicorn.server import ServerState

from bench.fuzz.target import Finding, Target, require, run_now
from tenantry.domain.errors import PayloadTooLargeError
from tenantry.server.asgi_types import (
    IS_HEAD,
    AsgiApp,
    HotRequest,
    HotResponse,
    Receive,
    Scope,
    Send,
)
from tenantry.server.dispatch import Dispatcher, HotRoutes
from tenantry.server.load_shedding import OVERLOAD_DETECTOR, LoadSheddingProtocol, OverloadDetector
from tenantry.server.metrics import Metrics

_TURNS: Final = 8
"""Turns of the event loop after which nothing more happens without further bytes."""
_MAX_TURNS: Final = 400
_UPGRADE: Final = re.compile(rb"\nupgrade")
_CLOSES: Final = b"\r\nconnection: close\r\n"


class ParsedRequest(NamedTuple):
    """A request as a server parsed it."""

    method: str
    target: bytes
    body: bytes


class FakeTransport(asyncio.Transport):
    """Keeps what the server writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("198.51.100.7", 1234), "sockname": ("127.0.0.1", 80)})
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        require(not self.is_closed, "the server writes after the end")
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def get_protocol(self) -> asyncio.BaseProtocol:
        return asyncio.Protocol()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        raise Finding(f"the connection changes to {protocol}")

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class FuzzedServer:
    """FuzzedServer to an application."""

    def __init__(self, app: AsgiApp, state: dict[str, Any]) -> None:
        self._config = uvicorn.Config(
            cast("Any", app),
            http=LoadSheddingProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=True,
            forwarded_allow_ips="*",
        )
        self._config.load()
        self._state = state
        self.uncaught: list[str] = []

    async def talk(self, pieces: list[bytes], is_done: Callable[[], bool] = lambda: True) -> bytes:
        """Send these pieces, close the connection, and return all output."""
        transport = FakeTransport()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_uncaught)
        protocol = LoadSheddingProtocol(self._config, ServerState(), self._state, loop)
        protocol.connection_made(transport)
        for piece in pieces:
            if piece and not transport.is_closed:
                protocol.data_received(piece)
                await _settle(transport, is_done)
        if not transport.is_closed:
            protocol.eof_received()
        protocol.connection_lost(None)
        await _settle(transport, is_done)
        for task in list(protocol.tasks):
            task.cancel()
        uncaught, self.uncaught = self.uncaught, []
        require(not uncaught, "an uncaught exception", *uncaught)
        return bytes(transport.written)

    def _on_uncaught(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.uncaught.append(f"{context.get('message')} {context.get('exception')!r}")


async def _settle(transport: FakeTransport, is_done: Callable[[], bool]) -> None:
    """Run the event loop until the server writes no more; each pipelined request takes its
    turns.
    """
    size, since = len(transport.written), 0
    for turn in range(_MAX_TURNS):
        await asyncio.sleep(0)
        if len(transport.written) != size:
            size, since = len(transport.written), turn
        if turn - since > _TURNS and is_done():
            break


class _Echo:
    """An application that records its requests; those below ``/hot/`` take the hot route."""

    def __init__(self) -> None:
        self.asked: list[ParsedRequest] = []
        hot = HotRoutes()
        hot.add_prefix("/hot/", "/hot/{anything}", self._answer)
        self.front = Dispatcher(hot, self, Metrics(several_processes=False))

    async def _answer(self, request: HotRequest) -> HotResponse:
        try:
            body = await request.body()
        except PayloadTooLargeError:
            return HotResponse(413, [])
        self.asked.append(_parsed(request.scope, body))
        return HotResponse(200, [], b"hot")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts, more = [], True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        self.asked.append(_parsed(scope, b"".join(parts)))
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]}
        )
        await send({"type": "http.response.body", "body": b"cold"})


def _parsed(scope: Scope, body: bytes) -> ParsedRequest:
    path = scope.get("raw_path") or scope["path"].encode()
    method = "HEAD" if scope.get(IS_HEAD) else scope["method"]
    return ParsedRequest(
        method, path + (b"?" + scope["query_string"] if scope["query_string"] else b""), body
    )


_echo: Final = _Echo()
_connections: Final = FuzzedServer(_echo.front, {**_echo.front.state, OVERLOAD_DETECTOR: None})


class _Overloaded(OverloadDetector):
    """A detector that always reports overload."""

    def is_overloaded(self, concurrent: int, answered: int) -> bool:  # noqa: ARG002
        return True


_full: Final = FuzzedServer(
    _echo.front,
    {
        **_echo.front.state,
        OVERLOAD_DETECTOR: _Overloaded(Metrics(several_processes=False), lambda: 0),
    },
)


def check_lines(data: bytes) -> None:
    """Require that the server and h11 parse the same requests, however the bytes are split.

    The first byte determines the number of pieces. A request that one of the two rejects need not
    be accepted by the other. What both accept must be the same requests in the same order with the
    same bodies: no request smuggling.
    """
    cut, data = data[:1], data[1:]
    asked, written = _talked(_connections, [data])
    if cut and cut[0] % 4:
        _check_pieces(data, cut[0] % 61 + 1, asked, written)
    statuses = answers_in(written)
    reference, refused = by_reference(data)
    if _UPGRADE.search(data.lower()):
        # the server ignores the body of an upgrade request and closes the connection; nothing else
        # may differ
        is_last = len(asked) <= len(reference) + 1
        require(is_last, "an upgrade request is not the last one", asked, reference)
        asked, reference = asked[: len(reference)], reference[: len(asked)]
        asked = asked[:-1] + [ours._replace(body=reference[-1].body) for ours in asked[-1:]]
    for ours, theirs in zip(asked, reference, strict=False):
        require(ours == theirs, "the two servers parse a request differently", ours, theirs)
    if refused:
        is_safe = len(asked) <= len(reference) or _is_harmless(refused, data)
        require(is_safe, f"the server accepts what h11 rejects ({refused})", asked, statuses)
        return
    is_told = statuses.count(200) < len(statuses) or _CLOSES in written
    require(is_told or len(asked) >= len(reference), "a request is not answered", asked, reference)
    require(len(asked) <= len(reference), "an invented request", asked, reference)


def _check_pieces(data: bytes, number: int, asked: list[ParsedRequest], written: bytes) -> None:
    """Require that the server parses the same if the bytes come in about so many pieces."""
    size = max(1, len(data) // number)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    again, answered = _talked(_connections, pieces)
    # the server drops queued requests when it rejects what follows them
    broken_off = 400 in answers_in(written) + answers_in(answered)
    whole = min(len(asked), len(again)) if broken_off else max(len(asked), len(again))
    require(asked[:whole] == again[:whole], "the result depends on the split", asked, again)


def check_shedding(data: bytes) -> None:
    """Require that an overloaded server answers each request exactly once, and rejects plain
    requests.
    """
    data = data[1:]
    asked, written = _talked(_full, [data])
    statuses = answers_in(written)
    reference, refused = by_reference(data)
    if refused:
        return
    answered = [status for status in statuses if status != 100]
    # the last one may be rejected before its body arrives
    require(len(answered) <= max(len(reference) + 1, len(asked)), "too many answers", statuses)
    is_told = _CLOSES in written or _UPGRADE.search(data.lower())
    is_answered = len(answered) >= len(reference) or is_told
    require(is_answered, "a request is not answered", statuses, reference)
    if len(reference) == 1 and _PLAIN.fullmatch(data.removesuffix(reference[0].body)):
        require(answered == [503], "a request is not rejected", statuses, asked)


_FIELDS: Final = rb"(?:(?!content-length|transfer-encoding|expect|upgrade)[a-z-]+: [!-~]*\r\n)*"
_PLAIN: Final = re.compile(
    rb"(?:GET|POST|PUT|PATCH|DELETE) /api/[!-~]* HTTP/1\.[01]\r\n"
    rb"(?i:" + _FIELDS + rb"(?:content-length: [0-9]{1,4}\r\n)?" + _FIELDS + rb")\r\n"
)
"""The head of a request that is rejected without the parser."""


def _talked(connections: FuzzedServer, pieces: list[bytes]) -> tuple[list[ParsedRequest], bytes]:
    _echo.asked = []
    written = run_now(connections.talk(pieces))
    return _echo.asked, written


def answers_in(written: bytes) -> list[int]:
    """Return the statuses of the answers, which must be complete except for HEAD."""
    statuses = []
    rest = written
    while rest:
        head, end, rest = rest.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        require(end and lines[0].startswith(b"HTTP/1.1 "), "an invalid answer", written[-300:])
        statuses.append(int(lines[0][9:12]))
        fields = dict(line.lower().split(b": ", 1) for line in lines[1:] if b": " in line)
        require(b"server" not in fields, "the server names its software")
        if fields.get(b"transfer-encoding") == b"chunked":
            _, _, rest = rest.partition(b"0\r\n\r\n")
        elif not rest.startswith(b"HTTP/1.1 "):  # otherwise the answer to a HEAD
            rest = rest[int(fields.get(b"content-length", b"0")) :]
    return statuses


def by_reference(data: bytes) -> tuple[list[ParsedRequest], str]:
    """Parse with h11; return the complete requests, and the reason if it rejects the rest."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=2**20)
    found: list[ParsedRequest] = []
    try:
        connection.receive_data(data)
        while (request := _next_request(connection)) is not None:
            if request.method == "PRI":  # the preface of HTTP/2 (RFC 9113 section 3.4)
                return found, "HTTP/2"
            found.append(request)
            if not _is_answered(connection, request):
                break
    except h11.RemoteProtocolError as error:
        return found, str(error) or type(error).__name__
    return found, ""


def _next_request(connection: h11.Connection) -> ParsedRequest | None:
    """Return the next request; None if none is complete."""
    head = connection.next_event()
    if not isinstance(head, h11.Request):
        return None
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    if not isinstance(event, h11.EndOfMessage):
        return None
    return ParsedRequest(head.method.decode(), _origin_form(head.target), body)


def _is_answered(connection: h11.Connection, request: ParsedRequest) -> bool:
    """Answer a request; return whether another one may follow it."""
    if connection.their_state not in (h11.DONE, h11.MUST_CLOSE):  # the protocol may change
        return False
    length = [] if request.method == "HEAD" else [("content-length", "0")]
    connection.send(h11.Response(status_code=200, headers=length))
    connection.send(h11.EndOfMessage())
    if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
        return False
    connection.start_next_cycle()
    return True


def _origin_form(target: bytes) -> bytes:
    """Remove scheme, host, fragment and empty query, as for an application (RFC 9112 section
    3.2.2).
    """
    target = target.partition(b"#")[0]
    target = (
        re.sub(rb"^[a-z]+://[^/?]*", b"", target, flags=re.IGNORECASE)
        if b"://" in target
        else target
    )
    return target.removesuffix(b"?") if target.count(b"?") == 1 else target


def _is_harmless(refused: str, data: bytes) -> bool:
    """Return whether h11 rejects input whose request boundaries are unambiguous."""
    return any(reason in refused and holds(data.lower()) for reason, holds in _HARMLESS)


_HARMLESS: Final[tuple[tuple[str, Callable[[bytes], bool]], ...]] = (
    # servers ignore empty lines before a request (RFC 9112 section 2.2)
    ("no request line received", lambda data: re.search(rb"(?:^|\n)\r?\n", data) is not None),
    # and a single CR before it
    (r"illegal request line: bytearray(b'\r", lambda data: b"\r" in data),
    # several blanks equal one (RFC 9112 section 3)
    ("illegal request line", lambda data: b"  " in data),
    # another protocol's name; the server closes the connection after it
    ("illegal request line", lambda data: b"ice/1" in data or b"rtsp/1" in data),
    # the last of several codings frames the body (RFC 9112 section 6.1)
    ("Only Transfer-Encoding: chunked is supported", lambda data: b"chunked" in data),
)


_SEEDS: Final = (
    (
        b"\x01GET /hot/a HTTP/1.1\r\nHost: a\r\n\r\n"
        b"GET /hot/a HTTP/1.1\r\nX-Forwarded-For: 203.0.113.9, \xff\r\nHost: a\r\n\r\n"
    ),
    b"\x02POST /other/a HTTP/1.1\r\nContent-Length: 4\r\nHost: a\r\n\r\nbodyGET /hot/a HTTP/1.1\r\nHost: a\r\n\r\n",
    (
        b"\x03POST /other/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: a\r\n\r\n"
        b"4;a=b\r\nbody\r\n0\r\nX-Trailer: a\r\n\r\nGET /hot/a HTTP/1.1\r\nHost: a\r\n\r\n"
    ),
    b"\x05POST /hot/a?b=c HTTP/1.0\r\nContent-Length: 4\r\nConnection: keep-alive\r\nHost: a\r\n\r\nbody",
    b"\x06POST /other/a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\nHost: a\r\n\r\nbody",
    b"\x07POST /other/a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 4\r\nHost: a\r\n\r\nGET ",
    b"\x01HEAD /hot/a HTTP/1.1\r\nHost: a\r\n\r\nCONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\x01GET http://a/hot/b?c#d HTTP/1.1\r\nHost: a\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\x01POST /other/a HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 4\r\nHost: a\r\n\r\nbody",
    b"\x01POST /other/a HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\nHost: a\r\n\r\n0\r\n\r\n",
    b"\x01POST /other/a HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\nHost: a\r\n\r\n0\r\n\r\n",
    b"\x01POST /other/a HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\nHost: a\r\n\r\n0\r\n\r\n",
    b"\x01GET /hot/a HTTP/1.1\nHost: a\n\n",
    b"\x01GET /hot/a HTTP/1.1\r\nHost: a\n\r\nGET /hot/a HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\x01GET /hot/a HTTP/1.1\r\nA: b\r\n c\r\nHost: a\r\n\r\n",
    b"\x01GET /hot/\xff%ff%00 HTTP/1.1\r\nA: \x0b\xff\r\nHost: a\r\n\r\n",
    b"\x01\r\n\r\nGET /hot/a HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\x01PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
_WORDS: Final = (
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"/hot/a",
    b"/api/v1/a",
    b" HTTP/1.1\r\n",
    b" HTTP/1.0\r\n",
    b"\r\n\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"\n\n",
    b"Content-Length: ",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: ",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Upgrade: h2c\r\n",
    b"Expect: 100-continue\r\n",
    b"Host: a\r\n",
    b"0\r\n\r\n",
    b"4\r\nbody\r\n",
    b";a=b",
    b": ",
    b" : ",
    b",",
    b"\t",
    b"\x00",
    b"+4",
    b"0x4",
    b"ffffffffffffffff",
    b"18446744073709551616",
)

TARGETS: Final = (
    Target(
        name="http",
        reads="bytes on a connection, from any client; compared with h11",
        check=check_lines,
        seeds=lambda: _SEEDS,
        words=_WORDS,
        max_size=2048,
    ),
    Target(
        name="http-overloaded",
        reads="the same during overload",
        check=check_shedding,
        seeds=lambda: [
            seed.replace(b"/hot/a", b"/api/v1/a").replace(b"/other/a", b"/api/v1/b")
            for seed in _SEEDS
        ],
        words=_WORDS,
        max_size=2048,
    ),
)

logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
