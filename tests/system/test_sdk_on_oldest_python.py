"""The SDK on the oldest Python that it supports, which the service does not."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Final

from tests.sdk.sdk_support import SDK, serving
from tests.support import commands
from tests.support.installed import build_wheels, release_tool, run
from tests.support.required import skip_or_fail

PROGRAM: Final = """
import asyncio
import sys
from tenantry_sdk import AsyncTenantry, Tenantry, errors

async def names():
    async with AsyncTenantry() as client:
        await client.projects.create(name="Asynchronous")
        return [project.name async for project in client.projects.list()]

with Tenantry() as client:
    client.projects.create(name="Synchronous")
    key = client.api_keys.create(name="CI", scopes=["projects:read"])
    try:
        client.auth.verify({"Authorization": f"Bearer {key.secret.reveal()}"}, "reports:read")
    except errors.PermissionDeniedError as error:
        print(error.code)
print(sys.version_info[:2], sorted(asyncio.run(names())))
"""


def oldest_python() -> tuple[tuple[int, int], str]:
    """The lowest version that the SDK's metadata names, and an interpreter of it: on the path, of
    pyenv, or of uv.
    """
    project = tomllib.loads((SDK / "pyproject.toml").read_text())["project"]
    lowest = re.fullmatch(r">=(\d+)\.(\d+)", project["requires-python"])
    assert lowest is not None
    version = int(lowest[1]), int(lowest[2])
    name = "python{}.{}".format(*version)
    folders = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin")
    managed = ["python", "find", "--no-project", "--managed-python", name.removeprefix("python")]
    of_uv = subprocess.run(
        [release_tool("uv"), *managed],
        capture_output=True,
        text=True,
        check=False,
    )
    candidates = (
        shutil.which(name),
        *(str(folder / name) for folder in sorted(folders)),
        of_uv.stdout.strip() or None,
    )
    found = next(filter(_starts, candidates), None)
    return (version, found) if found else skip_or_fail(f"needs {name}")


def _starts(python: str | None) -> bool:
    """Whether this is an interpreter: pyenv puts commands on the path that start none."""
    if python is None or not Path(python).exists():
        return False
    return subprocess.run([python, "-V"], capture_output=True, check=False).returncode == 0


async def test_clients_and_commands_work_on_the_oldest_python(
    conninfo: str, tmp_path: Path
) -> None:
    version, python = oldest_python()
    [wheel] = [each for each in build_wheels(tmp_path) if each.name.startswith("tenantry_sdk-")]
    uv, environment = release_tool("uv"), tmp_path / "environment"
    run([uv, "venv", "--quiet", "--python", python, str(environment)])
    run([uv, "pip", "install", "--quiet", "--python", str(environment), f"{wheel}[cli]"])
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "commands.py").write_text("from tenantry_cli import run; run()")

    async with serving(conninfo) as served:
        organization = await served.service.organization()
        values = {
            "TENANTRY_BASE_URL": served.url,
            "TENANTRY_API_KEY": str(organization.owner.credential),
        }
        done, listed = [
            await commands.run(
                *arguments,
                folder=tmp_path,
                module=module,
                python=str(environment / "bin" / "python"),
                **values,
            )
            for module, arguments in (("program", ()), ("commands", ("projects", "list")))
        ]

    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "insufficient_scope",
        f"{version} ['Asynchronous', 'Synchronous']",
    ]
    assert (listed.code, listed.err) == (0, "")
    assert "Asynchronous" in listed.out
