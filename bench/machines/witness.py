"""Who answered what, second by second, and whether any host lets in a key whose revocation has been answered."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import psycopg

from bench.faults.load import BY_BALANCER, UNAVAILABLE, Moment
from bench.faults.run import Instance, Trial
from bench.machines.injuries import UNREADY
from bench.machines.site import HOSTS, PORT, MachineSite
from bench.soak_load import LIST, NO_ANSWER, Client

_EVERY: Final = 1.0
_KNOCK: Final = 0.25
_PATIENCE: Final = 45.0
"""Longer than any host is paused: who is asked meanwhile answers afterwards."""
_MOST_KNOCKS: Final = 40
"""At a time, of one host."""
_READY: Final = "200"
_REFUSED: Final = 401
_HEAD: Final = "   second     a    b  p        s         served   503 502/504  none other"
_ROLE: Final = "SELECT CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE 'primary' END"


class Look(NamedTuple):
    """What each machine said of itself at one moment."""

    at: float
    hosts: tuple[str, ...]
    """What each host's ``/readyz`` said."""
    databases: tuple[str, ...]


class Witness:
    """Looks at everybody once a second, and tries revoked keys at each host itself."""

    def __init__(self, site: MachineSite, trial: Trial, chance: random.Random) -> None:
        self.looks: list[Look] = []
        self.knocks: Counter[tuple[str, int]] = Counter()
        """How often each host gave each status to a key that was said to be revoked before it was asked."""
        self._site = site
        self._trial = trial
        self._chance = chance

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look())
            for host in HOSTS:
                group.create_task(self._knock(host))

    async def _look(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._look_once(time.monotonic()))
                await asyncio.sleep(_EVERY)

    async def _look_once(self, at: float) -> None:
        hosts = await asyncio.gather(*(asyncio.to_thread(self._site.readiness, host) for host in HOSTS))
        roles = await asyncio.to_thread(self._roles)
        self.looks.append(Look(at, tuple(hosts), roles))

    def _roles(self) -> tuple[str, ...]:
        assert self._site.pair is not None
        return tuple(_role(server.conninfo) for server in self._site.pair.both)

    async def _knock(self, host: str) -> None:
        waiting: set[asyncio.Task[None]] = set()
        try:
            while True:
                if (ended := self._trial.load.ended) and len(waiting) < _MOST_KNOCKS:
                    secret = self._chance.choice((ended[-1], self._chance.choice(ended)))
                    knock = asyncio.create_task(self._knock_once(host, secret))
                    waiting.add(knock)
                    knock.add_done_callback(waiting.discard)
                await asyncio.sleep(_KNOCK)
        finally:
            for knock in waiting:
                knock.cancel()

    async def _knock_once(self, host: str, secret: str) -> None:
        client = Client([PORT], self._chance, _PATIENCE, host=self._site.network.address(host))
        try:
            answer = await client.send("GET", LIST, f"Authorization: Bearer {secret}")
            self.knocks[host, answer.status] += 1
        finally:
            client.close()

    def wrong(self) -> Iterator[str]:
        """What no host may have answered, and what each must have."""
        for host in HOSTS:
            if not self.knocks[host, _REFUSED]:
                yield f"host {host} never refused a revoked key"
        for instance in self._trial.instances:
            if instance.fault.name in UNREADY and not self._has_shown(instance):
                yield f"{instance.fault.name}: nobody saw host a not ready and host b ready"
        for (host, status), count in sorted(self.knocks.items()):
            if status not in (NO_ANSWER, _REFUSED, UNAVAILABLE):
                yield f"host {host} answered a revoked key with {status}, {count} times"

    def _has_shown(self, instance: Instance) -> bool:
        """Whether somebody saw during a fault that host a is not ready, while the other one is."""
        seen = [look.hosts for look in self.looks if instance.began <= look.at <= instance.ended]
        return any(harmed != _READY and other == _READY for harmed, other in seen)

    def told(self) -> str:
        """What revoked keys were told by each host."""
        return "; ".join(
            f"{host} " + ", ".join(
                f"{status or 'none'}: {count:,}" for (of, status), count in sorted(self.knocks.items()) if of == host
            )
            for host in HOSTS
        )  # fmt: skip

    def timeline(self, instance: Instance, moments: Sequence[Moment]) -> Iterator[str]:
        """Who answered what during a fault, second by second, until the recovery."""
        began, over = instance.began - 2, instance.recovered + 1
        yield _HEAD
        for look in sorted(self.looks):
            if not began <= look.at <= over:
                continue
            counts = Counter(_class(moment) for moment in moments if look.at <= moment.at < look.at + _EVERY)
            yield (
                f"{look.at - instance.began:>9.0f}  {look.hosts[0]:>4} {look.hosts[1]:>4}  "
                f"{look.databases[0]:8} {look.databases[1]:8}  {counts['served']:>6} {counts['503']:>5} "
                f"{counts['by balancer']:>7} {counts['none']:>5} {counts['other']:>5}"
            )
        yield f"{'':>9}  ended after {instance.ended - instance.began:.0f} s"


def _class(moment: Moment) -> str:
    if moment.is_success:
        return "served"
    if moment.status == NO_ANSWER:
        return "none"
    return "503" if moment.status == UNAVAILABLE else "by balancer" if moment.status in BY_BALANCER else "other"


def _role(conninfo: str) -> str:
    try:
        with psycopg.connect(conninfo, connect_timeout=2) as connection:
            [(role,)] = connection.execute(_ROLE)
            return str(role)
    except psycopg.OperationalError:
        return "-"
