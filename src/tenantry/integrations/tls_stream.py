"""TLS whose handshake does not hold the event loop.

The server chooses the key exchange: 8,192 bits of Diffie-Hellman take 200 ms of TLS 1.3, and 350 ms
of TLS 1.2. OpenSSL computes them without Python's lock, so a thread does.
"""

import asyncio
import ssl
from typing import Any, Final

import httpcore2

_RECEIVED_BYTES: Final = 64 * 1024


class TlsStream(httpcore2.AsyncNetworkStream):
    """The client's side of TLS on another stream."""

    def __init__(
        self, stream: httpcore2.AsyncNetworkStream, context: ssl.SSLContext, host: str | None
    ) -> None:
        self._stream = stream
        self._received = ssl.MemoryBIO()
        self._to_send = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname=host)

    async def begin(self, timeout: float | None) -> None:  # noqa: ASYNC109  # as the library's
        """Do the handshake within ``timeout`` seconds. Raises `httpcore2.ConnectError` and
        `httpcore2.ConnectTimeout`, and closes the stream before.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._shake_hands()
        except BaseException as error:
            await self._stream.aclose()
            if isinstance(error, TimeoutError):
                raise httpcore2.ConnectTimeout("the TLS handshake takes too long") from error
            if isinstance(error, ssl.SSLError | httpcore2.NetworkError):
                raise httpcore2.ConnectError("no TLS") from error
            raise

    async def _shake_hands(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._tls.do_handshake)
            except ssl.SSLWantReadError:
                await self._receive(None)
            else:
                await self._send(None)
                return

    async def read(
        self,
        max_bytes: int,
        timeout: float | None = None,  # noqa: ASYNC109  # the library's
    ) -> bytes:
        """Return what has arrived; nothing at the end."""
        while True:
            try:
                return self._tls.read(max_bytes)
            except ssl.SSLWantReadError:
                await self._receive(timeout)
            except ssl.SSLEOFError:
                return b""
            except ssl.SSLError as error:
                raise httpcore2.ReadError("the TLS record is malformed") from error

    async def write(
        self,
        buffer: bytes,
        timeout: float | None = None,  # noqa: ASYNC109  # the library's
    ) -> None:
        """Send ``buffer``."""
        if not buffer:
            return
        try:
            self._tls.write(buffer)
        except ssl.SSLError as error:
            raise httpcore2.WriteError("TLS has ended") from error
        await self._send(timeout)

    async def _receive(self, seconds: float | None) -> None:
        """Send what is pending, then wait for more bytes."""
        await self._send(seconds)
        data = await self._stream.read(_RECEIVED_BYTES, seconds)
        if data:
            self._received.write(data)
        else:
            self._received.write_eof()

    async def _send(self, seconds: float | None) -> None:
        if self._to_send.pending:
            await self._stream.write(self._to_send.read(), seconds)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401  # the library's
        """Return the TLS object, else what the stream knows."""
        return self._tls if info == "ssl_object" else self._stream.get_extra_info(info)
