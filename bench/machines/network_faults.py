"""Faults of the network and of hosts; each is undone at its end."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from bench.faults.deployment import DatabaseKind, Deployment
from bench.faults.fault_types import (
    EVERYTHING,
    PARALLEL_MAILS,
    UNREPLICATED_MAILS,
    WRITES,
    InjectedFault,
    Injection,
)
from bench.faults.load import BY_BALANCER, SUCCESSES
from bench.machines.multi_host import BALANCER, HOSTS, MultiHostDeployment
from bench.machines.network import SlowLink

_CUT: Final = 12.0
"""Seconds that a cut lasts."""
_PAUSED: Final = 20.0
"""Seconds that a host is paused."""
_UNTIL_PROMOTION: Final = 3.0
"""Seconds until the failover manager promotes the standby."""
_SLOW: Final = SlowLink(delay=0.2, jitter=0.05, loss=0.05)
UNREADY: Final = ("host cut from the database", "dead host", "paused host")
"""Faults during which host a is not ready and host b is."""
_BY_BALANCER: Final = {kind: set(BY_BALANCER) for kind in SUCCESSES}


def _on(injection: Callable[[MultiHostDeployment], Awaitable[int | None]]) -> Injection:
    async def inject(site: Deployment, _: random.Random) -> int | None:
        assert isinstance(site, MultiHostDeployment)
        return await injection(site)

    return inject


def _cut_links(*links: tuple[str, str]) -> Injection:
    """Cut these links for a while."""

    async def cut(site: MultiHostDeployment) -> None:
        site.network.cut(*links)
        await _heal_later(site)

    return _on(cut)


async def _heal_later(site: MultiHostDeployment) -> None:
    await asyncio.sleep(_CUT)
    site.network.heal()


def _primary(site: MultiHostDeployment) -> str:
    assert site.pair is not None
    return "p" if site.pair.primary.host == site.network.address("p") else "s"


async def lose_primary(site: MultiHostDeployment) -> None:
    """Isolate the running primary and promote the standby; then make the old primary reachable
    again.
    """
    assert site.pair is not None
    site.network.isolate(_primary(site))
    await asyncio.sleep(_UNTIL_PROMOTION)
    await asyncio.to_thread(site.pair.take_over)
    await asyncio.to_thread(site.pair.demand, synchronous=False)
    await _heal_later(site)
    await asyncio.sleep(_CUT)


async def rejoin(site: MultiHostDeployment) -> None:
    """Turn the old primary into the standby."""
    assert site.pair is not None
    await asyncio.to_thread(site.pair.rejoin)
    await asyncio.to_thread(site.pair.demand, synchronous=site.kind is DatabaseKind.SYNCHRONOUS)


async def kill_host(site: MultiHostDeployment) -> int:
    """Kill host a like a power cut: no other machine gets a packet."""
    site.network.isolate("a")
    killed = await asyncio.to_thread(site.switch_off, "a")
    await asyncio.sleep(_CUT)
    await _heal_later(site)
    site.switch_on("a")
    return killed


async def slow_database(site: MultiHostDeployment) -> None:
    """Delay each packet from or to the primary by 200 ms, and lose one of twenty."""
    site.network.slow(_primary(site), _SLOW)
    await _heal_later(site)


async def slow_balancer(site: MultiHostDeployment) -> None:
    """Do the same to the balancer."""
    site.network.slow(BALANCER, _SLOW)
    await _heal_later(site)


async def pause_host(site: MultiHostDeployment) -> None:
    """Stop all processes of host a, and continue them."""
    site.pause("a")
    await asyncio.sleep(_PAUSED)
    site.resume("a")


_OF_HOSTS: Final = (
    InjectedFault("dead host", _on(kill_host), DatabaseKind.SYNCHRONOUS, kills=True),
    InjectedFault("paused host", _on(pause_host), DatabaseKind.SYNCHRONOUS),
)
_OF_DATABASE: Final = (
    InjectedFault(
        "host cut from the database", _cut_links(("a", "p"), ("a", "s")), DatabaseKind.SYNCHRONOUS
    ),
    InjectedFault("slow link of the database", _on(slow_database), DatabaseKind.SYNCHRONOUS),
    InjectedFault(
        "failover, the old primary comes back",
        _on(lose_primary),
        DatabaseKind.SYNCHRONOUS,
        restore=_on(rejoin),
    ),
    InjectedFault(
        "failover, asynchronous, the old primary comes back",
        _on(lose_primary),
        DatabaseKind.ASYNCHRONOUS,
        loses=True,
        restore=_on(rejoin),
    ),
)
FAULTS: Final = (
    InjectedFault("hosts cut from each other", _cut_links(HOSTS), DatabaseKind.SYNCHRONOUS),
    InjectedFault(
        "host cut from the balancer",
        _cut_links(("a", BALANCER)),
        DatabaseKind.SYNCHRONOUS,
        breaks=True,
        answers=_BY_BALANCER,
    ),
    InjectedFault("slow link of the balancer", _on(slow_balancer), DatabaseKind.SYNCHRONOUS),
    InjectedFault(
        "primary cut from the standby",
        _cut_links(("p", "s")),
        DatabaseKind.SYNCHRONOUS,
        mails=PARALLEL_MAILS,
        rejects=WRITES,
    ),
    *(
        fault._replace(breaks=True, mails=PARALLEL_MAILS, rejects=EVERYTHING, answers=_BY_BALANCER)
        for fault in _OF_HOSTS
    ),
    *(
        fault._replace(
            mails=UNREPLICATED_MAILS if fault.loses else PARALLEL_MAILS, rejects=EVERYTHING
        )
        for fault in _OF_DATABASE
    ),
)
