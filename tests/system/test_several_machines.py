"""Two hosts of the service, a balancer, a primary and a standby, each on a separate machine, and
failures of a host.

The load and the final checks are those of `bench.torture`.
"""

import os
import random
from pathlib import Path
from typing import Final

import uvloop

from bench.torture.revocation import RevocationRun
from tests.support.required import debian_program, skip_or_fail
from tests.system.machines.host_disturbances import DISTURBANCES
from tests.system.machines.host_monitor import HostMonitor
from tests.system.machines.multi_host import MACHINES, running_machines
from tests.system.machines.network import Network, network

SEED: Final = 3


def test_promises_hold_while_hosts_are_isolated_killed_and_paused(tmp_path: Path) -> None:
    if os.geteuid():
        skip_or_fail("needs root, for network namespaces")
    if not Path("/dev/net/tun").exists():
        skip_or_fail("needs /dev/net/tun: TAP devices of Linux")
    debian_program("ip", "iproute2")
    debian_program("haproxy")
    with network(MACHINES) as machines:  # moves this thread: the loop begins after that
        assert uvloop.run(broken_promises(machines, tmp_path)) == []


async def broken_promises(machines: Network, logs: Path) -> list[str]:
    """Inject every disturbance under load, and return each promise that was broken."""
    chance = random.Random(SEED)  # noqa: S311  # repeatable
    async with running_machines(machines, logs) as site:
        run = RevocationRun(site, chance)
        monitor = HostMonitor(site, run, chance)
        async with run.loading(monitor.run()):
            for disturbance in DISTURBANCES:
                await run.inject(disturbance)
        return [*(await run.report()).violations, *monitor.violations()]
