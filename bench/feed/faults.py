"""What happens to the deployment while the feed is followed."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import psutil
import psycopg

from bench.faults.deployment import Deployment
from bench.faults.fault_types import fail_over, kill_database, rejoin

Injection = Callable[[Deployment, random.Random, float], Awaitable[None]]

_PUBLISH: Final = """
INSERT INTO outbound_events (epoch, type, org_id, at, recorded_at, data)
VALUES (outbound_epoch(), 'grant.set', 'open', now(), now(), '{"id": "open"}')
"""
_LAG: Final = (0.5, 1.5)
"""Bounds in seconds for how far the standby is behind."""


class FeedFault(NamedTuple):
    """A kind of fault, and how often it is injected in five minutes."""

    name: str
    inject: Injection
    times: int


async def open_transaction(site: Deployment, _: random.Random, seconds: float) -> None:
    """Publish an event in a transaction that stays open for so long."""
    async with await psycopg.AsyncConnection.connect(site.conninfo) as connection:
        await connection.execute(_PUBLISH)
        await asyncio.sleep(seconds)


async def restart_after_crash(site: Deployment, chance: random.Random, _: float) -> None:
    """Kill the primary, which starts again and recovers."""
    await kill_database(site, chance)
    await asyncio.to_thread(site.until_ready)


async def lose_primary(site: Deployment, chance: random.Random, _: float) -> None:
    """Kill the primary for good, promote its synchronous standby, and give that a new one."""
    await fail_over(site, chance)
    await rejoin(site, chance)


async def lose_changes(site: Deployment, chance: random.Random, _: float) -> None:
    """The same with a standby that lacks the last changes, which readers have seen."""
    sender = await asyncio.to_thread(_sender, site)
    sender.send_signal(signal.SIGSTOP)
    await asyncio.sleep(chance.uniform(*_LAG))
    await lose_primary(site, chance, 0)


def _sender(site: Deployment) -> psutil.Process:
    """Find the process of the primary that sends its log to the standby."""
    [[pid]] = site.rows("SELECT pid FROM pg_stat_replication")
    return psutil.Process(pid)


OPEN: Final = FeedFault("transaction open for 30 s", open_transaction, 2)
SYNCHRONOUS: Final = (
    OPEN,
    FeedFault("PostgreSQL killed", restart_after_crash, 4),
    FeedFault("failover, synchronous", lose_primary, 4),
)
ASYNCHRONOUS: Final = (FeedFault("failover, asynchronous", lose_changes, 10),)
