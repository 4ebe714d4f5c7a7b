"""The SDK's types, as other people's tools see them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.sdk.support import SDK
from tests.support.required import node, node_package

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
    script = node_package("pyright", "pyright") / "index.js"
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
    command = [node(), str(script), "--project", str(tmp_path), "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
