"""A client of the service on a persistent connection."""

import asyncio
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

NO_ANSWER: Final = 0
OK: Final = 200
CREATED: Final = 201
LOOPBACK: Final = "127.0.0.1"
_TIMEOUT: Final = 15.0


class ClientAnswer(NamedTuple):
    """A status, which is `NO_ANSWER` after a timeout or a broken connection, and a body."""

    status: int
    body: bytes = b""
    has_retry_after: bool = False


class LoadClient:
    """Sends requests one after the other; connects to a random port, and again after a failure."""

    def __init__(
        self,
        ports: Sequence[int],
        chance: random.Random,
        timeout: float = _TIMEOUT,
        *,
        host: str = LOOPBACK,
    ) -> None:
        self._host = host
        self._ports = ports
        self._chance = chance
        self._timeout = timeout
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, method: str, path: str, header: str, body: bytes = b"") -> ClientAnswer:
        """Send a request and return its answer; close the connection if there is none in time."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._exchange(method, path, header, body)
        except (OSError, EOFError):
            self.close()
            return ClientAnswer(NO_ANSWER)

    async def _exchange(self, method: str, path: str, header: str, body: bytes) -> ClientAnswer:
        if self._streams is not None and self._streams[0].at_eof():
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                self._host, self._chance.choice(self._ports)
            )
        reader, writer = self._streams
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines if line)
        body = await reader.readexactly(int(headers.get(b"content-length", 0)))
        if headers.get(b"connection") == b"close":
            self.close()
        return ClientAnswer(int(first.split()[1]), body, b"retry-after" in headers)

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
