"""A way to the database that can be cut, or blocked, and opened again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class DatabaseLink:
    """Passes bytes between 127.0.0.1 and a server's Unix socket."""

    def __init__(self, conninfo: str) -> None:
        parts = conninfo_to_dict(conninfo)
        self._socket = Path(str(parts["host"])) / f".s.PGSQL.{parts.get('port') or 5432}"
        self._target = conninfo
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def conninfo(self) -> str:
        """The connection string of the same database by way of this link."""
        return make_conninfo(self._target, host="127.0.0.1", port=self.port)

    async def restore(self) -> None:
        """Let connections be made."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await self._open.wait()
            far_reader, far_writer = await asyncio.open_unix_connection(str(self._socket))
            self._writers |= {writer, far_writer}
            await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)


@contextlib.asynccontextmanager
async def database_link(conninfo: str) -> AsyncIterator[DatabaseLink]:
    """An open link to this database."""
    link = DatabaseLink(conninfo)
    await link.restore()
    try:
        yield link
    finally:
        link.unblock()
        await link.cut()
