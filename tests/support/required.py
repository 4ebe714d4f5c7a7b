"""Programs that the whole suite needs and a user's machine may lack.

A test without it is skipped there, with a message that says what to install. With
``TENANTRY_TESTS_REQUIRE_ALL=1``, as in CI, it fails.
"""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

_NODE_PACKAGES = Path(__file__).parent
_ROOT = Path(__file__).parents[2]


def skip_or_fail(what: str) -> NoReturn:
    """End the test: ``what`` it needs is not there."""
    if os.environ.get("TENANTRY_TESTS_REQUIRE_ALL") == "1":
        pytest.fail(what)
    pytest.skip(what)


def debian_program(name: str, package: str | None = None) -> str:
    """Where a program is that is in Debian, in a package of its name or of another; servers may be
    off the path.
    """
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        skip_or_fail(f"{name} is not installed; on Debian: apt-get install {package or name}")
    return found


def node_package(folder: str, package: str) -> Path:
    """Where a package of npm is, which is installed in a folder of `tests/support`."""
    return npm_dependency(_NODE_PACKAGES / folder, package)


def npm_dependency(project: Path, package: str) -> Path:
    """Where a package of npm is, which is installed in the folder of a project."""
    installed = project / "node_modules" / package
    if not installed.is_dir():
        skip_or_fail(f"needs {package}: `npm ci` in {project.relative_to(_ROOT)}")
    return installed


def node() -> str:
    """Where Node.js is."""
    found = shutil.which("node")
    if found is None:
        skip_or_fail("needs Node.js 20.19 or later")
    return found
