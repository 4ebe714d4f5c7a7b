"""A proxy between two programs that can be cut, blocked and restored."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """Passes bytes between an address of this machine and wherever ``connect`` leads."""

    def __init__(self, connect: Callable[[], Awaitable[Streams]], host: str = "127.0.0.1") -> None:
        self.host = host
        self.connect = connect
        self._open = asyncio.Event()
        self._open.set()
        self._last_word: bytes | None = None
        self._held_from: bytes | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.asked: list[bytearray] = []
        """What came in over each connection so far."""
        self.port = 0

    async def restore(self) -> None:
        """Let connections be made."""
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """End all connections and refuse new ones."""
        if self._server is not None:
            self._server.close()
            for writer in self._writers.copy():
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    def block(self) -> None:
        """Take connections and bytes, and pass nothing on."""
        self._open.clear()

    def unblock(self) -> None:
        """Pass on what has been held back, and all that follows."""
        self._open.set()

    def hold_answers_after(self, text: bytes) -> None:
        """Pass nothing back any more on a connection on which this is passed on."""
        self._last_word = text

    def hold_answers_from(self, text: bytes) -> None:
        """Pass nothing back any more on a connection once an answer says this, nor that answer."""
        self._held_from = text

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = bytearray()
        self.asked.append(asked)
        is_over = asyncio.Event()
        with contextlib.suppress(OSError):
            await self._open.wait()
            far_reader, far_writer = await self.connect()
            self._writers |= {writer, far_writer}
            await asyncio.gather(
                self._pass_on(reader, far_writer, lambda data: self._note(data, asked, is_over)),
                self._pass_on(far_reader, writer, lambda data: self._may_answer(data, is_over)),
            )

    def _note(self, data: bytes, asked: bytearray, is_over: asyncio.Event) -> bool:
        asked += data
        if self._last_word is not None and self._last_word in data:
            is_over.set()
        return True

    def _may_answer(self, data: bytes, is_over: asyncio.Event) -> bool:
        if self._held_from is not None and self._held_from in data:
            is_over.set()
        return not is_over.is_set()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        may_pass: Callable[[bytes], bool],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._open.wait()
                if may_pass(data):
                    writer.write(data)
                    await writer.drain()
        writer.close()
        self._writers.discard(writer)
