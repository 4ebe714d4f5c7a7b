"""Failover detection: which of several servers is the primary, if an old one does not know that it
was replaced.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.common.clock import exponential
from tenantry.db.connection import Connection, PrimaryEpoch
from tenantry.db.sessions import NO_SETTINGS, SessionSettings

_HOST_KEYS: Final = ("host", "hostaddr", "port")
# The timeline that the server writes to. A promotion increases it at once; checkpoints report it
# late.
_EPOCH: Final = """
SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
  FROM pg_control_system()
 WHERE NOT pg_is_in_recovery()
"""
WATCH_INTERVAL: Final = 0.4
"""Seconds between two questions to a server."""
_ANSWER_TIMEOUT: Final = 1.0
_MAX_PAUSE: Final = 3.0  # between attempts to connect
_FAILURES_TO_LOG: Final = 10

logger = logging.getLogger(__name__)


class FailoverDetector:
    """The promotions that a process has seen, if its connection string names several hosts.

    A primary that does not know that a standby was promoted still accepts writes. A process that
    has seen the new primary no longer uses the old one, neither over new connections nor over
    existing ones, and tries the new one first. `watch` sees it within a second.

    This is not fencing: a process that cannot reach the new primary continues with the old one.
    """

    def __init__(self, conninfo: str, settings: SessionSettings = NO_SETTINGS) -> None:
        self.settings = settings
        """Those of every session on these servers."""
        self._given = conninfo_to_dict(conninfo)
        self._servers = servers_of(self._given)
        self._first = self._servers[0]
        self._newest: PrimaryEpoch | None = None

    def conninfo(self) -> str:
        """Return the connection string with the last known primary first."""
        ordered = sorted(self._servers, key=lambda server: server is not self._first)
        hosts: dict[str, Any] = {
            key: ",".join(server[key] for server in ordered) for key in self._first
        }
        return make_conninfo(**{**self._given, **hosts})

    async def accept(self, connection: Connection) -> None:
        """Check a new connection. Raises `psycopg.OperationalError` if its server was replaced."""
        if len(self._servers) == 1:
            return
        epoch = await _epoch(connection)
        if epoch is None:
            return
        if self._newest is not None and self._newest.replaces(epoch):
            await connection.close()
            raise psycopg.OperationalError("another server has replaced this primary")
        self._newest = connection.primary = epoch
        self._first = next(
            (server for server in self._servers if _leads_to(server, connection.info)), self._first
        )

    async def watch(self) -> None:
        """Look for promotions on all servers, until canceled. Returns at once if there is one
        server only.
        """
        if len(self._servers) > 1:
            async with asyncio.TaskGroup() as group:
                for server in self._servers:
                    group.create_task(self._watch_server(server))

    async def _watch_server(self, server: dict[str, str]) -> None:
        failures = 0
        while True:
            try:
                async for epoch in self._epochs_of(server):
                    failures = 0
                    self._record_promotion(server, epoch)
            except Exception as error:  # noqa: BLE001  # it continues to look after any error
                if failures == _FAILURES_TO_LOG:
                    name = server.get("host") or server.get("hostaddr")
                    logger.warning(
                        "server %s cannot be asked whether it was promoted: %s", name, error
                    )
                failures += 1
                await asyncio.sleep(
                    exponential(
                        min(failures, 10), first=WATCH_INTERVAL, factor=1.3, ceiling=_MAX_PAUSE
                    )
                )

    async def _epochs_of(self, server: dict[str, str]) -> AsyncIterator[PrimaryEpoch | None]:
        """Ask a server again and again, over one connection."""
        parameters: dict[str, Any] = {**self._given, **server, "target_session_attrs": "any"}
        conninfo = make_conninfo(**parameters)
        async with await Connection.connect(conninfo, settings=self.settings) as connection:
            while True:
                async with asyncio.timeout(_ANSWER_TIMEOUT):
                    epoch = await _epoch(connection)
                yield epoch
                await asyncio.sleep(WATCH_INTERVAL)

    def _record_promotion(self, server: dict[str, str], epoch: PrimaryEpoch | None) -> None:
        if epoch is None or not epoch.replaces(self._newest):
            return
        logger.warning(
            "a standby was promoted (timeline %d); connections to the former primary end",
            epoch.timeline,
        )
        self._newest = epoch
        self._first = server

    def has_ended(self, timeline: int) -> bool:
        """Whether the process has seen a primary with a later timeline."""
        return self._newest is not None and self._newest.timeline > timeline

    def is_over(self, connection: Connection) -> bool:
        """Whether another server has replaced the connection's."""
        return connection.primary is not None and connection.primary != self._newest


def servers_of(given: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the host, address and port of each server that a connection string names."""
    lists = {key: str(given[key]).split(",") for key in _HOST_KEYS if key in given}
    count = max(map(len, lists.values()), default=1)
    # one port may be that of all hosts
    keys = [key for key, parts in lists.items() if len(parts) == count]
    return [{key: lists[key][number] for key in keys} for number in range(count)]


def _leads_to(server: dict[str, str], info: psycopg.ConnectionInfo) -> bool:
    """Whether a connection is one to this server."""
    port = str(info.port)
    is_host = info.host in (server.get("host"), server.get("hostaddr"))
    return is_host and server.get("port", port) == port


async def _epoch(connection: Connection) -> PrimaryEpoch | None:
    """Return the epoch of a primary; None for a standby, or a server without these functions."""
    try:
        rows = await connection.fetch(_EPOCH)
        await connection.rollback()
    except psycopg.OperationalError:
        raise
    except psycopg.Error:  # services compatible with PostgreSQL may lack the functions
        await connection.rollback()
        return None
    return PrimaryEpoch(*map(int, rows[0])) if rows else None
