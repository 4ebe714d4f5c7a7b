"""A proxy to the database that can be cut, blocked and restored."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.link import Link


class DatabaseLink(Link):
    """Leads from 127.0.0.1 to a server's Unix socket."""

    def __init__(self, conninfo: str) -> None:
        parts = conninfo_to_dict(conninfo)
        socket = Path(str(parts["host"])) / f".s.PGSQL.{parts.get('port') or 5432}"
        super().__init__(lambda: asyncio.open_unix_connection(str(socket)))
        self._target = conninfo

    @property
    def conninfo(self) -> str:
        """The connection string of the same database by way of this link."""
        return make_conninfo(self._target, host="127.0.0.1", port=self.port)


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
