"""Raw HTTP: requests that no client library sends, and details that none shows."""

import asyncio
import contextlib
from typing import Final

from tests.support.serving import LOOPBACK

_TURNS: Final = 10
"""Of the event loop, after which the server has read what was sent: loopback delivers within the
call that sends, so the next turn finds it there. Nothing here depends on time.
"""


class Line:
    """A connection to a server in the same event loop, on which bytes are sent as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, address: str) -> "Line":
        return cls(*await asyncio.open_connection(LOOPBACK, int(address.rpartition(":")[2])))

    async def send(self, *parts: bytes) -> None:
        """Send these; the server has read each before the next one goes."""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            for _ in range(_TURNS):
                await asyncio.sleep(0)

    async def push(self, *parts: bytes) -> None:
        """Send these to a server that may not read them, or may have closed."""
        for part in parts:
            self._writer.write(part)
            for _ in range(_TURNS):
                await asyncio.sleep(0)

    def send_now(self, part: bytes) -> None:
        """Send this before the event loop turns."""
        self._writer.write(part)

    async def head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of the next answer."""
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = {
            name.lower(): value
            for name, _, value in (line.partition(": ") for line in lines[1:] if line)
        }
        return int(lines[0].split()[1]), headers

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer, which has a body of known length."""
        status, headers = await self.head()
        return (
            status,
            headers,
            await self._reader.readexactly(int(headers.get("content-length", 0))),
        )

    async def is_closed(self) -> bool:
        """Wait until the other side closes; whether nothing more came before."""
        rest = await self._reader.read()
        self.close()
        return rest == b""

    async def is_cut_off(self) -> bool:
        """Wait until the other side is gone, whatever it sent before."""
        with contextlib.suppress(ConnectionError):
            await self._reader.read()
        self.close()
        return True

    def close(self) -> None:
        self._writer.close()
