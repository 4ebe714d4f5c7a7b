"""The commands of the client installed from the wheel of the SDK alone, without the service."""

import asyncio
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

import pytest

from tests.sdk.sdk_support import serving
from tests.support.commands import Done
from tests.support.installed import build_wheels

_OF_THE_SERVICE: Final = {
    "alembic",
    "authlib",
    "cryptography",
    "jinja2",
    "litestar",
    "procrastinate",
    "psycopg",
    "tenantry",
    "uvicorn",
}
_NAMES: Final = (
    "import json; from importlib.metadata import distributions; "
    "print(json.dumps([one.name.lower() for one in distributions()]))"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the SDK."""
    wheels = build_wheels(tmp_path_factory.mktemp("build"))
    [found] = [each for each in wheels if each.name.startswith("tenantry_sdk-")]
    return found


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that has the wheel with its extra `cli`."""
    return install(f"{wheel}[cli]", tmp_path_factory.mktemp("client"))


def install(requirement: str, environment: Path) -> Path:
    """Install this alone into a new environment; return its folder of programs."""
    venv.create(environment, symlinks=True)
    programs = environment / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--quiet"]
    subprocess.run([*pip, requirement], check=True, capture_output=True)
    return programs


async def tenantry(programs: Path, *arguments: str, folder: Path, **values: str) -> Done:
    """Run the script ``tenantry`` with this home and these variables."""
    done = await asyncio.to_thread(
        subprocess.run,
        [str(programs / "tenantry"), *arguments],
        cwd=folder,
        env={"PATH": os.defpath, "HOME": str(folder), **values},
        capture_output=True,
        text=True,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def test_client_needs_nothing_of_the_service(programs: Path) -> None:
    listed = subprocess.check_output([str(programs / "python"), "-c", _NAMES], text=True, cwd="/")
    assert not _OF_THE_SERVICE & set(json.loads(listed))


async def test_client_alone_lists_its_own_commands(programs: Path, tmp_path: Path) -> None:
    shown = await tenantry(programs, "help", "all", folder=tmp_path)
    assert shown.code == 0
    assert "Use a service:" in shown.out
    assert "\n  keys list " in shown.out
    assert "Run a service:" not in shown.out
    assert (await tenantry(programs, "serve", folder=tmp_path)).code == 2


async def test_client_alone_lists_keys(programs: Path, conninfo: str, tmp_path: Path) -> None:
    version = await tenantry(programs, "--version", folder=tmp_path)
    assert (version.code, version.err) == (0, "")
    assert version.out.startswith("tenantry, version ")
    async with serving(conninfo) as served:
        organization = await served.service.organization()
        listed = await tenantry(
            programs,
            *("keys", "list"),
            folder=tmp_path,
            TENANTRY_BASE_URL=served.url,
            TENANTRY_API_KEY=str(organization.owner.credential),
        )
    assert (listed.code, listed.err) == (0, "")
    assert listed.out.startswith("ID ")
    assert "key_" in listed.out


async def test_script_without_the_extra_names_what_to_install(wheel: Path, tmp_path: Path) -> None:
    programs = install(str(wheel), tmp_path / "environment")
    done = await tenantry(programs, "keys", "list", folder=tmp_path)
    assert done == Done(1, "", "tenantry needs click: pip install 'tenantry-sdk[cli]'\n")
