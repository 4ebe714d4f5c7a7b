"""A user's test suite, in a folder of its own, run by pytest as users run it."""

import sys
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest

PLUGIN: Final = 'pytest_plugins = ["tenantry.testing"]\n'


class Suite:
    """Files of a suite in the folder of a `pytester`; ``conftest.py`` loads the plugin."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        self.write("conftest.py", "")
        self.write("pytest.ini", "[pytest]\nasyncio_default_fixture_loop_scope = function\n")

    @property
    def folder(self) -> Path:
        return self._pytester.path

    def write(self, name: str, text: str) -> None:
        """A file; a conftest loads the plugin besides."""
        text = dedent(text)
        (self.folder / name).write_text(f"{PLUGIN}{text}" if name == "conftest.py" else text, encoding="utf-8")

    def run(self, *arguments: str, **variables: str) -> pytest.RunResult:
        """Run it to its end, with these variables besides those of the tests' own environment."""
        return self._pytester.run(
            "env", *(f"{name}={text}" for name, text in variables.items()), sys.executable, "-m", "pytest",
            "--basetemp", str(self.folder / "basetemp"), "-p", "no:cacheprovider", "-W", "error", *arguments,
            timeout=240,
        )  # fmt: skip
