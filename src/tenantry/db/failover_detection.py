"""Failover detection: which of several servers is the primary, if an old one does not know that it was replaced."""

from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.db.connection import Connection, PrimaryEpoch

_HOST_KEYS: Final = ("host", "hostaddr", "port")
# The timeline that the server writes to. A promotion increases it at once; checkpoints report it late.
_EPOCH: Final = """
SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
  FROM pg_control_system()
"""


class FailoverDetector:
    """The promotions that a process has seen, if its connection string names several hosts.

    A primary that returns after a standby was promoted still accepts writes. A process that has seen the new primary
    no longer uses the old one, neither over new connections nor over existing ones, and tries the new one first.

    This is not fencing: a process that cannot reach the new primary continues with the old one.
    """

    def __init__(self, conninfo: str) -> None:
        self._given = conninfo_to_dict(conninfo)
        self._lists = {key: str(self._given[key]).split(",") for key in _HOST_KEYS if key in self._given}
        self._count = max(map(len, self._lists.values()), default=1)
        self._first = 0
        self._newest: PrimaryEpoch | None = None

    def conninfo(self) -> str:
        """Return the connection string with the last known primary first."""
        changes: dict[str, Any] = {}
        for key, parts in self._lists.items():
            if len(parts) == self._count:
                first = parts[self._first]
                changes[key] = ",".join([first, *parts[: self._first], *parts[self._first + 1 :]])
        return make_conninfo(**{**self._given, **changes})

    async def accept(self, connection: Connection) -> None:
        """Check a new connection. Raises `psycopg.OperationalError` if its server was replaced."""
        if self._count == 1:
            return
        epoch = await _epoch(connection)
        if epoch is None:
            return
        newest = self._newest
        if newest is not None and newest.cluster == epoch.cluster and newest.timeline > epoch.timeline:
            await connection.close()
            raise psycopg.OperationalError("another server has replaced this primary")
        self._newest = connection.primary = epoch
        self._first = self._index_of(connection)

    def is_over(self, connection: Connection) -> bool:
        """Whether another server has replaced the connection's."""
        return connection.primary is not None and connection.primary != self._newest

    def _index_of(self, connection: Connection) -> int:
        host, port = connection.info.host, str(connection.info.port)
        for number in range(self._count):
            own = {key: parts[number] for key, parts in self._lists.items() if len(parts) == self._count}
            if host in (own.get("host"), own.get("hostaddr")) and own.get("port", port) == port:
                return number
        return self._first


async def _epoch(connection: Connection) -> PrimaryEpoch | None:
    try:
        rows = await connection.fetch(_EPOCH)
        await connection.rollback()
    except psycopg.OperationalError:
        raise
    except psycopg.Error:  # services compatible with PostgreSQL may lack the functions
        await connection.rollback()
        return None
    [(cluster, timeline)] = rows
    return PrimaryEpoch(int(cluster), int(timeline))
