"""The standbys that answer the checks of a process."""

from collections.abc import Callable
from typing import Final

from tenantry.common.clock import lease_clock
from tenantry.db.database import BY_INDEX, Database, Lane, standby_hosts
from tenantry.db.sessions import SessionSettings
from tenantry.db.standby_connector import StandbyConnector
from tenantry.db.standby_lane import StandbyLane
from tenantry.db.standby_registry import StandbyRegistry
from tenantry.domain.standby_checks import ANSWER_TIMEOUT
from tenantry.domain.telemetry import SILENT, Telemetry

_SESSION: Final[SessionSettings] = {
    **BY_INDEX,
    "statement_timeout": str(round(ANSWER_TIMEOUT * 1000)),
}


class Standbys:
    """The standbys of ``conninfo``, the nearest first, beside the primary of ``database``.

    A loop calls `renew`; without it, lanes ask the primary. ``clock`` is as in `StandbyRegistry`.
    """

    def __init__(
        self,
        database: Database,
        conninfo: str,
        telemetry: Telemetry = SILENT,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self._telemetry = telemetry
        self._timeouts = database.timeouts
        self._settings = {**database.failover.settings, **_SESSION}
        self._hosts = standby_hosts(conninfo, database.timeouts)
        self._primary = Lane(database.failover, timeouts=database.timeouts)
        self._registry = StandbyRegistry(self._primary, clock)
        self._connectors: list[StandbyConnector] = []

    def lane(self, primary: Lane) -> StandbyLane:
        """Return a lane that asks a standby first, over a separate connection."""
        connector = StandbyConnector(self._hosts, self._settings, self._registry, self._timeouts)
        self._connectors.append(connector)
        return StandbyLane(primary, connector, self._telemetry)

    async def renew(self) -> None:
        """Renew positions and registrations. Raises as `StandbyRegistry.renew`."""
        await self._registry.renew()

    async def close(self) -> None:
        """Close the connections. No lookup may be running, nor `renew`."""
        for connector in self._connectors:
            await connector.close()
        await self._primary.close()

    def position_age(self) -> float | None:
        """Return the seconds since the newest position was taken; None without one."""
        newest = self._registry.newest
        return None if newest is None else self._registry.clock() - newest.taken_at

    def lag_bytes(self) -> int | None:
        """Return by how many bytes of the primary's log the last answers were behind, at most; None
        without a standby.
        """
        lags = [connector.lag for connector in self._connectors if connector.lag is not None]
        return max(lags, default=None)
