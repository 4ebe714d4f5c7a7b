"""Two services behind a load balancer, restarted in turn again and again under load: ``--requests 100000``.

The load is that of `bench.soak`: events, lists, checks, keys that are made, used, rotated and revoked, and an operator.
It goes through nginx, and then through HAProxy, as ``examples/load-balancing`` has them. As soon as a restarted service
says that it is ready the other one gets SIGTERM. At the end no request may have failed, the ledger must hold exactly
the events that were answered with 200, and no stop may have taken longer than docs/stopping.md says.
"""

import argparse
import asyncio
import itertools
import os
import signal
import sys
import tempfile
import time
import urllib.request
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

import uvloop

from bench import soak, support
from bench.books import read_books
from bench.soak_load import Load, Notes
from tenantry.settings import Settings
from tests.support.proxies import BALANCERS, running_balancer

_POLL: Final = 0.02
_PATIENCE: Final = 60.0
_LONGEST_STOP: Final = Settings.drain_seconds.default + 30


class Outcome(NamedTuple):
    """What came of a run behind one balancer."""

    balancer: str
    notes: Notes
    restarts: int
    stops: Sequence[float]
    """Seconds from each SIGTERM to the end of the process."""
    faults: Sequence[str]


class Service:
    """A service that can be stopped and started again on its port."""

    def __init__(self, port: int, environment: dict[str, str]) -> None:
        self.port = port
        self._environment = environment
        self._process: Process | None = None

    async def start(self) -> Self:
        """Start it, and wait until it is ready."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tenantry", "serve", env=self._environment
        )
        await asyncio.to_thread(self._await)
        return self

    async def stop(self) -> float:
        """End it with SIGTERM; returns the seconds that it took."""
        assert self._process is not None
        begun = time.perf_counter()
        self._process.send_signal(signal.SIGTERM)
        code = await self._process.wait()
        assert code == 0, f"a service ended with {code}"
        return time.perf_counter() - begun

    def kill(self) -> None:
        """End it at once if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _await(self) -> None:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5).close()
            except OSError:
                time.sleep(_POLL)
            else:
                return
        sys.exit(f"bench: nothing is ready on port {self.port}")


def main() -> None:
    """Run, print, and exit with 1 where anything failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.rolling", description="Restart services under load.")
    parser.add_argument("--requests", type=int, default=100_000, help="to be answered behind each balancer, at least")
    parser.add_argument("--balancer", choices=BALANCERS, action="append", help="this one alone (repeatable)")
    parser.add_argument("--workers", type=int, default=1, help="processes of each service")
    options = parser.parse_args()
    outcomes = [
        uvloop.run(_run(name, options.requests, options.workers)) for name in options.balancer or BALANCERS
    ]  # fmt: skip
    print("\nbalancer   requests   failed   restarts   longest stop   longest answer")
    for outcome in outcomes:
        notes = outcome.notes
        print(
            f"{outcome.balancer:8} {notes.answered:10,} {soak.failed(notes):8,} {outcome.restarts:10} "
            f"{max(outcome.stops, default=0):12.1f} s {max(notes.longest.values()):14.2f} s"
        )
    for outcome in outcomes:
        for fault in outcome.faults:
            print(f"  WRONG, {outcome.balancer}: {fault}")
    sys.exit(1 if any(outcome.faults for outcome in outcomes) else 0)


async def _run(balancer: str, requests: int, workers: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as name, support.database(Path(name) / "db") as conninfo:
        folder = Path(name)
        keys, owners = support.load(conninfo), support.make_owners(conninfo, soak.OWNERS)
        async with (
            _services(conninfo, workers) as services,
            running_balancer(balancer, folder, [service.port for service in services]) as port,
        ):
            load = Load([port], keys, owners, soak.OPERATOR)
            stops: list[float] = []
            async with asyncio.TaskGroup() as group:
                group.create_task(load.run())
                await _restart(services, stops, load.notes, requests)
                load.end()
        books = await read_books(conninfo)
        late = [f"a stop took {took:.1f} s, more than {_LONGEST_STOP} s" for took in stops if took > _LONGEST_STOP]
        return Outcome(balancer, load.notes, len(stops), stops, [*soak.faults(load.notes, books), *late])


@asynccontextmanager
async def _services(conninfo: str, workers: int) -> AsyncIterator[Sequence[Service]]:
    services = []
    for _ in range(2):
        port = support.free_port()
        changes = {
            "OPERATOR_TOKEN": soak.OPERATOR, "WORKERS": f"{workers}",
            "DRAIN_SECONDS": f"{Settings.drain_seconds.default}",
        }  # fmt: skip
        services.append(Service(port, {**os.environ, **support.settings(port, conninfo), **changes}))
    try:
        for service in services:
            await service.start()
        yield services
        for service in services:
            await service.stop()
    finally:
        for service in services:
            service.kill()


async def _restart(services: Sequence[Service], stops: list[float], notes: Notes, requests: int) -> None:
    """Restart one after the other until so many requests were answered, and each was restarted."""
    for service in itertools.cycle(services):
        stops.append(await service.stop())
        await service.start()
        if notes.answered >= requests and len(stops) >= len(services):
            return


if __name__ == "__main__":
    main()
