"""The connection of a lane to the nearest usable standby, made and renewed in the background."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from tenantry.common.cancellation import cancel
from tenantry.common.clock import DEFAULT_TIMEOUTS, Timeouts
from tenantry.db.connection import Connection
from tenantry.db.database import is_lost, take_role
from tenantry.db.sessions import SessionSettings
from tenantry.db.standby_registry import StandbyRegistry
from tenantry.db.standby_store import read_identity
from tenantry.domain.standby_checks import (
    HostFailures,
    StandbySession,
    hosts_to_try,
)

logger = logging.getLogger(__name__)


class StandbyLink(msgspec.Struct):
    """A connection to a standby, in autocommit mode, and what its answers have shown."""

    connection: Connection
    name: str
    """By which the primary sees the standby."""
    host: int
    """Its place among the hosts, from the nearest, 0."""
    session: StandbySession
    started_at: datetime | None = None
    """When the server was started, as its first answer has said."""
    behind_at: float | None = None
    """When the newest position was taken at the last answer that was behind."""
    lag: int | None = None
    """By how many bytes the last answer was behind the newest position."""


@dataclass(eq=False)
class StandbyConnector:
    """Keeps a connection to one of ``hosts``: connection strings, the nearest first. While one
    rests after an error, the next one is used.

    Not for concurrent use, but connecting never delays `link`.
    """

    hosts: Sequence[str]
    settings: SessionSettings
    registry: StandbyRegistry
    timeouts: Timeouts = DEFAULT_TIMEOUTS

    def __post_init__(self) -> None:
        self._link: StandbyLink | None = None
        # made in the background: `link` moves to it, when no batch uses the former one
        self._next: StandbyLink | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._failures = [HostFailures() for _ in self.hosts]
        self._warned: dict[int, str] = {}  # the last warning of each host, by its place

    async def link(self) -> StandbyLink | None:
        """Return the connection, if there is one now."""
        if self._next is not None:
            await self._move(self._next)
        link = self._link
        if link is not None and is_lost(link.connection):
            await self.drop(link)
            link = None
        if self._connecting is None:
            self._connect_to_nearest(None if link is None else link.host)
        return link

    @property
    def lag(self) -> int | None:
        """By how many bytes the last answer was behind the newest position; None without one."""
        return None if self._link is None else self._link.lag

    def answered(self, link: StandbyLink) -> None:
        """Note that the standby works."""
        if self._failures[link.host].number:
            self._failures[link.host] = HostFailures()

    async def drop(self, link: StandbyLink) -> None:
        """Close a failed connection, and let its host rest."""
        if link is not self._link:
            return
        self._link = None
        self._note_failure(link.host)
        await self._end(link)

    async def close(self) -> None:
        await cancel(self._connecting)
        for link in filter(None, (self._link, self._next)):
            await self._end(link)
        self._link = self._next = None

    async def _move(self, link: StandbyLink) -> None:
        """Use another connection from now on. No batch uses the former one at this moment."""
        former = self._link
        self._link = link
        self._next = None
        self._warned.pop(link.host, None)
        if former is not None:
            await self._end(former)

    async def _end(self, link: StandbyLink) -> None:
        self.registry.leave(link.name)
        await link.connection.close()

    def _note_failure(self, number: int) -> None:
        failures = self._failures[number].number + 1
        self._failures[number] = HostFailures(failures, self.registry.clock())

    def _connect_to_nearest(self, used: int | None) -> None:
        """Begin to connect to a nearer host than that at place ``used``, if it is time for it."""
        if numbers := hosts_to_try(self._failures, used, self.registry.clock()):
            self._connecting = asyncio.create_task(self._connect(numbers))

    async def _connect(self, numbers: Sequence[int]) -> None:
        """Connect to the first of these hosts that can be used."""
        try:
            for number in numbers:
                self._next = await self._try(number)
                if self._next is not None:
                    break
        finally:
            self._connecting = None

    async def _try(self, number: int) -> StandbyLink | None:
        try:
            async with asyncio.timeout(self.timeouts.connect):
                return await self._open(number, self.hosts[number])
        except Exception as error:  # noqa: BLE001  # it goes on to the next host after any error
            self._note_failure(number)
            self._warn(number, error)
            return None

    def _warn(self, number: int, error: Exception) -> None:
        """Log why a standby is not used, unless its last warning says the same."""
        reason = "it or the primary does not answer" if isinstance(error, TimeoutError) else error
        text = (
            f"checks do not use the standby at place {number + 1} of DATABASE_CHECKS_URL: {reason}"
        )
        if self._warned.get(number) != text:
            logger.warning("%s", text)
        self._warned[number] = text

    async def _open(self, number: int, conninfo: str) -> StandbyLink:
        connection = await Connection.connect(
            conninfo, settings=self.settings, autocommit=True, prepare_threshold=0
        )
        try:
            identity = await read_identity(connection)
            await take_role(connection)
            await self.registry.use(identity)
        except BaseException:
            await connection.close()
            raise
        return StandbyLink(connection, identity.name, number, StandbySession(self.registry.clock()))
