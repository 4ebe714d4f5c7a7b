"""Keys are revoked while standbys check them at four processes, and standbys, primary or processes
fail: no request sent after the acknowledgement is answered from an older state.

Disturbances and load are those of `bench.torture`, which causes each of them more often.
"""

import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import uvloop

from bench.ours import PLANS_WITHOUT_LIMITS
from bench.torture.deployment import MACHINES, DatabaseKind, running_deployment
from bench.torture.disturbances import BEHIND, OF_STANDBYS, Disturbance
from bench.torture.mistakes import interpreter_with
from bench.torture.standbys import SUBJECT, StandbyRun, Tally
from tests.support import figures
from tests.support.required import debian_program, skip_or_fail
from tests.system.machines.network import Network, network

SEED: Final = 5
UNDISTURBED: Final = "no disturbance"
MOST: Final = 0.9


class Found(NamedTuple):
    """What happened during each disturbance, by its name, and all broken promises."""

    tallies: dict[str, Tally]
    violations: Sequence[str]


@pytest.fixture(scope="module", autouse=True)
def machines_can_be_made() -> None:
    if os.geteuid():
        skip_or_fail("needs root, for network namespaces")
    if not Path("/dev/net/tun").exists():
        skip_or_fail("needs /dev/net/tun: TAP devices of Linux")
    debian_program("ip", "iproute2")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return caused(OF_STANDBYS, tmp_path_factory.mktemp("logs"))


def caused(disturbances: Sequence[Disturbance], logs: Path, python: str = sys.executable) -> Found:
    """Cause these under load, one after the other; ``python`` runs the service."""
    with network(MACHINES) as machines:  # moves this thread: the loop begins after that
        return uvloop.run(disturb(disturbances, machines, logs, python))


async def disturb(
    disturbances: Sequence[Disturbance], machines: Network, logs: Path, python: str
) -> Found:
    chance = random.Random(SEED)  # noqa: S311  # repeatable
    async with running_deployment(
        DatabaseKind.STANDBYS,
        logs=logs,
        network=machines,
        python=python,
        plans=PLANS_WITHOUT_LIMITS,
    ) as site:
        run = StandbyRun(site, chance)
        async with run.loading():
            for disturbance in disturbances:
                await run.inject(disturbance)
        return Found(run.tallies, (await run.report()).violations)


@pytest.mark.parametrize("name", [each.name for each in OF_STANDBYS])
def test_no_answer_is_older_than_an_acknowledged_change(
    name: str, found: Found, record_property: figures.RecordProperty
) -> None:
    tally = found.tallies[name]
    ran = {
        "requests with revoked keys": tally.checks.total(),
        "revocations": len(tally.revocations),
    }
    wrong = {"stale answers": len(tally.stale)}
    figures.record(record_property, f"Standbys, {name}", ran, wrong)
    assert tally.checks[401] > 0
    assert tally.new_checks[200] > 0
    assert tally.stale == []


def test_no_other_answer_contradicts_an_acknowledged_change(found: Found) -> None:
    assert found.violations == []


def test_standbys_answer_nearly_all_checks(found: Found) -> None:
    tally = found.tallies[UNDISTURBED]
    assert tally.standby_share > MOST, tally.sources


@pytest.mark.parametrize("mistake", SUBJECT.mistakes)
def test_a_mistake_leads_to_stale_answers(mistake: str, tmp_path: Path) -> None:
    with interpreter_with(mistake) as python:
        found = caused([*BEHIND, *BEHIND], tmp_path, python)
    assert any(tally.stale for tally in found.tallies.values())
