"""The SDK's types, as other people's tools see them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.sdk.support import SDK

PYRIGHT: Final = Path(__file__).parents[1] / "support" / "pyright"
USE: Final = """
from datetime import datetime

from tenantry_sdk import AsyncTenantry, NewApiKey, Project, Tenantry


def use(client: Tenantry) -> str:
    made: NewApiKey = client.api_keys.create(org_id="acme", name="CI", scopes=["projects:read"])
    ends: datetime | None = made.expires_at
    projects: list[Project] = [*client.projects.list()]
    return f"{made.secret.reveal()} {ends} {projects[0].name}"


async def use_async(client: AsyncTenantry) -> list[str]:
    return [project.name async for project in client.projects.list()]
"""


def test_pyright_finds_nothing_to_complain_of(tmp_path: Path) -> None:
    node = _require_node()
    (tmp_path / "use.py").write_text(USE)
    settings = {
        "include": ["use.py", os.path.relpath(SDK / "src", tmp_path)],
        "extraPaths": [str(SDK / "src")],
        "pythonVersion": "3.10",
        "typeCheckingMode": "strict",
        # Both clients use modules of the package that are private to others.
        "reportPrivateUsage": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    script = PYRIGHT / "node_modules" / "pyright" / "index.js"
    command = [node, str(script), "--project", str(tmp_path), "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _require_node() -> str:
    node = shutil.which("node")
    if node is not None and (PYRIGHT / "node_modules" / "pyright").is_dir():
        return node
    missing = "needs Node.js, and `npm ci` in tests/support/pyright"
    if os.environ.get("TENANTRY_TESTS_REQUIRE_ALL") == "1":
        pytest.fail(missing)
    pytest.skip(missing)
