"""A user's test suite in a separate folder, run by pytest as users run it."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest

PLUGIN: Final = 'pytest_plugins = ["tenantry_devkit.testing"]\n'
OWN_PLUGINS: Final = ("--disable-plugin-autoload", "-p", "asyncio", "-p", "anyio", "-p", "xdist")
"""Options that load no other plugins of this environment, which would take longer than most
suites.
"""
_OF_THE_OUTER: Final = (
    "PYTEST_ADDOPTS",
    "PYTEST_CURRENT_TEST",
    "PYTEST_XDIST_WORKER",
    "PYTEST_XDIST_WORKER_COUNT",
)
_OUTCOME: Final = re.compile(r"^(PASSED|FAILED|ERROR) (\S+?)(?: - .*)?$")


class Suite:
    """Files of a suite in a folder; ``conftest.py`` loads the plugin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("conftest.py", "")
        self.write("pytest.ini", "[pytest]\nasyncio_default_fixture_loop_scope = function\n")

    def write(self, name: str, text: str) -> None:
        """A file; a conftest loads the plugin besides."""
        text = dedent(text)
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{PLUGIN}{text}" if name == "conftest.py" else text, encoding="utf-8")

    def run(self, *arguments: str, **variables: str) -> pytest.RunResult:
        """Run it to its end, with these variables besides those of the tests' own environment."""
        own = {name: value for name, value in os.environ.items() if name not in _OF_THE_OUTER}
        started = time.monotonic()
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                *OWN_PLUGINS,
                "--basetemp",
                str(self.folder / "basetemp"),
                "-p",
                "no:cacheprovider",
                "-W",
                "error",
                "-rfEp",
                *arguments,
            ],
            cwd=self.folder,
            env={**own, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        lines = done.stdout.splitlines(), done.stderr.splitlines()
        return pytest.RunResult(done.returncode, *lines, time.monotonic() - started)


def outcomes(result: pytest.RunResult, file: str) -> dict[str, set[str]]:
    """How each test of a file came out, by its name: PASSED, FAILED or ERROR."""
    found: dict[str, set[str]] = {}
    for line in result.outlines:
        if (match := _OUTCOME.match(line)) and match[2].startswith(f"{file}::"):
            found.setdefault(match[2].partition("::")[2], set()).add(match[1])
    return found
