"""The server's HTTP protocol, at less cost for each answer."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tenantry.http.problems import Header
from tenantry.http.raw import WHOLE_ANSWER, Scope

_MOST_HELD: Final = 65_536


class LeanProtocol(HttpToolsProtocol):
    """uvicorn's protocol on httptools, with one write an answer and one timer a connection.

    Two writes are two system calls and two packets, and wake the client twice: a quarter of all that a small answer
    costs. Who has an answer as a whole can give it as a whole (`WHOLE_ANSWER` in the scope), instead of
    as two messages of ASGI.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin on a transport of the event loop."""
        self._joined = _JoinedWrites(cast("asyncio.Transport", transport), self.loop)
        self._idle_since: float | None = None
        self.write_now = self._joined.write_now
        super().connection_made(cast("asyncio.Transport", self._joined))

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()

    def on_headers_complete(self) -> None:
        """A request's head is there."""
        super().on_headers_complete()
        cast("Scope", self.scope)[WHOLE_ANSWER] = partial(_answer, self.cycle)

    def on_message_complete(self) -> None:
        """A request is there as a whole, maybe after its answer."""
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._wait_for_the_next()

    def on_response_complete(self) -> None:
        """Let the answer go, which is whole."""
        self._joined.flush()
        if self.pipeline:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._wait_for_the_next()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has been idle for so long."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _wait_for_the_next(self) -> None:
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _unset_keepalive_if_required(self) -> None:
        """Something came in. The timer stays: it looks for itself when it is due."""
        self._idle_since = None


def _answer(cycle: RequestResponseCycle, status: int, headers: Sequence[Header], body: bytes) -> bool:
    """Give a whole answer, ``content-length`` among its headers; false where that has to go the long way."""
    if cycle.flow.write_paused or cycle.response_started or cycle.scope["method"] == "HEAD":
        return False
    if cycle.disconnected or cycle.transport.is_closing():
        return True
    if cycle.waiting_for_100_continue and cycle.more_body:
        cycle.keep_alive = False  # the client may rightly keep its body to itself, or send it
    fields = b"".join([b"%b: %b\r\n" % header for header in headers])
    if not len(headers) == fields.count(b"\n") == fields.count(b"\r"):
        raise RuntimeError("A header of the answer has a line break in it.")
    last = b"" if cycle.keep_alive else b"connection: close\r\n"
    common = COMMON_FIELDS.in_words(cycle.default_headers)
    cycle.response_started = cycle.response_complete = True
    cast("_JoinedWrites", cycle.transport).write_now(
        b"".join((STATUS_LINE[status], common, fields, last, b"\r\n", body))
    )
    cycle.message_event.set()
    if last:
        cycle.transport.close()
    cycle.on_response()
    return True


class _CommonFields:
    """Header fields that every answer has, as they are sent; the server makes new ones once a second."""

    def __init__(self) -> None:
        self._headers: Sequence[Header] = ()
        self._words = b""

    def in_words(self, headers: Sequence[Header]) -> bytes:
        """The fields for these headers."""
        if headers is not self._headers:
            self._headers = headers
            self._words = b"".join([b"%b: %b\r\n" % header for header in headers])
        return self._words


COMMON_FIELDS: Final = _CommonFields()


class _JoinedWrites:
    """A transport that holds what is written until the event loop's next turn, or until it is much."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._size = 0
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)
        self._size += len(data)
        if self._size > _MOST_HELD:
            self.flush()

    def write_now(self, data: bytes) -> None:
        self.flush()
        self._transport.write(data)

    def flush(self) -> None:
        """Write what is held."""
        if self._held:
            data = b"".join(self._held)
            self._held.clear()
            self._size = 0
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever else a transport can do
        return getattr(self._transport, name)
