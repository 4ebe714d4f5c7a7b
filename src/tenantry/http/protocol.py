"""The server's HTTP protocol, with each answer written at once."""

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HELD: Final = 65_536


class OneWriteProtocol(HttpToolsProtocol):
    """uvicorn's protocol on httptools, but that the head and the body of an answer leave in one write.

    Two writes are two system calls and two packets, and wake the client twice: a quarter of all that a small answer
    costs.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin on a transport of the event loop."""
        self._joined = _JoinedWrites(cast("asyncio.Transport", transport), self.loop)
        super().connection_made(cast("asyncio.Transport", self._joined))

    def on_response_complete(self) -> None:
        """Let the answer go, which is whole."""
        self._joined.flush()
        super().on_response_complete()


class _JoinedWrites:
    """A transport that holds what is written until the event loop's next turn, or until it is much."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)
        self._size += len(data)
        if self._size > _MOST_HELD:
            self.flush()

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

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever else a transport can do
        return getattr(self._transport, name)
