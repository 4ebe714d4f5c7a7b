"""How long a check and a revocation take in two regions, with and without a standby in the farther
one.
"""

import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.faults.client import CREATED, OK, LoadClient
from bench.standbys.deployment import (
    OUTSIDE,
    ServiceProcess,
    StandbyDeployment,
    running_standbys,
)
from bench.standbys.revocations import REVOKED, create_key, revoke_key
from tests.support.database_server import server_folder
from tests.system.machines.network import Network

HOME: Final = ("home", "db-1")
"""The machines of the region with the primary: a process of the service, and the primary."""
FAR: Final = ("far", "db-2")
"""Those of the other region: a process of the service, and a standby."""
MACHINES: Final = (OUTSIDE, *HOME, *FAR)
ROUND_TRIP: Final = 0.08
"""Seconds between the regions and back. Clients are beside the process that they call."""
_CHECK: Final = "/api/v1/auth/verify/projects:read"
_CHECKS: Final = 200
_REVOCATIONS: Final = 30
_WARM_UP: Final = 20
_OWNER: Final = "regions"


class RegionTimes(NamedTuple):
    """Medians in seconds, by the region of the process that is called."""

    has_standby: bool
    """Whether the farther region checks at its standby."""
    checks: dict[str, float]
    revocations: dict[str, float]


async def measure(
    network: Network, chance: random.Random, logs: Path | None, *, has_standby: bool
) -> RegionTimes:
    """Measure in both regions, with a standby that answers checks in the farther one or without."""
    service, standby = FAR
    processes = (
        ServiceProcess(HOME[0]),
        ServiceProcess(service, (standby,) if has_standby else ()),
    )
    with server_folder() as folder:
        site = StandbyDeployment(folder, network, processes, (HOME[1], standby))
        async with running_standbys(site, logs):
            [owner] = site.create_tenants([_OWNER]).values()
            network.delay(ROUND_TRIP / 2, *((here, there) for here in HOME for there in FAR))
            try:
                return await _measure(site, owner, chance, has_standby=has_standby)
            finally:
                network.delay(0.0, *((here, there) for here in HOME for there in FAR))


async def _measure(
    site: StandbyDeployment, owner: str, chance: random.Random, *, has_standby: bool
) -> RegionTimes:
    clients = {
        process.machine: LoadClient([port], chance, host=host)
        for process, (host, port) in zip(site.service_processes, site.addresses, strict=True)
    }
    # of all: changes wait only for a standby that a process uses, from its first checks on
    for client in clients.values():
        await _time_checks(client, site.keys[:_WARM_UP])
    checks, revocations = {}, {}
    for machine, client in clients.items():
        checks[machine] = await _time_checks(client, site.keys[:_CHECKS])
        revocations[machine] = await _time_revocations(client, owner)
        client.close()
    return RegionTimes(has_standby, checks, revocations)


async def _time_checks(client: LoadClient, keys: Sequence[str]) -> float:
    times = []
    for key in keys:
        began = time.monotonic()
        answer = await client.send("GET", _CHECK, f"Authorization: Bearer {key}")
        times.append(time.monotonic() - began)
        assert answer.status == OK, answer
    return statistics.median(times)


async def _time_revocations(client: LoadClient, owner: str) -> float:
    times = []
    for _ in range(_REVOCATIONS):
        made = await create_key(client, _OWNER, owner)
        assert made.status == CREATED, made
        key_id = json.loads(made.body)["id"]
        began = time.monotonic()
        answer = await revoke_key(client, owner, key_id)
        times.append(time.monotonic() - began)
        assert answer.status == REVOKED, answer
    return statistics.median(times)


def table(measured: Sequence[RegionTimes]) -> Iterator[str]:
    """Return the medians in Markdown."""
    yield "| region of process and caller | farther region checks at | check | revocation |"
    yield "|---|---|---:|---:|"
    for each in measured:
        where = "its standby" if each.has_standby else "the primary"
        for region in each.checks:
            times = (each.checks[region], each.revocations[region])
            shown = " | ".join(f"{1000 * seconds:.1f} ms" for seconds in times)
            yield f"| {region} | {where} | {shown} |"
