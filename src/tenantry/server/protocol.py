"""The server's HTTP protocol, at less cost for each request."""

import asyncio
import logging
import re
from copy import copy
from functools import lru_cache
from typing import Any, Final, cast

import httptools
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tenantry.server import protocol_errors as unfit
from tenantry.server.asgi_types import (
    HOT_DOOR,
    IS_WHOLE,
    AsgiApp,
    HotDoor,
    HotRoute,
    RawAnswer,
    RawRequest,
    Receive,
    Scope,
    Send,
    header_of,
)
from tenantry.server.client_timeouts import (
    MOST_AROUND,
    MOST_CHUNKS,
    MOST_FIELDS,
    MOST_HEAD,
    MOST_PIPELINED,
    MOST_TARGET,
    MOST_UNREAD,
    NEVER,
    WATCH,
    Wait,
    Watch,
)
from tenantry.server.protocol_errors import Unfit, UnfitError
from tenantry.server.responses import COMMON_FIELDS, JoinedWrites
from tenantry.server.shutdown import ENDING, Shutdown

LAST_WAIT: Final = 0.5
"""Seconds for which a connection of a process that ends has to be idle before it is closed: a request may be coming."""

_VERSIONS: Final = ("1.1", "1.0")
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{0,5}))?")
_MAX_PORT: Final = 65_535
_NOTHING: Final = Wait.NOTHING
_NEXT: Final = Wait.NEXT
_HOT_METHODS: Final = {b"GET": "GET", b"POST": "POST"}
_PLAIN_PATH: Final = re.compile(rb"/[A-Za-z0-9/:*._-]*")
_LENGTH_DIGITS: Final = 5
_LONGEST_TARGET: Final = 256
_NO_PATH: Final = re.compile(rb"\A[A-Za-z][A-Za-z0-9+.-]*://[^/?#]+(?=\?|\Z)")
_CONTROLS: Final = bytes({*range(0x20), 0x7F} - {ord("\t")})

logger = logging.getLogger(__name__)


class LeanProtocol(HttpToolsProtocol):
    """uvicorn's protocol on httptools, with a short way for hot routes, one write an answer, and limits on its client.

    Where the state of the lifespan holds a `HotDoor`, requests of its routes are handed in there once they are whole,
    and each answer leaves in one write, both without ASGI's messages. That is for requests of the usual form alone: a
    GET without a body or a POST with one of known length below 100 KB, a short path that can be read in one way only,
    no ``Expect`` or ``Upgrade``, and nothing else under way on the connection. All others go the long way, where the
    same routes are found again. The parser is uvicorn's on both.

    On the long way what an answer writes is joined: two writes are two system calls and two packets, and wake the
    client twice.

    How long the client is waited for, and how much is taken of it, is in `patience`: the process's `Watch` ends what
    is overdue. What is not HTTP/1.1 as RFC 9112 has it is refused with a problem document, after the answers to all
    that was well-formed before it; where one of those is still to come, it is the last one instead.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # uvicorn's own
        super().__init__(*args, **kwargs)
        self._door: HotDoor | None = self.app_state.get(HOT_DOOR)
        self._watch: Watch = self.app_state.get(WATCH) or self.app_state.setdefault(WATCH, Watch())
        self._now = self._watch.now
        self._ending: Shutdown = self.app_state.get(ENDING) or Shutdown()
        self._proxies = _looking_through(self.app) if isinstance(self.app, ProxyHeadersMiddleware) else None
        self._hot: HotCycle | None = None
        self.is_reading = False
        """Whether a request has begun and is not whole yet."""
        self.is_arriving = False
        """Whether it has a task already, for which the rest of it has to come."""
        self.is_deaf = False
        """Whether nothing more is read: the connection ends with what is under way."""
        self.waits = Wait.FIRST
        self.due = NEVER
        self.has_asked = False
        self.held = 0
        self._has_head = False
        self._fed = 0
        self._arrived = 0
        self._taken = 0
        self._chunks = 0
        self._unread = 0
        self._unsent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin on a transport of the event loop."""
        self._joined = JoinedWrites(cast("asyncio.Transport", transport), self.loop)
        self.write_now = self._joined.write_now
        super().connection_made(cast("asyncio.Transport", self._joined))
        if self._watch.admit(self):
            self.due = self._now() + self._watch.limits.head
        else:
            self._watch.count(unfit.CROWDED.limit)
            self._end_with(unfit.CROWDED)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._watch.forget(self)
        super().connection_lost(exc)
        if self.is_reading and self._hot is not None and self._door is not None:
            self._door.count_gone(self._hot.route, self._hot.request)

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        if self.is_deaf:
            return
        self._arrived = self._fed = self._fed + len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.is_deaf = True  # what follows would be of another protocol, which is not spoken here
        except httptools.HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, UnfitError | httptools.HttpParserError | None):
                logger.exception("a request could not be read", exc_info=cause)
            self._refuse(cause.unfit if isinstance(cause, UnfitError) else unfit.MALFORMED)
        else:
            if self.is_reading:
                self._wait_for_the_rest()
                if self._has_head:
                    self._hold_body()

    def drain(self) -> None:
        """Let the answer under way be the connection's last one, if nothing of it is sent yet."""
        if not getattr(self.cycle, "response_started", True):
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """The server closes: let what is under way end, and then the connection once it is idle for `LAST_WAIT`."""
        self._ending.close()
        self.drain()
        if self.waits in (Wait.FIRST, Wait.NEXT):
            self.due = min(self.due, self._now() + LAST_WAIT)

    def on_message_begin(self) -> None:
        """A request's first byte is there."""
        self.is_reading = True
        self._has_head = False
        self._fed = self._taken = self._unread = 0
        self._hot = None
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of a request's head is there, or one behind a chunked body, of which nobody is told."""
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """A request's head is there. Raises `UnfitError`."""
        version = self.parser.get_http_version()
        if (
            self._arrived > MOST_HEAD
            or len(self.headers) > MOST_FIELDS
            or len(self.url) > MOST_TARGET
            or len(self.pipeline) >= MOST_PIPELINED
        ):
            self._check_size()
        self._hot = self._hot_cycle(version)
        if self._hot is not None:
            self.cycle = cast("RequestResponseCycle", self._hot)  # it has all that uvicorn asks of one
            self._has_head = True
            return
        self._check_fields(version)
        self._chunks = 0
        url, headers = _NO_PATH.sub(rb"\g<0>/", self.url), self.headers
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()
        self._has_head = True
        self.headers = []
        if self._ending.is_draining:
            self.cycle.keep_alive = False
        self.is_arriving = not self.pipeline
        if version == "1.0":
            self.cycle.waiting_for_100_continue = False  # which does not know of that (RFC 9110, 10.1.1)
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # the parser would take a body for the next request
        elif self.cycle.waiting_for_100_continue and not self.pipeline:
            # answered without a body asked for, the client might send it or not: nobody could tell what comes next
            self.cycle.waiting_for_100_continue = False
            self.write_now(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A part of a request's body is there."""
        self._taken += len(body)
        if self._hot is not None:
            self._hot.request.whole += body
            return
        if self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > MOST_UNREAD:
                self._close()
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """A part of a chunked body begins. Raises `UnfitError`."""
        self._chunks += 1
        if self._chunks > MOST_CHUNKS:
            raise UnfitError(unfit.CHUNKS)

    def on_message_complete(self) -> None:
        """A request is there as a whole, maybe after its answer."""
        self.is_reading = False
        self.has_asked = True
        if self.held:
            self._watch.hold(self, 0)
        self._wait_at_most_for_reading()
        if self._hot is not None:
            task = self.loop.create_task(self._serve(self._hot))
            self.tasks.add(task)
            return
        self.is_arriving = False
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._wait_for_the_next()

    def on_response_complete(self) -> None:
        """Let the answer go, which is whole."""
        self._joined.flush()
        if self.pipeline:
            super().on_response_complete()
            self.is_arriving = not self.pipeline and self.cycle.more_body
            self.on_arriving_changed()
            if self.is_arriving and not self.is_deaf:
                self._wait_for_the_rest()
            return
        if self.is_arriving:
            self.is_arriving = False
            self.on_arriving_changed()
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self.is_deaf:
            self._close()
        else:
            self.flow.resume_reading()
            if not self.is_reading:
                self._wait_for_the_next()

    def on_arriving_changed(self) -> None:
        """`is_arriving` may have changed other than by what came in."""

    def pause_writing(self) -> None:
        """The client reads more slowly than there is something for it."""
        super().pause_writing()
        self._wait_for_reading()

    def resume_writing(self) -> None:
        """The client has read most of what there was."""
        super().resume_writing()
        if self.waits is not Wait.READING or self.transport.is_closing():
            return
        if self.is_reading and not self.is_deaf:
            self.waits = _NOTHING
            self._wait_for_the_rest()
        elif not getattr(self.cycle, "response_complete", True):
            self.waits, self.due = _NOTHING, NEVER
        else:
            self._wait_for_the_next()

    def on_due(self, now: float) -> None:
        """The client has had its time."""
        size = self.transport.get_write_buffer_size()
        if self.waits is Wait.READING:
            if size and size < self._unsent:
                self._unsent, self.due = size, now + self._watch.limits.reading
            elif size or self.transport.is_closing():
                self._watch.count("reading_seconds")
                self.transport.abort()
            else:
                self._wait_for_the_next()
        elif self.waits is Wait.HEAD:
            self._refuse(unfit.LATE_HEAD)
        elif self.waits is Wait.BODY:
            self._refuse(unfit.LATE_BODY)
        elif size:
            self._wait_for_reading()
        else:
            self._close()

    def give_up(self) -> None:
        """Its place is needed."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def give_up_body(self) -> None:
        """The memory of its body is needed."""
        self._refuse(unfit.FULL)

    def _wait_for_the_next(self) -> None:
        self.waits, self.due = _NEXT, self._now() + self.timeout_keep_alive

    def _wait_for_the_rest(self) -> None:
        limits = self._watch.limits
        if self._has_head and self.pipeline:  # what comes is read once it is its turn, and may have been sent long ago
            if self.waits is not Wait.READING:
                self._wait_at_most_for_reading()
        elif self._has_head:
            if self.waits is not Wait.BODY:
                self.waits, self.due = Wait.BODY, self._now() + limits.body
        elif self._fed > MOST_HEAD:
            self._refuse(unfit.LARGE_HEAD)
        elif self.waits is Wait.FIRST:
            self.waits = Wait.HEAD  # due since it connected
        elif self.waits is not Wait.HEAD:
            self.waits, self.due = Wait.HEAD, self._now() + limits.head

    def _hold_body(self) -> None:
        if self._fed - self._taken > MOST_AROUND:
            self._refuse(unfit.AROUND)
        elif self._taken:
            self._watch.hold(self, 0 if self.cycle.response_complete else self._taken)

    def _wait_at_most_for_reading(self) -> None:
        """Its client has nothing to send, and may have something left to read."""
        if self.flow.write_paused:
            self._wait_for_reading()
        else:
            self.waits, self.due = _NOTHING, NEVER

    def _wait_for_reading(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self.waits, self.due = Wait.READING, self._now() + self._watch.limits.reading

    def _close(self) -> None:
        """Read no more, and close once what was written is sent."""
        self.is_deaf = True
        self._wait_for_reading()
        self.transport.close()

    def _check_size(self) -> None:
        if len(self.url) > MOST_TARGET:
            raise UnfitError(unfit.LONG_TARGET)
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MOST_HEAD or len(self.headers) > MOST_FIELDS:
            raise UnfitError(unfit.LARGE_HEAD)
        if len(self.pipeline) >= MOST_PIPELINED:
            raise UnfitError(unfit.PIPELINED)

    def _check_fields(self, version: str) -> None:
        """What can be read in two ways, and is not refused by the parser, or only once the head is passed on."""
        if version not in _VERSIONS:
            raise UnfitError(unfit.OTHER_VERSION)
        hosts = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
                if not _is_host(value):
                    raise UnfitError(unfit.HOST)
            elif name == b"transfer-encoding" and (value.lower() != b"chunked" or version == "1.0"):
                raise UnfitError(unfit.CODING)
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            raise UnfitError(unfit.HOSTS)

    def _refuse(self, why: Unfit) -> None:
        """Refuse what has come of a request, in its turn, and read no more."""
        self._watch.count(why.limit)
        self._watch.hold(self, 0)
        self.is_deaf = True
        self._wait_at_most_for_reading()
        cycle = self.cycle
        if not (self.is_reading and self._has_head):  # nobody was told of it
            if getattr(cycle, "response_complete", True):
                self._end_with(why)
            elif not cycle.response_started:
                cycle.keep_alive = False
        elif self.pipeline:
            self.pipeline.popleft()
            self.pipeline.appendleft((cycle, cast("Any", _refusing(why))))
            cycle.keep_alive = False
        elif cycle.response_started:
            self._close()
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            self._end_with(why)

    def _end_with(self, why: Unfit) -> None:
        self.is_deaf = True
        if self.transport.is_closing():
            return
        self.write_now(why.answer(COMMON_FIELDS.in_words(self.server_state.default_headers), self._named()))
        self._close()

    def _named(self) -> bytes | None:
        headers = self.cycle.scope["headers"] if self._has_head and self._hot is None else self.headers or ()
        return next((value for name, value in headers if name == b"x-request-id"), None)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ANN401  # uvicorn's own
        """Begin with a request. Where its client goes before it is whole, it still arrives until its task has ended."""

        async def run(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
            scope[IS_WHOLE] = not cycle.more_body
            try:
                await app(scope, receive, send)
            finally:
                task = asyncio.current_task()
                if cycle.disconnected and self.is_arriving and task is not None:
                    task.add_done_callback(self._give_up_on_the_rest)  # it counts as under way until then

        super()._start_asgi_task(cycle, run)

    def _give_up_on_the_rest(self, _: asyncio.Task[None]) -> None:
        self.is_arriving = False
        self.on_arriving_changed()

    def _hot_cycle(self, version: str) -> "HotCycle | None":
        """The request whose head has come, if it can go the short way."""
        parser, door = self.parser, self._door
        method = _HOT_METHODS.get(parser.get_method())
        target = _plain_target(self.url) if len(self.url) <= _LONGEST_TARGET else None
        if door is None or method is None or target is None or version not in _VERSIONS:
            return None
        path, query = target
        route = door.find(method, path)
        if route is None or parser.should_upgrade():
            return None
        if not getattr(self.cycle, "response_complete", True):
            return None
        request = RawRequest(
            {
                "type": "http",
                "method": method,
                "path": path,
                "query_string": query,
                "headers": self.headers,
                "client": self.client,
                "scheme": self.scheme,
            }
        )
        header = request.header
        length = header(b"content-length")
        if length is not None and (len(length) > _LENGTH_DIGITS or method != "POST"):
            return None
        # several Host fields are joined by a comma and a space, which no host contains
        if header(b"transfer-encoding") is not None or header(b"expect") is not None or not _is_host(header(b"host")):
            return None
        keep_alive = version != "1.0" and parser.should_keep_alive() and not self._ending.is_draining
        return HotCycle(route, request, keep_alive=keep_alive)

    async def _serve(self, cycle: "HotCycle") -> None:
        try:
            request = cycle.request
            if self._proxies is not None:
                await self._proxies(cast("Any", request.scope), _nobody, _nobody)
            answer = await cast("HotDoor", self._door).answer(cycle.route, request)
            if self.flow.write_paused:
                await self.flow.drain()
            if not cycle.disconnected and not self.transport.is_closing():
                self._give(cycle, answer)
        except BaseException as error:
            request_id = cycle.request.request_id.decode()
            if not cycle.response_complete and not cycle.disconnected and not self.transport.is_closing():
                cycle.keep_alive = False
                self._give(cycle, cast("HotDoor", self._door).fault(cycle.request))
            if not isinstance(error, Exception):
                raise
            logger.exception("request %s could not be answered", request_id)
        finally:
            # at once: the client's next request, which may be there already, must not find itself among those under way
            self.tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _give(self, cycle: "HotCycle", answer: RawAnswer) -> None:
        headers = answer.headers
        fields = b"".join([b"%b: %b\r\n" % header for header in headers])
        if len(fields.translate(None, _CONTROLS)) != len(fields) - len(b"\r\n") * len(headers):
            raise RuntimeError("A header of the answer has a control character in it.")
        last = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        common = COMMON_FIELDS.in_words(self.server_state.default_headers)
        cycle.response_complete = True
        self.write_now(b"".join((STATUS_LINE[answer.status], common, fields, last, answer.body)))
        if not cycle.keep_alive:
            self._close()
        self.on_response_complete()


class HotCycle:
    """A request of a hot route until it is answered, in the place of uvicorn's cycle of ASGI's messages."""

    __slots__ = ("disconnected", "keep_alive", "request", "response_complete", "route")

    message_event: Final = asyncio.Event()
    """What uvicorn sets when something came in. Nobody waits for it here."""

    def __init__(self, route: HotRoute, request: RawRequest, *, keep_alive: bool) -> None:
        self.route = route
        self.request = request
        self.keep_alive = keep_alive
        self.response_complete = False
        self.disconnected = False

    @property
    def response_started(self) -> bool:
        """Whether some of the answer was sent; it is sent in one."""
        return self.response_complete


@lru_cache(256)
def _is_host(value: bytes | None) -> bool:
    """Whether a Host field has a valid value (RFC 9110 section 7.2): libraries fail on URLs with any other port."""
    match = None if value is None else _HOST.fullmatch(value)
    return match is not None and int(match[1] or 0) <= _MAX_PORT


@lru_cache(256)
def _plain_target(url: bytes) -> tuple[str, bytes] | None:
    """The path and the query, where the path can be read in one way only."""
    path, _, query = url.partition(b"?")
    return (path.decode(), query) if _PLAIN_PATH.fullmatch(path) and b"#" not in query else None


def _refusing(why: Unfit) -> AsgiApp:
    """Answers with this refusal."""

    async def refuse(scope: Scope, _receive: Receive, send: Send) -> None:
        answer = why.refusal(header_of(scope, b"x-request-id"))
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body})

    return refuse


@lru_cache(1)
def _looking_through(middleware: ProxyHeadersMiddleware) -> ProxyHeadersMiddleware:
    """Puts the client's address into a scope in the place of a trusted proxy's, and does nothing else."""
    alone = copy(middleware)
    alone.app = _nobody
    return alone


async def _nobody(*_: object) -> Any:  # noqa: ANN401  # in the place of whatever ASGI asks for
    """Nobody asks, and nobody answers."""
