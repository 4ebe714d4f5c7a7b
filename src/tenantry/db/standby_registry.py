"""What a process knows of the primary in order to check on standbys: positions of its log, and the
registrations of the standbys that the process uses.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

import msgspec

from tenantry.common.clock import lease_clock
from tenantry.db.connection import Connection
from tenantry.db.database import Lane
from tenantry.db.standby_store import (
    PrimaryPosition,
    StandbyIdentity,
    UnusableStandbyError,
    check_replicating,
    read_position,
    register_standby,
)
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.domain.standby_checks import (
    LEASE,
    CheckSource,
    Position,
    Positions,
    StandbySession,
    is_trusted,
    needs_extension,
    position_to_reach,
    timeline_of,
    with_position,
)

_RETRY_SECONDS: Final = 5.0
"""Between two attempts to register a standby, if the first one fails."""


class _UsedStandby(msgspec.Struct):
    """A standby that connections of this process lead to."""

    identity: StandbyIdentity
    connections: int = 0
    extended_at: float = -math.inf
    """When its registration was extended; minus infinity if the primary does not see it."""
    tried_at: float = -math.inf
    waiting: list[asyncio.Future[None]] = []
    """For the next attempt to register it."""

    @property
    def is_used(self) -> bool:
        """Whether a connection leads to it, or waits for its registration."""
        return self.connections > 0 or bool(self.waiting)

    def is_due(self, position: PrimaryPosition, now: float) -> bool:
        """Whether to register it now."""
        if self.waiting:
            return True
        if not self.is_used or now - self.tried_at < _RETRY_SECONDS:
            return False
        is_registered = self.identity.name in position.registrations
        return not is_registered or needs_extension(self.extended_at, now)

    def answer_waiting(self, error: UnusableStandbyError | None) -> None:
        """End the waits for an attempt to register it."""
        for attempt in self.waiting:
            if attempt.done():
                continue
            if error is None:
                attempt.set_result(None)
            else:
                attempt.set_exception(error)
        self.waiting.clear()


class StandbyRegistry:
    """The positions and registrations of a process. A loop calls `renew`, which uses one
    connection to the primary.

    ``clock`` is a monotonic one, in seconds, that continues while the machine is suspended.
    """

    def __init__(self, primary: Lane, clock: Callable[[], float] = lease_clock) -> None:
        self.clock = clock
        self._primary = primary
        self._positions: Positions = ()
        self._standbys: dict[str, _UsedStandby] = {}

    @property
    def newest(self) -> Position | None:
        """The newest position, however old."""
        return self._positions[-1] if self._positions else None

    async def use(self, identity: StandbyIdentity) -> None:
        """Wait until a standby is registered, and extend that until `leave`.

        Raises `UnusableStandbyError`. The caller limits the time: without the primary it does not
        end.
        """
        standby = self._standbys.setdefault(identity.name, _UsedStandby(identity))
        standby.identity = identity
        attempt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        standby.waiting.append(attempt)
        await attempt
        standby.connections += 1

    def leave(self, name: str) -> None:
        """End a `use`. Without another one the registration expires."""
        self._standbys[name].connections -= 1

    def is_refused(self, name: str) -> bool:
        """Whether the primary does not see this standby any more."""
        return self._standbys[name].extended_at == -math.inf

    def position_for(self, name: str, session: StandbySession) -> Position | CheckSource:
        """Return the position that a standby must have replayed before a lookup that is sent now,
        or why its answer would not count.
        """
        newest = self.newest
        if newest is not None and self._primary.failover.has_ended(newest.timeline):
            return CheckSource.NO_POSITION
        now = self.clock()
        if not is_trusted(self._standbys[name].extended_at, now):
            return CheckSource.UNREGISTERED
        return position_to_reach(self._positions, session, name, now)

    def timeline_of(self, name: str, version: str) -> int | None:
        """Return on which timeline a registration was written that a standby shows; None if the
        primary has not shown this version.
        """
        return timeline_of(self._positions, name, version)

    async def renew(self) -> None:
        """Renew them. Without standbys in use, the primary is not asked.

        Raises `DatabaseUnavailableError` and `psycopg.Error`.
        """
        if not any(standby.is_used for standby in self._standbys.values()):
            return
        try:
            async with asyncio.timeout(LEASE):
                await self._ask_primary()
        except TimeoutError as error:
            raise DatabaseUnavailableError(
                "The primary is too slow to check on standbys."
            ) from error

    async def _ask_primary(self) -> None:
        async with self._primary.use() as connection:
            asked_at = self.clock()
            position = await read_position(connection)
            newest = Position(asked_at, position.timeline, position.lsn, position.registrations)
            self._positions = with_position(self._positions, newest)
            await self._register_due(connection, position)

    async def _register_due(self, connection: Connection, position: PrimaryPosition) -> None:
        for standby in list(self._standbys.values()):
            if standby.is_due(position, self.clock()):
                await self._register(connection, standby)

    async def _register(self, connection: Connection, standby: _UsedStandby) -> None:
        standby.tried_at = self.clock()
        try:
            await check_replicating(connection, standby.identity)
        except UnusableStandbyError as error:
            standby.extended_at = -math.inf
            standby.answer_waiting(error)
            return
        await register_standby(connection, standby.identity.name)
        standby.extended_at = standby.tried_at
        standby.answer_waiting(None)
