"""Disturbances of hosts; each is undone at its end."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from bench.torture.clients import BY_BALANCER
from bench.torture.deployment import Deployment
from bench.torture.disturbances import EVERYTHING, PARALLEL_MAILS, Cause, Disturbance
from bench.torture.load import SUCCESSES
from tests.system.machines.multi_host import DATABASES, MultiHostDeployment

_CUT: Final = 12.0
"""Seconds that a cut lasts."""
_PAUSED: Final = 20.0
"""Seconds that a host is paused."""
_BY_BALANCER: Final = {kind: set(BY_BALANCER) for kind in SUCCESSES}


def _on(injection: Callable[[MultiHostDeployment], Awaitable[int | None]]) -> Cause:
    async def inject(site: Deployment, _: random.Random) -> int | None:
        assert isinstance(site, MultiHostDeployment)
        return await injection(site)

    return inject


async def cut_database(site: MultiHostDeployment) -> None:
    """Cut host a from both databases for a while."""
    site.network.cut(*(("a", database) for database in DATABASES))
    await asyncio.sleep(_CUT)
    site.network.heal()


async def kill_host(site: MultiHostDeployment) -> int:
    """Kill host a like a power cut: no other machine gets a packet."""
    site.network.isolate("a")
    killed = await asyncio.to_thread(site.switch_off, "a")
    await asyncio.sleep(2 * _CUT)
    site.network.heal()
    site.switch_on("a")
    return killed


async def pause_host(site: MultiHostDeployment) -> None:
    """Stop all processes of host a, and continue them."""
    site.pause("a")
    await asyncio.sleep(_PAUSED)
    site.resume("a")


DISTURBANCES: Final = tuple(
    disturbance._replace(mails=PARALLEL_MAILS, rejects=EVERYTHING)
    for disturbance in (
        Disturbance("host cut from the database", _on(cut_database)),
        Disturbance("dead host", _on(kill_host), kills=True, breaks=True, answers=_BY_BALANCER),
        Disturbance("paused host", _on(pause_host), breaks=True, answers=_BY_BALANCER),
    )
)
"""Host a is not ready during each of them, and host b is."""
