"""A short comparison of the service with its upper bound."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.required import debian_program

ROOT: Final = Path(__file__).parents[2]
BOUNDS: Final = re.compile(r"^  nginx +1 +[\d,]+ +0\.\d+ x ", re.MULTILINE)
"""The row of nginx, which answers more: its name, processes, requests a second, and the ratio."""


@pytest.mark.timeout(900)
def test_a_comparison_measures_the_service_beside_a_program_in_c() -> None:
    for program in ("wrk", "nginx"):
        debian_program(program)
    options = ["--quick", "--seconds=1", "--rounds=1", "--jobs", "webhook", "list"]
    options += ["--only", "tenantry", "nginx"]
    command = [sys.executable, "-m", "bench.compare", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout, done.stdout
    assert len(BOUNDS.findall(done.stdout)) == 2, done.stdout
