"""A database that Patroni manages, as in examples/patroni, and its faults, on machines that are
network namespaces.

`bench.patroni` injects them under load: signed events, and requests with live and with revoked
keys.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec
import pytest

from bench.patroni.cluster import Programs
from bench.patroni.deployment import Way
from bench.patroni.patroni_faults import FAULTS
from bench.patroni.results import MeasuredRun
from tests.support import figures
from tests.support.installed import ROOT
from tests.support.required import skip_or_fail

NAMES: Final = [fault.name for fault in FAULTS]
REVOKED_KEYS_ARE_REJECTED: Final = {Way.PROXY: True, Way.HOSTS: False, Way.WATCHDOG: True}
"""Whether no revoked key may be accepted; without a watchdog, several hosts are unsafe for a
second.
"""


@pytest.mark.parametrize("fault", NAMES)
def test_promises_hold_behind_haproxy(
    fault: str, tmp_path: Path, record_property: figures.RecordProperty
) -> None:
    assert injected(fault, Way.PROXY, tmp_path, record_property).violations == []


@pytest.mark.parametrize(
    ("fault", "way"),
    [
        ("Patroni killed", Way.HOSTS),
        ("Patroni paused", Way.HOSTS),
        ("Patroni killed", Way.WATCHDOG),
        ("Patroni paused", Way.WATCHDOG),
    ],
)
def test_no_event_is_lost_with_several_hosts(
    fault: str, way: Way, tmp_path: Path, record_property: figures.RecordProperty
) -> None:
    injected(fault, way, tmp_path, record_property)


def injected(
    fault: str, way: Way, folder: Path, record_property: figures.RecordProperty
) -> MeasuredRun:
    """Inject a fault, record its figures, and check that nothing acknowledged is lost and no
    revoked key accepted.
    """
    try:
        Programs.find()
    except LookupError as error:
        skip_or_fail(str(error))
    results = folder / "results.json"
    command = [
        sys.executable,
        "-m",
        "bench.patroni",
        "--only",
        fault,
        "--way",
        way,
        "--results",
        str(results),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert results.exists(), done.stdout + done.stderr
    [run] = msgspec.json.decode(results.read_bytes(), type=list[MeasuredRun])
    [measured] = run.faults
    ran = {
        "acknowledged": measured.acknowledged,
        "revoked keys": measured.revoked,
        "ms without an event": round(1000 * measured.outage),
        "ms with two primaries": round(1000 * measured.two_primaries),
    }
    wrong = {"lost": measured.lost, "revoked keys accepted": measured.accepted}
    figures.record(record_property, f"Patroni, {way}: {fault}", ran, wrong)
    assert measured.acknowledged > 0
    assert measured.revoked > 0
    assert measured.lost == 0, done.stdout
    if REVOKED_KEYS_ARE_REJECTED[way]:
        assert measured.accepted == 0, done.stdout
    return run
