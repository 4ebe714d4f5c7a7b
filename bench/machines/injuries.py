"""What happens to the network and to hosts; each is undone at its end."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from bench.faults.injuries import AT_ONCE, EVERYTHING, RECORDED, WRITES, Fault, Injury
from bench.faults.load import BY_BALANCER, SUCCESSES
from bench.faults.site import Database, Site
from bench.machines.site import BALANCER, HOSTS, MachineSite
from bench.machines.switch import Slowness

LENGTH: Final = 12.0
"""Seconds that a cut lasts."""
PAUSE: Final = 20.0
"""Seconds that a host is paused."""
_NOTICED: Final = 3.0
"""Seconds until whoever manages the failover promotes the standby."""
_SLOW: Final = Slowness(delay=0.2, jitter=0.05, loss=0.05)
UNREADY: Final = ("host cut from the database", "dead host", "paused host")
"""Faults in which host a is not ready, and the other one is."""
_BY_BALANCER: Final = {kind: set(BY_BALANCER) for kind in SUCCESSES}


def _on(injury: Callable[[MachineSite], Awaitable[int | None]]) -> Injury:
    async def inflict(site: Site, _: random.Random) -> int | None:
        assert isinstance(site, MachineSite)
        return await injury(site)

    return inflict


async def _hold(site: MachineSite, seconds: float = LENGTH) -> None:
    await asyncio.sleep(seconds)
    site.network.heal()


async def cut_from_database(site: MachineSite) -> None:
    """Host a reaches neither the primary nor the standby."""
    site.network.cut(("a", "p"), ("a", "s"))
    await _hold(site)


async def cut_from_balancer(site: MachineSite) -> None:
    """The balancer does not reach host a."""
    site.network.cut(("a", BALANCER))
    await _hold(site)


async def cut_from_each_other(site: MachineSite) -> None:
    """The hosts of the service do not reach each other."""
    site.network.cut(HOSTS)
    await _hold(site)


async def cut_standby(site: MachineSite) -> None:
    """The primary and the standby do not reach each other."""
    site.network.cut(("p", "s"))
    await _hold(site)


async def lose_primary(site: MachineSite) -> None:
    """Nobody reaches the primary, which runs on; the standby is promoted, and then the old primary is reached again."""
    await _promote_in_its_absence(site)
    await asyncio.sleep(LENGTH)
    site.network.heal()
    await asyncio.sleep(LENGTH)


async def _promote_in_its_absence(site: MachineSite) -> None:
    assert site.pair is not None
    site.network.isolate("p" if site.pair.primary.host == site.network.address("p") else "s")
    await asyncio.sleep(_NOTICED)
    await _promote(site)


async def _promote(site: MachineSite) -> None:
    assert site.pair is not None
    await asyncio.to_thread(site.pair.take_over)
    await asyncio.to_thread(site.pair.demand, synchronous=False)


async def rejoin(site: MachineSite) -> None:
    """The old primary becomes the standby."""
    assert site.pair is not None
    await asyncio.to_thread(site.pair.rejoin)
    await asyncio.to_thread(site.pair.demand, synchronous=site.kind is Database.SYNCHRONOUS)


async def kill_host(site: MachineSite) -> int:
    """Host a loses its power: nobody is told."""
    site.network.isolate("a")
    killed = await asyncio.to_thread(site.switch_off, "a")
    await asyncio.sleep(2 * LENGTH)
    site.network.heal()
    site.switch_on("a")
    return killed


async def slow_database(site: MachineSite) -> None:
    """Each packet from or to the primary takes 200 ms, and one of twenty is lost."""
    assert site.pair is not None
    site.network.slow("p" if site.pair.primary.host == site.network.address("p") else "s", _SLOW)
    await _hold(site)


async def slow_balancer(site: MachineSite) -> None:
    """The same of the balancer."""
    site.network.slow(BALANCER, _SLOW)
    await _hold(site)


async def pause_host(site: MachineSite) -> None:
    """All processes of host a stand still, and go on as if nothing had been."""
    site.pause("a")
    await asyncio.sleep(PAUSE)
    site.resume("a")


_OF_HOSTS: Final = (
    Fault("dead host", _on(kill_host), Database.SYNCHRONOUS, kills=True),
    Fault("paused host", _on(pause_host), Database.SYNCHRONOUS),
)
_OF_DATABASE: Final = (
    Fault("host cut from the database", _on(cut_from_database), Database.SYNCHRONOUS),
    Fault("slow link of the database", _on(slow_database), Database.SYNCHRONOUS),
    Fault("failover, the old primary comes back", _on(lose_primary), Database.SYNCHRONOUS, restore=_on(rejoin)),
    Fault(
        "failover, asynchronous, the old primary comes back", _on(lose_primary), Database.ASYNCHRONOUS,
        loses=True, restore=_on(rejoin),
    ),
)  # fmt: skip
FAULTS: Final = (
    Fault("hosts cut from each other", _on(cut_from_each_other), Database.SYNCHRONOUS),
    Fault(
        "host cut from the balancer", _on(cut_from_balancer), Database.SYNCHRONOUS, breaks=True, answers=_BY_BALANCER
    ),
    Fault("slow link of the balancer", _on(slow_balancer), Database.SYNCHRONOUS),
    Fault("primary cut from the standby", _on(cut_standby), Database.SYNCHRONOUS, mails=AT_ONCE, refuses=WRITES),
    *(fault._replace(breaks=True, mails=AT_ONCE, refuses=EVERYTHING, answers=_BY_BALANCER) for fault in _OF_HOSTS),
    *(fault._replace(mails=RECORDED if fault.loses else AT_ONCE, refuses=EVERYTHING) for fault in _OF_DATABASE),
)
