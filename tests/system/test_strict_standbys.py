"""Keys are revoked while standbys check them at four processes, and standbys, primary or processes
fail: no request sent after the acknowledgement is answered from an older state.

Faults and load are those of `bench.standbys`, which runs each of them for longer.
"""

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
import uvloop

from bench.standbys.deployment import PYTHON
from bench.standbys.faults import FAULTS, REVEALING, StandbyFault
from bench.standbys.mistakes import MISTAKES, interpreter_with
from bench.standbys.run import MACHINES, StandbyResult, StandbyRun, running_site
from tests.support import figures
from tests.support.required import debian_program, skip_or_fail
from tests.system.machines.network import Network, network

SEED: Final = 5
SECONDS: Final = 5.0
"""The time of each fault."""
PAUSE: Final = 0.5
"""Mean of seconds between two requests of a client of the load."""
WITHOUT_FAULT: Final = "no fault"
MOST: Final = 0.9


@pytest.fixture(scope="module", autouse=True)
def machines_can_be_made() -> None:
    if os.geteuid():
        skip_or_fail("needs root, for network namespaces")
    if not Path("/dev/net/tun").exists():
        skip_or_fail("needs /dev/net/tun: TAP devices of Linux")
    debian_program("ip", "iproute2")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StandbyResult]:
    """What happened during each fault, by its name."""
    logs = tmp_path_factory.mktemp("logs")
    return injected(FAULTS, logs)


def injected(
    faults: Sequence[StandbyFault], logs: Path, python: str = PYTHON
) -> dict[str, StandbyResult]:
    """Inject these faults under load, one after the other; ``python`` runs the service."""
    with network(MACHINES) as machines:  # moves this thread: the loop begins after that
        return uvloop.run(run_faults(faults, machines, logs, python))


async def run_faults(
    faults: Sequence[StandbyFault], machines: Network, logs: Path, python: str
) -> dict[str, StandbyResult]:
    chance = random.Random(SEED)  # noqa: S311  # repeatable
    async with running_site(machines, logs, python) as site:
        run = StandbyRun(site, chance, PAUSE)
        async with run.loading():
            return {fault.name: await run.inject(fault, SECONDS) for fault in faults}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_no_answer_is_older_than_an_acknowledged_change(
    fault: StandbyFault,
    results: dict[str, StandbyResult],
    record_property: figures.RecordProperty,
) -> None:
    result = results[fault.name]
    tally = result.tally
    ran = {
        "requests with revoked keys": tally.checks.total(),
        "revocations": len(tally.revocations),
    }
    wrong = {"stale answers": result.stale}
    figures.record(record_property, f"Standbys, {fault.name}", ran, wrong)
    assert result.injected > 0
    assert tally.checks[401] > 0
    assert tally.new_checks[200] > 0
    assert result.stale == 0


def test_standbys_answer_nearly_all_checks(results: dict[str, StandbyResult]) -> None:
    counts = results[WITHOUT_FAULT].counts
    assert counts.standby_share > MOST, counts


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_leads_to_stale_answers(mistake: str, tmp_path: Path) -> None:
    faults = [fault for fault in FAULTS if fault.name in REVEALING]
    with interpreter_with(mistake) as python:
        results = injected(faults, tmp_path, python)
    assert sum(result.stale for result in results.values()) > 0
