"""Network connections whose responses cost the event loop a bounded time, whatever their bytes.

h11, the parser of httpcore2, needs a time that grows with the square of the spaces before a
header's value: one response stops the loop for seconds. It also needs 50 us for each chunk and each
``1xx`` head. So llhttp, in C, reads the bytes first: it enforces the limits, drops the ``1xx``
heads, and joins chunks. h11 gets what remains (docs/decisions/0088).
"""

import asyncio
import ssl
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

import httpcore2
import httptools

from tenantry.integrations.tls_stream import TlsStream

_PORTION: Final = 16 * 1024
"""How many bytes are read before other tasks have a turn."""
MAX_HEAD_BYTES: Final = 16 * 1024
"""Bytes around the body: heads, sizes and extensions of chunks, a trailer."""
BYTES_AROUND_A_BYTE: Final = 8
"""How many more are allowed for each byte of the body. A chunk of one byte has five."""
MAX_HEADERS: Final = 128
MAX_INTERIM_HEADS: Final = 8
"""How many heads with a status of ``1xx`` may come before the response."""
_TRANSFER_ENCODING: Final = b"transfer-encoding"


class ResponseLimitError(httpcore2.RemoteProtocolError):
    """The response exceeds a limit. The message contains nothing of it."""


class BoundedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects as ``network`` does, and bounds the responses."""

    def __init__(self, network: httpcore2.AsyncNetworkBackend) -> None:
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # the library's
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to a host; ``timeout`` is in seconds."""
        stream = await self._network.connect_tcp(host, port, timeout, local_address, socket_options)
        return _BoundedStream(stream)


class _BoundedStream(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._response = _Response()

    async def read(
        self,
        max_bytes: int,  # noqa: ARG002  # more than a portion
        timeout: float | None = None,  # noqa: ASYNC109  # the library's
    ) -> bytes:
        """Return the next part of the response; nothing at its end."""
        part = b""
        while not part:
            data = await self._stream.read(_PORTION, timeout)
            if not data:
                break
            await asyncio.sleep(0)
            part = self._response.parse(data)
        return part

    async def write(
        self,
        buffer: bytes,
        timeout: float | None = None,  # noqa: ASYNC109  # the library's
    ) -> None:
        """Write a part of a request. After a complete response another one is expected."""
        if self._response.is_complete:
            self._response = _Response()
        await self._stream.write(buffer, timeout)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # the library's
    ) -> httpcore2.AsyncNetworkStream:
        """Begin TLS; ``timeout`` is in seconds."""
        stream = TlsStream(self._stream, ssl_context, server_hostname)
        await stream.begin(timeout)
        return _BoundedStream(stream)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401  # the library's
        """Return what the library asks for. It uses no idle connection that is readable."""
        if info == "is_readable" and self._response.has_surplus:
            return True
        return self._stream.get_extra_info(info)


class _Response:
    """Reads the bytes of one response. The parser calls the methods ``on_...``."""

    def __init__(self) -> None:
        self.is_complete = False
        self.has_surplus = False
        """Whether more bytes followed the response."""
        self._parser = httptools.HttpResponseParser(self)
        self._reason = b""
        self._headers = list[tuple[bytes, bytes]]()
        self._head = b""
        self._is_chunked = False
        self._body = bytearray()
        self._interim_heads = 0
        self._most_headers = 0
        self._around_body = 0
        """Bytes around the body, less those allowed for its bytes so far."""

    def parse(self, data: bytes) -> bytes:
        """Return what ``data`` adds to the response: its head, or a part of its body.

        Raises `ResponseLimitError`, and `httpcore2.RemoteProtocolError` for a malformed response.
        """
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.is_complete:
                raise httpcore2.RemoteProtocolError("the response is malformed") from error
            self.has_surplus = True
        self._check_limits(len(data))
        return self._take()

    def _check_limits(self, size: int) -> None:
        self._around_body += size - len(self._body) * (1 + BYTES_AROUND_A_BYTE)
        if self._interim_heads > MAX_INTERIM_HEADS:
            raise ResponseLimitError(f"more than {MAX_INTERIM_HEADS} heads with a status of 1xx")
        if self._most_headers > MAX_HEADERS:
            raise ResponseLimitError(f"more than {MAX_HEADERS} headers")
        if self._around_body > MAX_HEAD_BYTES and not self.is_complete:
            raise ResponseLimitError("too many bytes around the body")

    def _take(self) -> bytes:
        """Return the response's new part in its shortest form."""
        part, body = self._head, bytes(self._body)
        if self._is_chunked and body:
            part += b"%x\r\n%b\r\n" % (len(body), body)
        else:
            part += body
        if self._is_chunked and self.is_complete:
            part += b"0\r\n\r\n"
        self._head = b""
        self._body.clear()
        return part

    def on_message_begin(self) -> None:
        self.has_surplus = self.is_complete

    def on_status(self, reason: bytes) -> None:
        self._reason = reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value.strip()))
        self._most_headers = max(self._most_headers, len(self._headers))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < HTTPStatus.OK:
            self._interim_heads += 1
        elif not self.is_complete:
            self._is_chunked = any(name.lower() == _TRANSFER_ENCODING for name, _ in self._headers)
            version = self._parser.get_http_version().encode()
            first = b"HTTP/%b %d %b\r\n" % (version, status, self._reason)
            lines = [b"%b: %b\r\n" % header for header in self._headers]
            self._head = b"".join([first, *lines, b"\r\n"])
        self._headers.clear()

    def on_body(self, part: bytes) -> None:
        if not self.is_complete:
            self._body += part

    def on_message_complete(self) -> None:
        self.is_complete |= self._parser.get_status_code() >= HTTPStatus.OK
