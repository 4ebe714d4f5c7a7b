"""A database that Patroni manages, as in examples/patroni, and disturbances of it, on machines that
are network namespaces.

They are injected under load: signed events, and requests with live and with revoked keys. The load
and the final checks are those of `bench.torture`.
"""

import math
import random
from pathlib import Path
from typing import Final

import pytest
import uvloop

from bench.torture.revocation import RevocationRun
from bench.torture.standbys import STANDBY, read_sources
from bench.torture.stored_state import read_ledger
from tests.support import figures
from tests.support.required import skip_or_fail
from tests.system.machines.network import Network, network
from tests.system.patroni.measured_disturbance import MeasuredDisturbance, measure
from tests.system.patroni.patroni_cluster import Programs
from tests.system.patroni.patroni_deployment import (
    MACHINES,
    PORT,
    SINGLES,
    PatroniDeployment,
    Way,
    running,
)
from tests.system.patroni.patroni_disturbances import DISTURBANCES
from tests.system.patroni.primary_monitor import PrimaryMonitor
from tests.system.patroni.revocation_monitor import RevocationMonitor

USUAL: Final = (
    "primary's machine paused",
    "Patroni paused",
    "primary cut from etcd and the standbys",
    "etcd's quorum lost",
)
"""One of each kind: a server that stops, one without Patroni, one that is cut off, and a lost
quorum. The others are injected by ``-m thorough``; each takes minutes.
"""
NAMES: Final = [
    disturbance.name
    if disturbance.name in USUAL
    else pytest.param(disturbance.name, marks=pytest.mark.thorough)
    for disturbance in DISTURBANCES
]
WITHOUT_STANDBYS: Final = "switchover"
"""Injected without checks on standbys too. With standbys the same promises must hold, and more."""
REVOKED_KEYS_ARE_REJECTED: Final = {
    Way.PROXY: True,
    Way.STANDBYS: True,
    Way.HOSTS: False,
    Way.WATCHDOG: True,
}
"""Whether no revoked key may be accepted; without a watchdog, several hosts are unsafe for a
second.
"""
REVOKED_KEY_CLIENTS: Final = 16
JOBS_TIMEOUT: Final = 120.0
"""Seconds in which a worker requeues the jobs that it lost during a failover, and sends the last
mails.
"""


def test_promises_hold_behind_haproxy(
    tmp_path: Path, record_property: figures.RecordProperty
) -> None:
    assert injected(WITHOUT_STANDBYS, Way.PROXY, tmp_path, record_property) == []


@pytest.mark.parametrize("disturbance", NAMES)
def test_promises_hold_with_checks_on_standbys(
    disturbance: str, tmp_path: Path, record_property: figures.RecordProperty
) -> None:
    assert injected(disturbance, Way.STANDBYS, tmp_path, record_property) == []


@pytest.mark.parametrize(
    ("disturbance", "way"),
    [
        pytest.param("Patroni killed", Way.HOSTS, marks=pytest.mark.thorough),
        ("Patroni paused", Way.WATCHDOG),
    ],
)
def test_no_event_is_lost_with_several_hosts(
    disturbance: str, way: Way, tmp_path: Path, record_property: figures.RecordProperty
) -> None:
    injected(disturbance, way, tmp_path, record_property)


def injected(
    name: str, way: Way, folder: Path, record_property: figures.RecordProperty
) -> list[str]:
    """Inject a disturbance under load, record its figures, and return each promise that was broken.

    Checks that nothing acknowledged is lost and no revoked key accepted.
    """
    try:
        programs = Programs.find()
    except LookupError as error:
        skip_or_fail(str(error))
    with network(MACHINES) as machines:  # moves this thread: the loop begins after that
        measured, broken = uvloop.run(measure_under_load(name, way, machines, programs, folder))
    ran = {
        "acknowledged": measured.acknowledged,
        "revoked keys": measured.revoked,
        "ms without an event": round(1000 * measured.outage),
        "ms with two primaries": round(1000 * measured.two_primaries),
    }
    wrong = {"lost": measured.lost, "revoked keys accepted": measured.accepted}
    figures.record(record_property, f"Patroni, {way}: {name}", ran, wrong)
    assert measured.acknowledged > 0
    assert measured.revoked > 0
    assert measured.lost == 0, broken
    if REVOKED_KEYS_ARE_REJECTED[way]:
        assert measured.accepted == 0, broken
    return broken


async def measure_under_load(
    name: str, way: Way, machines: Network, programs: Programs, logs: Path
) -> tuple[MeasuredDisturbance, list[str]]:
    """Inject one disturbance, and return what happened and each promise that was broken."""
    [disturbance] = [each for each in DISTURBANCES if each.name == name]
    chance = random.Random(name)  # noqa: S311  # repeatable
    async with running(way, machines, programs, logs) as site:
        run = RevocationRun(
            site,
            chance,
            revoked_key_clients=REVOKED_KEY_CLIENTS,
            mail_timeout=JOBS_TIMEOUT,
        )
        run.steady = math.inf  # how long requests are rejected is measured
        primaries = PrimaryMonitor(site)
        revocations = RevocationMonitor(site, run.load, chance)
        async with run.loading(primaries.run(), revocations.run()):
            await run.inject(disturbance)
        broken = [*(await run.report()).violations, *revocations.violations()]
        lost = len(run.lost_events(await read_ledger(site.conninfo)))
        if way is Way.STANDBYS and not await checks_by_standbys(site):
            broken.append("no standby answered a check")
        logged = site.worker_log.read_text(errors="replace")
    if tracebacks := logged.count("Traceback"):
        broken.append(f"the worker logged {tracebacks} tracebacks")
    [injection] = run.injections
    return measure(injection, run.load.requests, lost, primaries, revocations), broken


async def checks_by_standbys(site: PatroniDeployment) -> int:
    """Return how many checks standbys have answered for the hosts with a single process."""
    addresses = [(site.network.address(machine), PORT) for machine in SINGLES]
    return (await read_sources(addresses))[STANDBY]
