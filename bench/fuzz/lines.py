"""Bytes on a connection, as the server's protocol takes them, without a socket."""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import h11
import uvicorn
from uvicorn.server import ServerState

from bench.fuzz.target import Finding, Target, at_once, hold
from tenantry.domain.errors import PayloadTooLargeError
from tenantry.server.asgi_types import AsgiApp, HotRequest, HotResponse, Receive, Scope, Send
from tenantry.server.dispatch import IS_HEAD, Dispatcher, HotRoutes
from tenantry.server.load_shedding import LoadSheddingProtocol
from tenantry.server.metrics import Metrics
from tenantry.server.overload_detection import OVERLOAD_DETECTOR, OverloadDetector

_TURNS: Final = 8
"""Of the event loop, after which nothing more happens without further bytes."""
_MOST_TURNS: Final = 400


class Request(NamedTuple):
    """A request as a server has understood it."""

    method: str
    target: bytes
    body: bytes


class Wire(asyncio.Transport):
    """The server's end of a connection that is none: what is written is kept."""

    def __init__(self) -> None:
        super().__init__({"peername": ("198.51.100.7", 1234), "sockname": ("127.0.0.1", 80)})
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        hold(not self.is_closed, "something is written after the end")
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
        raise Finding(f"the connection is handed over to {protocol}")

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class Connections:
    """Connections to an application."""

    def __init__(self, app: AsgiApp, state: dict[str, Any]) -> None:
        self._config = uvicorn.Config(
            cast("Any", app), http=LoadSheddingProtocol, ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, date_header=False, proxy_headers=True, forwarded_allow_ips="*",
        )  # fmt: skip
        self._config.load()
        self._state = state
        self.faults: list[str] = []

    async def talk(self, pieces: list[bytes], is_done: Callable[[], bool] = lambda: True) -> bytes:
        """Send these pieces, hang up, and return all that was answered."""
        wire = Wire()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_fault)
        protocol = LoadSheddingProtocol(self._config, ServerState(), self._state, loop)
        protocol.connection_made(wire)
        for piece in pieces:
            if piece and not wire.is_closed:
                protocol.data_received(piece)
                await _settle(wire, is_done)
        if not wire.is_closed:
            protocol.eof_received()
        protocol.connection_lost(None)
        await _settle(wire, is_done)
        for task in list(protocol.tasks):
            task.cancel()
        faults, self.faults = self.faults, []
        hold(not faults, "something went wrong behind a request", *faults)
        return bytes(wire.written)

    def _on_fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(f"{context.get('message')} {context.get('exception')!r}")


async def _settle(wire: Wire, is_done: Callable[[], bool]) -> None:
    """Let the event loop turn until nothing more is answered; each of many requests at once takes its turns."""
    size, since = len(wire.written), 0
    for turn in range(_MOST_TURNS):
        await asyncio.sleep(0)
        if len(wire.written) != size:
            size, since = len(wire.written), turn
        if turn - since > _TURNS and is_done():
            break


class _Echo:
    """An application that remembers what it was asked. Below ``/hot/`` it is asked the short way."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        hot = HotRoutes()
        hot.add_prefix("/hot/", "/hot/{anything}", self._answer)
        self.front = Dispatcher(hot, self, Metrics(several_processes=False))

    async def _answer(self, request: HotRequest) -> HotResponse:
        try:
            body = await request.body()
        except PayloadTooLargeError:
            return HotResponse(413, [])
        self.asked.append(_asked(request.scope, body))
        return HotResponse(200, [], b"hot")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts, more = [], True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        self.asked.append(_asked(scope, b"".join(parts)))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"cold"})


def _asked(scope: Scope, body: bytes) -> Request:
    path = scope.get("raw_path") or scope["path"].encode()
    method = "HEAD" if scope.get(IS_HEAD) else scope["method"]
    return Request(method, path + (b"?" + scope["query_string"] if scope["query_string"] else b""), body)


_echo: Final = _Echo()
_connections: Final = Connections(_echo.front, {**_echo.front.state, OVERLOAD_DETECTOR: None})


class _Overloaded(OverloadDetector):
    """A detector that always reports overload."""

    def is_overloaded(self, concurrent: int, answered: int) -> bool:  # noqa: ARG002
        return True


_full: Final = Connections(
    _echo.front, {**_echo.front.state, OVERLOAD_DETECTOR: _Overloaded(Metrics(several_processes=False), lambda: 0)}
)


def check_lines(data: bytes) -> None:
    """What is on a connection is understood as another server understands it, in whatever pieces it comes.

    The first byte says how many pieces. A request that one of the two refuses need not be understood by the other; but
    what both take must be the same requests, in their order, with the same bodies: or one could be hidden in another.
    """
    cut, data = data[:1], data[1:]
    asked, written = _talked(_connections, [data])
    if cut and cut[0] % 4:
        size = max(1, len(data) // (cut[0] % 61 + 1))
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        again, answered = _talked(_connections, pieces)
        # requests that wait for their turn are not asked any more where what follows them is refused
        broken_off = 400 in answers_in(written) + answers_in(answered)
        whole = min(len(asked), len(again)) if broken_off else max(len(asked), len(again))
        hold(asked[:whole] == again[:whole], "it depends on the pieces", asked, again)
    statuses = answers_in(written)
    reference, refused = by_reference(data)
    if re.search(rb"\nupgrade", data.lower()):
        # the body of a request to upgrade is passed over, and the connection ends after it: this must be all
        hold(len(asked) <= len(reference) + 1, "a request to upgrade is not the last one", asked, reference)
        asked, reference = asked[: len(reference)], reference[: len(asked)]
        asked = asked[:-1] + [ours._replace(body=reference[-1].body) for ours in asked[-1:]]
    for ours, theirs in zip(asked, reference, strict=False):
        hold(ours == theirs, "a request is understood in two ways", ours, theirs)
    if refused and len(asked) > len(reference):
        hold(
            _is_harmless(refused, data), f"a request is taken that another server refuses ({refused})", asked, statuses
        )
    if not refused and len(asked) < len(reference):
        is_told = any(status != 200 for status in statuses) or b"\r\nconnection: close\r\n" in written
        hold(is_told, "a request is lost", asked, reference)
    elif not refused:
        hold(len(asked) == len(reference), "a request is made up", asked, reference)


def check_shedding(data: bytes) -> None:
    """A server that has too much to do refuses what it can, and answers each request once: no more, and no fewer."""
    data = data[1:]
    asked, written = _talked(_full, [data])
    statuses = answers_in(written)
    reference, refused = by_reference(data)
    if refused:
        return
    answered = [status for status in statuses if status != 100]
    # the last one may be refused before its body is there
    hold(len(answered) <= max(len(reference) + 1, len(asked)), "an answer too many", statuses)
    if not re.search(rb"\nupgrade", data.lower()):
        is_told = b"\r\nconnection: close\r\n" in written
        hold(len(answered) >= len(reference) or is_told, "a request is lost", statuses, reference)
    if len(reference) == 1 and _PLAIN.fullmatch(data.removesuffix(reference[0].body)):
        hold(answered == [503], "a request is not refused", statuses, asked)


_FIELDS: Final = rb"(?:(?!content-length|transfer-encoding|expect|upgrade)[a-z-]+: [!-~]*\r\n)*"
_PLAIN: Final = re.compile(
    rb"(?:GET|POST|PUT|PATCH|DELETE) /api/[!-~]* HTTP/1\.[01]\r\n"
    rb"(?i:" + _FIELDS + rb"(?:content-length: [0-9]{1,4}\r\n)?" + _FIELDS + rb")\r\n"
)
"""The head of a request that can be refused without the parser."""


def _talked(connections: Connections, pieces: list[bytes]) -> tuple[list[Request], bytes]:
    _echo.asked = []
    written = at_once(connections.talk(pieces))
    return _echo.asked, written


def answers_in(written: bytes) -> list[int]:
    """The statuses of the answers, which must be whole but for those to a HEAD."""
    statuses = []
    rest = written
    while rest:
        head, end, rest = rest.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        hold(end and lines[0].startswith(b"HTTP/1.1 "), "an answer that is none", written[-300:])
        statuses.append(int(lines[0][9:12]))
        fields = dict(line.lower().split(b": ", 1) for line in lines[1:] if b": " in line)
        hold(b"server" not in fields, "the server says what it is")
        if fields.get(b"transfer-encoding") == b"chunked":
            _, _, rest = rest.partition(b"0\r\n\r\n")
        elif not rest.startswith(b"HTTP/1.1 "):  # else the answer to a HEAD
            rest = rest[int(fields.get(b"content-length", b"0")) :]
    return statuses


def by_reference(data: bytes) -> tuple[list[Request], str]:
    """The whole requests as h11 understands them, and why it goes no further, where it refuses to."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=2**20)
    found: list[Request] = []
    current: h11.Request | None = None
    body = b""
    try:
        connection.receive_data(data)
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                current, body = event, b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and current is not None:
                found.append(Request(current.method.decode(), _origin_form(current.target), body))
                if found[-1].method == "PRI":  # the beginning of HTTP/2, and no request (RFC 9113 section 3.4)
                    return found[:-1], "HTTP/2"
                if connection.their_state not in (h11.DONE, h11.MUST_CLOSE):  # it may become another protocol
                    return found, ""
                length = [] if current.method == b"HEAD" else [("content-length", "0")]
                connection.send(h11.Response(status_code=200, headers=length))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return found, ""
                connection.start_next_cycle()
            else:
                return found, ""
    except h11.RemoteProtocolError as error:
        return found, str(error) or type(error).__name__


def _origin_form(target: bytes) -> bytes:
    """The target without scheme, host, fragment and empty query, as an application gets it (RFC 9112 section 3.2.2)."""
    target = target.partition(b"#")[0]
    target = re.sub(rb"^[a-z]+://[^/?]*", b"", target, flags=re.IGNORECASE) if b"://" in target else target
    return target.removesuffix(b"?") if target.count(b"?") == 1 else target  # an empty query is none


def _is_harmless(refused: str, data: bytes) -> bool:
    """Whether h11 refuses what has one meaning for everybody: where the next request begins is the same by it."""
    return any(reason in refused and holds(data.lower()) for reason, holds in _HARMLESS)


_HARMLESS: Final[tuple[tuple[str, Callable[[bytes], bool]], ...]] = (
    # empty lines before a request mean nothing (RFC 9112 section 2.2)
    ("no request line received", lambda data: re.search(rb"(?:^|\n)\r?\n", data) is not None),
    # and so do single ends of lines before it
    (r"illegal request line: bytearray(b'\r", lambda data: b"\r" in data),
    # several blanks are as good as one (RFC 9112 section 3)
    ("illegal request line", lambda data: b"  " in data),
    # another protocol's name; the connection ends after it
    ("illegal request line", lambda data: b"ice/1" in data or b"rtsp/1" in data),
    # of several codings the last one frames the body, here and everywhere (RFC 9112 section 6.1)
    ("Only Transfer-Encoding: chunked is supported", lambda data: b"chunked" in data),
)


_HOST: Final = b"Host: a\r\n\r\n"


def _seeds() -> list[bytes]:
    get, post = b"GET /hot/a HTTP/1.1\r\n", b"POST /other/a HTTP/1.1\r\n"
    return [
        b"\1" + get + _HOST + get + b"X-Forwarded-For: 203.0.113.9, \xff\r\n" + _HOST,
        b"\2" + post + b"Content-Length: 4\r\n" + _HOST + b"body" + get + _HOST,
        b"\3"
        + post
        + b"Transfer-Encoding: chunked\r\n"
        + _HOST
        + b"4;a=b\r\nbody\r\n0\r\nX-Trailer: a\r\n\r\n"
        + get
        + _HOST,
        b"\5POST /hot/a?b=c HTTP/1.0\r\nContent-Length: 4\r\nConnection: keep-alive\r\n" + _HOST + b"body",
        b"\6" + post + b"Expect: 100-continue\r\nContent-Length: 4\r\n" + _HOST + b"body",
        b"\7" + post + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 4\r\n" + _HOST + b"GET ",
        b"\1HEAD /hot/a HTTP/1.1\r\n" + _HOST + b"CONNECT a:1 HTTP/1.1\r\n" + _HOST,
        b"\1GET http://a/hot/b?c#d HTTP/1.1\r\n" + _HOST + b"OPTIONS * HTTP/1.1\r\n" + _HOST,
        b"\1" + post + b"Content-Length: 4\r\nContent-Length: 4\r\n" + _HOST + b"body",
        b"\1" + post + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n" + _HOST + b"0\r\n\r\n",
        b"\1" + post + b"Transfer-Encoding: gzip, chunked\r\n" + _HOST + b"0\r\n\r\n",
        b"\1" + post + b"Transfer-Encoding: chunked, identity\r\n" + _HOST + b"0\r\n\r\n",
        b"\1GET /hot/a HTTP/1.1\nHost: a\n\n",
        b"\1" + get + b"Host: a\n\r\n" + get + _HOST,
        b"\1GET /hot/a HTTP/1.1\r\nA: b\r\n c\r\n" + _HOST,
        b"\1GET /hot/\xff%ff%00 HTTP/1.1\r\nA: \x0b\xff\r\n" + _HOST,
        b"\1\r\n\r\nGET /hot/a HTTP/1.1\r\n" + _HOST,
        b"\1PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]


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
        meets="what comes in on a connection, of anybody; beside h11's reading of it",
        check=check_lines,
        seeds=_seeds,
        words=_WORDS,
        largest=2048,
    ),
    Target(
        name="http-overloaded",
        meets="the same while requests are shed",
        check=check_shedding,
        seeds=lambda: [seed.replace(b"/hot/a", b"/api/v1/a").replace(b"/other/a", b"/api/v1/b") for seed in _seeds()],
        words=_WORDS,
        largest=2048,
    ),
)

logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
