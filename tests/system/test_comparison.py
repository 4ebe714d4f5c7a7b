"""A short comparison of the service with its upper bounds."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.required import debian_program

ROOT: Final = Path(__file__).parents[2]
BOUNDS: Final = re.compile(r"^  (\w+) +[\d,]+ +[\d,]+ +[\d.]+$", re.MULTILINE)
"""The job, what tenantry and nginx answered in a second, and the ratio."""


@pytest.mark.timeout(900)
def test_a_comparison_measures_the_service_beside_a_program_in_c() -> None:
    for program in ("wrk", "nginx"):
        debian_program(program)
    options = ["--quick", "--seconds=1", "--rounds=1", "--jobs", "webhook", "list"]
    options += ["--only", "tenantry", "no-database", "nginx"]
    command = [sys.executable, "-m", "bench.compare", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout, done.stdout
    assert BOUNDS.findall(done.stdout) == ["webhook", "list"], done.stdout
