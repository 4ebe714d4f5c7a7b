"""The HTTP protocol: uvicorn's on httptools, with a short path for hot routes and limits on
clients.
"""

import asyncio
import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from functools import lru_cache
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from tenantry.server import protocol_errors
from tenantry.server.asgi_types import (
    BODY_COMPLETE,
    HOT_DISPATCHER,
    PEER,
    DirectRequest,
    Header,
    HotDispatcher,
    HotResponse,
    HotRoute,
    Scope,
    encode_headers,
    values_of,
)
from tenantry.server.client_limits import (
    CONNECTION_MONITOR,
    MAX_CHUNKS,
    MAX_DISCARDED_BYTES,
    MAX_FORWARDED,
    MAX_FRAMING_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    MAX_TARGET_BYTES,
    NEVER,
    ConnectionMonitor,
    WaitState,
)
from tenantry.server.cors import CORS_POLICY, CorsPolicy
from tenantry.server.protocol_errors import RequestRejectedError, RequestRejection
from tenantry.server.shutdown import SHUTDOWN, Shutdown

# how long a connection must be idle before a process that shuts down closes it
FINAL_IDLE_SECONDS: Final = 0.5

_VERSIONS: Final = ("1.1", "1.0")
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{0,5}))?")
_MAX_PORT: Final = 65_535
_NO_CODING: Final = frozenset[bytes]()
_CODINGS: Final = {"1.1": frozenset({b"chunked"})}
"""The transfer codings by version. HTTP/1.0 has none (RFC 9112 section 6.1)."""
_HOT_METHODS: Final = {b"GET": "GET", b"POST": "POST"}
_HOT_PATH: Final = re.compile(rb"/[A-Za-z0-9/:*._-]*")
_MAX_HOT_LENGTH_DIGITS: Final = 5
_MAX_HOT_TARGET_BYTES: Final = 256
_URL_WITHOUT_PATH: Final = re.compile(rb"\A[A-Za-z][A-Za-z0-9+.-]*://[^/?#]+(?=\?|\Z)")
_TIMEOUTS: Final = {
    WaitState.HEAD: protocol_errors.HEAD_TIMEOUT,
    WaitState.BODY: protocol_errors.BODY_TIMEOUT,
}
_CONTROLS: Final = bytes({*range(0x20), 0x7F} - {ord("\t")})

logger = logging.getLogger(__name__)


class _DefaultHeaders:
    """The encoded headers that every response has. uvicorn makes new ones once a second."""

    def __init__(self) -> None:
        self._headers: Sequence[Header] = ()
        self._encoded = b""

    def encode(self, headers: Sequence[Header]) -> bytes:
        if headers is not self._headers:
            self._headers, self._encoded = headers, encode_headers(headers)
        return self._encoded


_default_headers: Final = _DefaultHeaders()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a short path for hot routes and limits on its client.

    The short path passes a complete request to the `HotDispatcher` in the lifespan state and writes
    the response at once, without ASGI messages. It takes requests of the usual form only: a GET
    without a body or a POST with one of known length below 100 KB, a short unambiguous path, no
    ``Expect`` or ``Upgrade``, and no other request in progress on the connection. All others go
    through ASGI, where the same routes are found.

    The process's `ConnectionMonitor` enforces timeouts. A malformed request is rejected with a
    problem document after the responses to all earlier requests; if one of those is still pending,
    it becomes the connection's last response.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # uvicorn's own
        super().__init__(*args, **kwargs)
        self._dispatcher: HotDispatcher | None = self.app_state.get(HOT_DISPATCHER)
        self._monitor: ConnectionMonitor = self.app_state.get(
            CONNECTION_MONITOR
        ) or self.app_state.setdefault(CONNECTION_MONITOR, ConnectionMonitor())
        self._now = self._monitor.now
        self._shutdown: Shutdown = self.app_state.get(SHUTDOWN) or Shutdown()
        self._cors: CorsPolicy | None = self.app_state.get(CORS_POLICY)
        self._proxies = (
            _scope_rewriter(self.app) if isinstance(self.app, ProxyHeadersMiddleware) else None
        )
        self._hot: HotRequestCycle | None = None
        self.is_reading = False  # whether a request has begun and is incomplete
        # whether an incomplete request already has a task, which waits for the rest
        self.is_arriving = False
        self.stops_reading = False
        """Whether the connection ignores further input and closes after the current responses."""
        self.url = b""
        self.waits = WaitState.FIRST
        self.deadline = NEVER
        self.has_sent_request = False
        self.body_bytes = 0
        self._has_head = False
        self._fed_bytes = 0
        self._received_bytes = 0
        self._read_body_bytes = 0
        self._chunks = 0
        self._discarded_bytes = 0
        self._unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        if self._monitor.register(self):
            self.deadline = self._now() + self._monitor.limits.head
        else:
            self._monitor.count(protocol_errors.TOO_MANY_CONNECTIONS.limit)
            self._end_with(protocol_errors.TOO_MANY_CONNECTIONS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._monitor.unregister(self)
        super().connection_lost(exc)
        if self.is_reading and self._hot is not None:
            self._hot.dispatcher.count_disconnect(self._hot.route, self._hot)

    def data_received(self, data: bytes) -> None:
        if self.stops_reading:
            return
        self._received_bytes = self._fed_bytes = self._fed_bytes + len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # the rest would be of another protocol, which is not supported
            self.stops_reading = True
        except httptools.HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, RequestRejectedError | httptools.HttpParserError | None):
                logger.exception("parsing a request failed", exc_info=cause)
            self._reject(
                cause.rejection
                if isinstance(cause, RequestRejectedError)
                else protocol_errors.MALFORMED
            )
        else:
            if self.is_reading:
                self._await_rest()
                if self._has_head:
                    self._check_body_bytes()

    def drain(self) -> bool:
        """Make the pending response the connection's last one; return false if none is pending or
        it has started.
        """
        is_pending = not getattr(self.cycle, "response_started", True)
        if is_pending:
            self.cycle.keep_alive = False
        return is_pending

    def shutdown(self) -> None:
        """Finish pending requests, then close the connection once it is idle for
        `FINAL_IDLE_SECONDS`.
        """
        self._shutdown.close()
        self.drain()
        if self.waits in (WaitState.FIRST, WaitState.NEXT):
            self.deadline = min(self.deadline, self._now() + FINAL_IDLE_SECONDS)

    def on_message_begin(self) -> None:
        self.is_reading = True
        self._has_head = False
        self._fed_bytes = self._read_body_bytes = self._discarded_bytes = 0
        self._hot = None
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header of the head; ignore trailers, but count them. Raises
        `RequestRejectedError`.
        """
        if self._has_head:
            self.on_chunk_header()
        elif len(self.headers) == MAX_HEADERS:
            raise RequestRejectedError(protocol_errors.LARGE_HEAD)
        else:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Begin a request on the short path or through ASGI. Raises `RequestRejectedError`."""
        version = self.parser.get_http_version()
        if len(self.url) > MAX_TARGET_BYTES:
            raise RequestRejectedError(protocol_errors.TARGET_TOO_LONG)
        # what was received with the head may be of its body
        if self._received_bytes > MAX_HEAD_BYTES and self._head_bytes() > MAX_HEAD_BYTES:
            raise RequestRejectedError(protocol_errors.LARGE_HEAD)
        if len(self.pipeline) >= MAX_PIPELINED:
            raise RequestRejectedError(protocol_errors.TOO_MANY_PIPELINED)
        self._hot = self._hot_cycle(version)
        if self._hot is not None:
            self.cycle = self._hot  # type: ignore[assignment]  # it has all that uvicorn uses
            self._has_head = True
            return
        self._check_fields(version)
        self._begin_asgi_request(version)

    def _begin_asgi_request(self, version: str) -> None:
        parser = self.parser
        scope = self._asgi_scope(version)
        # After an upgrade the parser would take a body for the next request.
        is_last = version == "1.0" or self._shutdown.is_draining or parser.should_upgrade()
        expectations = values_of(self.headers, b"expect") if version == "1.1" else ()
        cycle = AsgiRequestCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=b"100-continue" in map(bytes.lower, expectations),
            keep_alive=not is_last and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        waits = not getattr(self.cycle, "response_complete", True)
        self.cycle = cycle
        self.headers = []
        self._has_head = True
        self._chunks = 0
        self.is_arriving = not waits
        if waits:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
            return
        self._start_asgi_task(cycle, self.app)
        if cycle.waiting_for_100_continue and not parser.should_upgrade():
            # Ask for the body now: after a response without it, it is unknown whether the client
            # sends it.
            cycle.waiting_for_100_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _asgi_scope(self, version: str) -> Any:  # noqa: ANN401  # uvicorn's own
        target = httptools.parse_url(_URL_WITHOUT_PATH.sub(rb"\g<0>/", self.url))
        path = target.path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": self.parser.get_method().decode("ascii"),
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": target.path,
            "query_string": target.query or b"",
            "headers": self.headers,
            "state": self.app_state.copy(),
        }

    def on_body(self, body: bytes) -> None:
        self._read_body_bytes += len(body)
        if self._hot is not None:
            self._hot.full_body += body
            return
        if self.cycle.response_complete:
            self._discarded_bytes += len(body)
            if self._discarded_bytes > MAX_DISCARDED_BYTES:
                self._close()
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """Count chunks and trailers. Raises `RequestRejectedError`."""
        self._chunks += 1
        if self._chunks > MAX_CHUNKS:
            raise RequestRejectedError(protocol_errors.TOO_MANY_CHUNKS)

    def on_message_complete(self) -> None:
        self.is_reading = False
        self.has_sent_request = True
        if self.body_bytes:
            self._monitor.track_body(self, 0)
        self._await_at_most_reading()
        if self._hot is not None:
            self._begin(self._hot)
            return
        self.is_arriving = False
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._await_next()

    def on_response_complete(self) -> None:
        if self.pipeline:
            super().on_response_complete()
            self.is_arriving = not self.pipeline and self.cycle.more_body
            self.on_arriving_changed()
            if self.is_arriving and not self.stops_reading:
                self._await_rest()
            return
        if self.is_arriving:
            self.is_arriving = False
            self.on_arriving_changed()
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self.stops_reading:
            self._close()
        else:
            self.flow.resume_reading()
            if not self.is_reading:
                self._await_next()

    def on_arriving_changed(self) -> None:
        """React to a change of `is_arriving` that input did not cause."""

    def pause_writing(self) -> None:
        """The client reads slowly: start the timeout for reading."""
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.waits is not WaitState.READING or self.transport.is_closing():
            return
        if self.is_reading and not self.stops_reading:
            self.waits = WaitState.NOTHING
            self._await_rest()
        elif not getattr(self.cycle, "response_complete", True):
            self.waits = WaitState.NOTHING
            self.deadline = NEVER
        else:
            self._await_next()

    def on_deadline(self, now: float) -> None:
        """Reject the request or close the connection; extend the deadline of a client that makes
        progress.
        """
        size = self.transport.get_write_buffer_size()
        if self.waits is WaitState.READING:
            self._check_reading(now, size)
        elif self.waits in _TIMEOUTS:
            self._reject(_TIMEOUTS[self.waits])
        elif size:
            self._await_reading()
        else:
            self._close()

    def _check_reading(self, now: float, unsent: int) -> None:
        """Close the connection unless its client has read a part of the response since the last
        check.
        """
        if unsent and unsent < self._unsent_bytes:
            self._unsent_bytes = unsent
            self.deadline = now + self._monitor.limits.reading
        elif unsent or self.transport.is_closing():
            self._monitor.count("reading_seconds")
            self.transport.abort()
        else:
            self._await_next()

    def evict(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def evict_body(self) -> None:
        self._reject(protocol_errors.TOO_MANY_BODY_BYTES)

    def _await_next(self) -> None:
        self.waits, self.deadline = WaitState.NEXT, self._now() + self.timeout_keep_alive

    def _await_rest(self) -> None:
        limits = self._monitor.limits
        # parsed after earlier responses, and possibly sent long ago
        if self._has_head and self.pipeline:
            if self.waits is not WaitState.READING:
                self._await_at_most_reading()
        elif self._has_head:
            if self.waits is not WaitState.BODY:
                self.waits, self.deadline = WaitState.BODY, self._now() + limits.body
        elif self._fed_bytes > MAX_HEAD_BYTES:
            self._reject(protocol_errors.LARGE_HEAD)
        elif self.waits is WaitState.FIRST:
            self.waits = WaitState.HEAD  # with the deadline since the connection was made
        elif self.waits is not WaitState.HEAD:
            self.waits, self.deadline = WaitState.HEAD, self._now() + limits.head

    def _check_body_bytes(self) -> None:
        if self._fed_bytes - self._read_body_bytes > MAX_FRAMING_BYTES:
            self._reject(protocol_errors.TOO_MUCH_FRAMING)
        elif self._read_body_bytes:
            self._monitor.track_body(
                self, 0 if self.cycle.response_complete else self._read_body_bytes
            )

    def _await_at_most_reading(self) -> None:
        """Expect no input from the client, but that it reads what is unsent."""
        if self.flow.write_paused:
            self._await_reading()
        else:
            self.waits = WaitState.NOTHING
            self.deadline = NEVER

    def _await_reading(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self.waits, self.deadline = WaitState.READING, self._now() + self._monitor.limits.reading

    def _close(self) -> None:
        """Ignore further input, and close once all output is sent."""
        self.stops_reading = True
        self._await_reading()
        self.transport.close()

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _check_fields(self, version: str) -> None:
        """Reject ambiguous headers that the parser accepts or detects too late."""
        hosts = values_of(self.headers, b"host")
        codings = values_of(self.headers, b"transfer-encoding")
        forwarded = b",".join(values_of(self.headers, b"x-forwarded-for"))
        is_missing = not hosts and version == "1.1"
        is_known = _CODINGS.get(version, _NO_CODING).issuperset(map(bytes.lower, codings))
        if version not in _VERSIONS:
            raise RequestRejectedError(protocol_errors.UNSUPPORTED_VERSION)
        if not all(map(_is_host, hosts)):
            raise RequestRejectedError(protocol_errors.INVALID_HOST)
        if not is_known:
            raise RequestRejectedError(protocol_errors.UNSUPPORTED_CODING)
        if is_missing or len(hosts) > 1:
            raise RequestRejectedError(protocol_errors.HOST_COUNT)
        if forwarded.count(b",") >= MAX_FORWARDED:
            raise RequestRejectedError(protocol_errors.TOO_MANY_FORWARDED)

    def _reject(self, rejection: RequestRejection) -> None:
        """Reject the current request after earlier responses, and ignore further input."""
        self._monitor.count(rejection.limit)
        self._monitor.track_body(self, 0)
        self.stops_reading = True
        self._await_at_most_reading()
        cycle = self.cycle
        if not (self.is_reading and self._has_head):  # the application has not seen it
            if getattr(cycle, "response_complete", True):
                self._end_with(rejection)
            elif not cycle.response_started:
                cycle.keep_alive = False
        elif self.pipeline:
            self.pipeline.popleft()
            self.pipeline.appendleft((cycle, cast("Any", rejection.application(self._cors))))
            cycle.keep_alive = False
        elif cycle.response_started:
            self._close()
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            self._end_with(rejection)

    def _end_with(self, rejection: RequestRejection) -> None:
        self.stops_reading = True
        if self.transport.is_closing():
            return
        headers = self.server_state.default_headers
        if self._cors is not None:
            headers = [*headers, *self._cors.headers_of_target(self.url, self._given(b"origin"))]
        self.transport.write(rejection.encode(headers, self._given(b"x-request-id")))
        self._close()

    def _given(self, wanted: bytes) -> bytes | None:
        """Return a header of the current request, as far as it has arrived."""
        headers = (
            self.cycle.scope["headers"]
            if self._has_head and self._hot is None
            else self.headers or ()
        )
        return next(iter(values_of(headers, wanted)), None)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ANN401  # uvicorn's own
        """Start a request. After a disconnect it counts as arriving until its task has ended."""
        task = self.loop.create_task(cycle.run_asgi(app))
        self.tasks.add(task)
        task.add_done_callback(self._end_asgi_task)

    def _end_asgi_task(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if self.is_arriving and self.cycle.disconnected:
            self.is_arriving = False
            self.on_arriving_changed()

    def _hot_cycle(self, version: str) -> "HotRequestCycle | None":
        """Return the current request if it qualifies for the short path."""
        dispatcher = self._dispatcher
        if dispatcher is None or version not in _VERSIONS or len(self.url) > _MAX_HOT_TARGET_BYTES:
            return None
        method = _HOT_METHODS.get(self.parser.get_method())
        target = _hot_target(self.url)
        if method is None or target is None:
            return None
        path, query = target
        route = dispatcher.find(method, path)
        if route is None:
            return None
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "headers": self.headers,
            "client": self.client,
            "scheme": self.scheme,
        }
        cycle = HotRequestCycle(self, dispatcher, route, scope)
        if self._needs_framework(cycle):
            return None
        is_last = version == "1.0" or self._shutdown.is_draining
        cycle.keep_alive = not is_last and self.parser.should_keep_alive()
        return cycle

    def _needs_framework(self, cycle: "HotRequestCycle") -> bool:
        """Whether uvicorn must handle a request of a hot route: another one is in progress, or its
        head has what the short path does not know.
        """
        if self.parser.should_upgrade() or not getattr(self.cycle, "response_complete", True):
            return True
        # Several Host headers are joined by a comma and a space, which no host contains.
        if not _is_host(cycle.header(b"host")) or not cycle.has_plain_body:
            return True
        forwarded = None if self._proxies is None else cycle.header(b"x-forwarded-for")
        return forwarded is not None and forwarded.count(b",") >= MAX_FORWARDED

    def _begin(self, cycle: "HotRequestCycle") -> None:
        """Begin to answer a complete request: without a task, if its route can."""
        if self._proxies is not None:
            cycle.scope[PEER] = cycle.scope["client"]
            with suppress(StopIteration):  # it waits for the application only, which does nothing
                self._proxies(cast("Any", cycle.scope), _noop_app, _noop_app).send(None)
        if cycle.dispatcher.begin(cycle.route, cycle):
            self.tasks.add(cast("Any", cycle))
        else:
            self._serve_in_task(cycle)

    def finish(self, cycle: "HotRequestCycle") -> None:
        """Answer a request without a task: its batch has answered. Raises nothing."""
        self.tasks.discard(cast("Any", cycle))
        if self.flow.write_paused:
            self._serve_in_task(cycle)
            return
        try:
            response = cycle.dispatcher.finish(cycle.route, cycle)
            if response is not None:
                self._send(cycle, response)
        except Exception:
            self.fail(cycle)
            logger.exception("request %s could not be answered", cycle.request_id.decode())
        else:
            if response is None:
                self._serve_in_task(cycle)

    def fail(self, cycle: "HotRequestCycle") -> None:
        """Answer with an internal error as the connection's last response."""
        if not cycle.response_complete:
            cycle.keep_alive = False
            self._send(cycle, cycle.dispatcher.internal_error(cycle))

    def cancel(self, cycle: "HotRequestCycle") -> None:
        """End a request whose batch has not answered: the process stops."""
        if not cycle.done():
            cycle.answer = None
            self.tasks.discard(cast("Any", cycle))
            self.fail(cycle)

    def _serve_in_task(self, cycle: "HotRequestCycle") -> None:
        self.tasks.add(self.loop.create_task(self._serve(cycle)))

    async def _serve(self, cycle: "HotRequestCycle") -> None:
        try:
            response = await cycle.dispatcher.answer(cycle.route, cycle)
            if self.flow.write_paused:
                await self.flow.drain()
            self._send(cycle, response)
        except BaseException as error:
            self.fail(cycle)
            if not isinstance(error, Exception):
                raise
            logger.exception("request %s could not be answered", cycle.request_id.decode())
        finally:
            # Now: the client's next request, which may be buffered already, must not count this one
            # as in progress.
            self.tasks.discard(asyncio.current_task())

    def _send(self, cycle: "HotRequestCycle", response: HotResponse) -> None:
        """Write a response, if its client is still there."""
        if cycle.disconnected or self.transport.is_closing():
            return
        head = _encode_head(
            response.status,
            self.server_state.default_headers,
            response.headers,
            keep_alive=cycle.keep_alive,
        )
        cycle.response_complete = True
        self.transport.write(head + response.body)
        if not cycle.keep_alive:
            self._close()
        self.on_response_complete()


class AsgiRequestCycle(RequestResponseCycle):
    """A request of an ASGI application."""

    async def run_asgi(self, app: Any) -> None:  # noqa: ANN401  # uvicorn's own
        self.scope[BODY_COMPLETE] = not self.more_body  # type: ignore[typeddict-unknown-key]
        self.scope[PEER] = self.scope["client"]  # type: ignore[typeddict-unknown-key]
        await super().run_asgi(app)


class HotRequestCycle(DirectRequest):
    """A request of a hot route, with the attributes that uvicorn uses of its
    `RequestResponseCycle`, and of a task.
    """

    __slots__ = (
        "_protocol",
        "disconnected",
        "dispatcher",
        "keep_alive",
        "response_complete",
        "route",
    )

    message_event: Final = asyncio.Event()  # uvicorn sets it on input; nothing waits for it

    def __init__(
        self, protocol: HttpProtocol, dispatcher: HotDispatcher, route: HotRoute, scope: Scope
    ) -> None:
        super().__init__(scope)
        self._protocol = protocol
        self.dispatcher = dispatcher
        self.route = route
        self.keep_alive = False
        self.response_complete = False
        self.disconnected = False

    def on_answer(self) -> None:
        """Answer the request."""
        self._protocol.finish(self)

    def cancel(self, msg: str | None = None) -> None:
        """End the request, in the event loop's next turn, as uvicorn cancels tasks."""
        del msg
        self._protocol.loop.call_soon(self._protocol.cancel, self)

    @property
    def response_started(self) -> bool:
        """The same as `response_complete`: a response is written at once."""
        return self.response_complete

    @property
    def has_plain_body(self) -> bool:
        """Whether the short path can read the body: none, or that of a POST with a known, usual
        length.
        """
        header = self.header
        if header(b"transfer-encoding") is not None or header(b"expect") is not None:
            return False
        length = header(b"content-length")
        return length is None or (
            len(length) <= _MAX_HOT_LENGTH_DIGITS and self.scope["method"] == "POST"
        )


def _encode_head(
    status: int, default_headers: Sequence[Header], headers: Sequence[Header], *, keep_alive: bool
) -> bytes:
    """Encode a response up to its body. Raises `RuntimeError` for a header that would be more than
    one.
    """
    fields = encode_headers(headers)
    if len(fields.translate(None, _CONTROLS)) != len(fields) - len(b"\r\n") * len(headers):
        raise RuntimeError("A response header contains a control character.")
    last = b"\r\n" if keep_alive else b"connection: close\r\n\r\n"
    return b"".join((STATUS_LINE[status], _default_headers.encode(default_headers), fields, last))


@lru_cache(256)
def _is_host(value: bytes | None) -> bool:
    """Check a Host header (RFC 9110 section 7.2). Libraries fail on URLs with an invalid port."""
    match = None if value is None else _HOST.fullmatch(value)
    return match is not None and int(match[1] or 0) <= _MAX_PORT


@lru_cache(256)
def _hot_target(url: bytes) -> tuple[str, bytes] | None:
    """Return path and query if the path is unambiguous."""
    path, _, query = url.partition(b"?")
    return (path.decode(), query) if _HOT_PATH.fullmatch(path) and b"#" not in query else None


@lru_cache(1)
def _scope_rewriter(middleware: ProxyHeadersMiddleware) -> ProxyHeadersMiddleware:
    """Return a copy that only replaces a trusted proxy's address in a scope by the client's."""
    alone = copy(middleware)
    alone.app = _noop_app
    return alone


async def _noop_app(*_: object) -> Any:  # noqa: ANN401  # as an ASGI application, receive and send
    """Do nothing."""
