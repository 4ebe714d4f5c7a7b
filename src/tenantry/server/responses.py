"""How answers are written: fields that all of them have, and few writes."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from tenantry.server.problems import Header

_MOST_HELD: Final = 65_536


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


class JoinedWrites:
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
