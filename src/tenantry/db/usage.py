"""How a pool of connections is used."""

from typing import Any, NamedTuple

from psycopg_pool import AsyncConnectionPool


class PoolUsage(NamedTuple):
    """The connections of a pool at a moment, and what was counted since the moment before."""

    in_use: int
    idle: int
    most: int
    """How many it may open."""
    waiting: int
    """Requests that wait for a connection."""
    waits: int
    """Requests that had to wait, and, below, for how many seconds in all."""
    waited: float
    timeouts: int
    """Requests that were given none."""


def usage_of(pool: AsyncConnectionPool[Any]) -> PoolUsage:
    """How the pool is used; what is counted is counted since it was last asked."""
    stats = pool.pop_stats()
    size, idle = stats["pool_size"], stats["pool_available"]
    return PoolUsage(
        in_use=size - idle,
        idle=idle,
        most=stats["pool_max"],
        waiting=stats["requests_waiting"],
        waits=stats.get("requests_queued", 0),
        waited=stats.get("requests_wait_ms", 0) / 1000,
        timeouts=stats.get("requests_errors", 0),
    )
