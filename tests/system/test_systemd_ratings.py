"""How systemd rates the units of examples/systemd. `tests/unit` compares them with the settings."""

import subprocess
from typing import Final

import pytest

from tests.support.installed import ROOT
from tests.support.required import debian_program

FOLDER: Final = ROOT / "examples" / "systemd"
UNITS: Final = sorted(path.name for path in FOLDER.glob("*.service"))
EXPOSURE: Final = 15
"""The most that `systemd-analyze security` may say, in tenths: up to 2 is its best word, OK."""


@pytest.mark.parametrize("unit", UNITS)
def test_units_leave_little_exposed(unit: str) -> None:
    program = debian_program("systemd-analyze", "systemd")
    judged = subprocess.run(
        [
            program,
            "security",
            "--offline=yes",
            f"--threshold={EXPOSURE}",
            "--no-pager",
            str(FOLDER / unit),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout
