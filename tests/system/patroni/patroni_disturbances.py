"""Disturbances of a database that Patroni manages. Each is undone at its end, and ends when all
machines work again.
"""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Final

from bench.torture.deployment import Deployment
from bench.torture.disturbances import EVERYTHING, PARALLEL_MAILS, Disturbance
from tests.system.patroni.patroni_cluster import DATABASES, ETCDS, PATRONI, POSTGRES
from tests.system.patroni.patroni_deployment import SINGLES, PatroniDeployment

_LEASE: Final = 24.0
"""Seconds within which another machine becomes the primary, if any does: the lease ends after
20.
"""
_AFTERWARDS: Final = 12.0
"""Seconds that a disturbance lasts after that."""
_NOTICED: Final = 6.0
"""Seconds until Patroni has noticed whatever happened: longer than its loop."""
_QUORUM: Final = 2

Change = Callable[[PatroniDeployment, str], int | None]
"""Does something to the deployment; gets the primary's name."""


def _lasting(change: Change) -> Callable[[Deployment, random.Random], Awaitable[int | None]]:
    """Return an injection: change something, restart a host of the service after the failover, and
    undo the change.

    The restarted process connects to the new primary, and so lets keys be revoked there while
    others may use the old one.
    """

    async def inject(site: Deployment, _: random.Random) -> int | None:
        assert isinstance(site, PatroniDeployment)
        primary = await asyncio.to_thread(site.cluster.primary)
        killed = await asyncio.to_thread(change, site, primary)
        successor = await asyncio.to_thread(site.cluster.until_replaced, primary, _LEASE)
        site.kill_service(SINGLES[DATABASES.index(successor)])
        await asyncio.sleep(_AFTERWARDS)
        await asyncio.to_thread(site.make_whole)
        return killed

    return inject


def _momentary(change: Change) -> Callable[[Deployment, random.Random], Awaitable[int | None]]:
    """Return an injection: change something, and wait until all machines work again."""

    async def inject(site: Deployment, _: random.Random) -> int | None:
        assert isinstance(site, PatroniDeployment)
        primary = await asyncio.to_thread(site.cluster.primary)
        killed = await asyncio.to_thread(change, site, primary)
        await asyncio.sleep(_NOTICED)
        await asyncio.to_thread(site.make_whole)
        return killed

    return inject


def kill_machine(site: PatroniDeployment, primary: str) -> int:
    """Switch the primary's machine off."""
    return site.power_off(primary)


def kill_postgres(site: PatroniDeployment, primary: str) -> int:
    """Kill all processes of the primary's PostgreSQL; Patroni starts it again."""
    return site.cluster.signal(primary, signal.SIGKILL, POSTGRES)


def kill_patroni(site: PatroniDeployment, primary: str) -> int:
    """Kill the primary's Patroni; PostgreSQL runs on."""
    return site.cluster.signal(primary, signal.SIGKILL, PATRONI)


def pause_machine(site: PatroniDeployment, primary: str) -> None:
    """Stop all processes of the primary's machine."""
    site.cluster.signal(primary, signal.SIGSTOP)


def pause_patroni(site: PatroniDeployment, primary: str) -> None:
    """Stop the primary's Patroni; PostgreSQL runs on."""
    site.cluster.signal(primary, signal.SIGSTOP, PATRONI)


def cut_etcd(site: PatroniDeployment, primary: str) -> None:
    """Cut the primary from etcd."""
    site.network.cut(*((primary, name) for name in ETCDS))


def cut_standbys(site: PatroniDeployment, primary: str) -> None:
    """Cut the primary from the standbys."""
    site.network.cut(*((primary, name) for name in DATABASES if name != primary))


def cut_both(site: PatroniDeployment, primary: str) -> None:
    """Cut the primary from etcd and the standbys; the service still reaches it."""
    cut_etcd(site, primary)
    cut_standbys(site, primary)


def switch_over(site: PatroniDeployment, _: str) -> None:
    """Move the primary in order."""
    site.cluster.switch_over()


def restart_in_turn(site: PatroniDeployment, primary: str) -> None:
    """Restart PostgreSQL on each machine, the primary last."""
    for name in sorted(DATABASES, key=lambda name: name == primary):
        site.cluster.restart(name)
        site.cluster.until_whole()


def lose_quorum(site: PatroniDeployment, _: str) -> int:
    """Kill two of three etcd."""
    return sum(site.cluster.signal(name, signal.SIGKILL) for name in ETCDS[:_QUORUM])


DISTURBANCES: Final = tuple(
    disturbance._replace(rejects=EVERYTHING, mails=PARALLEL_MAILS)
    for disturbance in (
        Disturbance("primary's machine killed", _lasting(kill_machine), kills=True),
        Disturbance("PostgreSQL killed", _momentary(kill_postgres), kills=True),
        Disturbance("Patroni killed", _lasting(kill_patroni), kills=True),
        Disturbance("primary's machine paused", _lasting(pause_machine)),
        Disturbance("Patroni paused", _lasting(pause_patroni)),
        Disturbance("primary cut from etcd", _lasting(cut_etcd)),
        Disturbance("primary cut from the standbys", _lasting(cut_standbys)),
        Disturbance("primary cut from etcd and the standbys", _lasting(cut_both)),
        Disturbance("switchover", _momentary(switch_over)),
        Disturbance("rolling restart", _momentary(restart_in_turn)),
        Disturbance("etcd's quorum lost", _lasting(lose_quorum), kills=True),
    )
)
