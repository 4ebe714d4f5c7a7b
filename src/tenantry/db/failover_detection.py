"""Which of several servers is the primary, when another has taken its place and it does not know."""

from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.db.connection import Connection, PrimaryEpoch

_PLACES: Final = ("host", "hostaddr", "port")
# The timeline is the one that the server writes on, which a promotion counts up; checkpoints tell of it late.
_REIGN: Final = """
SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
  FROM pg_control_system()
"""


class FailoverDetector:
    """What a process knows of the promotions of its database, where its connection string names several hosts.

    A primary that comes back after a standby was promoted still takes writes, and would be used side by side with its
    successor. Whoever has met the successor uses its predecessor no more: not for a new connection, and not over one
    that was made before. It is asked first from then on.

    It is no fence: a process that does not reach the successor goes on with the predecessor.
    """

    def __init__(self, conninfo: str) -> None:
        self._given = conninfo_to_dict(conninfo)
        self._lists = {name: str(self._given[name]).split(",") for name in _PLACES if name in self._given}
        self._count = max(map(len, self._lists.values()), default=1)
        self._first = 0
        self._newest: PrimaryEpoch | None = None

    def conninfo(self) -> str:
        """The connection string, with the host first that was the primary the last time."""
        changes: dict[str, Any] = {}
        for name, parts in self._lists.items():
            if len(parts) == self._count:
                first = parts[self._first]
                changes[name] = ",".join([first, *parts[: self._first], *parts[self._first + 1 :]])
        return make_conninfo(**{**self._given, **changes})

    async def accept(self, connection: Connection) -> None:
        """Take note of a new connection. Raises `psycopg.OperationalError` where its server has been replaced."""
        if self._count == 1:
            return
        reign = await _reign(connection)
        if reign is None:
            return
        newest = self._newest
        if newest is not None and newest.cluster == reign.cluster and newest.timeline > reign.timeline:
            await connection.close()
            raise psycopg.OperationalError("another server has taken the place of this primary")
        self._newest = connection.reign = reign
        self._first = self._place(connection)

    def is_over(self, connection: Connection) -> bool:
        """Whether another server has taken the place of the connection's."""
        return connection.reign is not None and connection.reign != self._newest

    def _place(self, connection: Connection) -> int:
        """Which of the hosts it leads to."""
        host, port = connection.info.host, str(connection.info.port)
        for number in range(self._count):
            own = {name: parts[number] for name, parts in self._lists.items() if len(parts) == self._count}
            if host in (own.get("host"), own.get("hostaddr")) and own.get("port", port) == port:
                return number
        return self._first


async def _reign(connection: Connection) -> PrimaryEpoch | None:
    """Whose the connection's server is; None where it does not tell."""
    try:
        rows = await (await connection.execute(_REIGN)).fetchall()
        await connection.rollback()
    except psycopg.OperationalError:
        raise
    except psycopg.Error:  # services that are like PostgreSQL may have no such functions
        await connection.rollback()
        return None
    [(cluster, timeline)] = rows
    return PrimaryEpoch(int(cluster), int(timeline))
