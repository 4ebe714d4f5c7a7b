"""The distributions as they are published: built from a clean checkout, installed into new
environments, and run.
"""

import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Final

import httpx2
import pytest

import tenantry
from tests.support.commands import SECRETS
from tests.support.deployment import add_owner
from tests.support.documentation import block_of
from tests.support.installed import (
    ROOT,
    build_distributions,
    commit_all,
    from_wheels,
    install,
    release_tool,
    run,
)
from tests.support.ports import free_port
from tests.support.required import skip_or_fail

NAMES: Final = ("tenantry", "tenantry_devkit", "tenantry_sdk")
RELATIVE_LINK: Final = re.compile(r"\]\((?!https://|#)|src=\"(?!https://)")
EXACT: Final = {
    f"tenantry=={tenantry.__version__}",
    f"tenantry-sdk[cli]=={tenantry.__version__}",
}
"""What uses modules that are not public: the development kit those of the service, the service's
commands those of the client's.
"""
SDK_MEGABYTES: Final = 10
CLIENT_MEGABYTES: Final = 20
SERVICE_MEGABYTES: Final = 120
MIDDLEWARE_MEGABYTES: Final = 40
APPLICATION: Final = """
import sys
import tenantry.asgi
from tenantry.wsgi import WsgiAuthenticator, TenantryWsgiMiddleware

def projects(environ, start_response):
    start_response("200 OK", [])
    return []

application = TenantryWsgiMiddleware(projects, tenantry=WsgiAuthenticator.from_environment())
for headers in ({"HTTP_AUTHORIZATION": f"Bearer {sys.argv[1]}"}, {}):
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", **headers}
    list(application(environ, lambda status, headers, exc_info=None: print(status)))
"""
"""Sends itself a request with a key, and one without."""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that other users can enter."""
    with tempfile.TemporaryDirectory(prefix="distributions-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def dist(place: Path) -> Path:
    """The folder of the built distributions."""
    return build_distributions(place)


def wheels(dist: Path) -> list[Path]:
    return sorted(dist.glob("*.whl"))


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def test_each_distribution_has_a_wheel_and_its_sources(dist: Path) -> None:
    version = tenantry.__version__
    expected = [
        f"{name}-{version}{end}" for name in NAMES for end in ("-py3-none-any.whl", ".tar.gz")
    ]
    assert sorted(path.name for path in dist.iterdir()) == sorted(expected)


def test_distributions_satisfy_the_checkers_of_registries(dist: Path) -> None:
    files = [str(path) for path in dist.iterdir()]
    for command in (
        ["twine", "check", "--strict", *files],
        ["check-wheel-contents", *map(str, wheels(dist))],
    ):
        checked = subprocess.run(
            [release_tool(command[0]), *command[1:]],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_metadata_is_complete(dist: Path) -> None:
    for wheel in wheels(dist):
        found = metadata(wheel)
        urls = {value.partition(",")[0] for value in found.get_all("Project-URL", [])}
        assert urls == {"Homepage", "Documentation", "Changelog", "Issues", "Repository"}
        assert found["License-Expression"] == "Apache-2.0"
        assert found.get_all("License-File") == ["LICENSE"]
        assert {"Typing :: Typed", "Programming Language :: Python :: 3.14"} <= set(
            found.get_all("Classifier", [])
        )
        assert found["Summary"]
        assert not RELATIVE_LINK.findall(str(found.get_payload())), (
            f"{wheel.name}: a relative link in its README"
        )


def test_dependencies_have_lower_bounds_and_no_upper_ones(dist: Path) -> None:
    for wheel in wheels(dist):
        for requirement in metadata(wheel).get_all("Requires-Dist", []):
            needed = requirement.partition(";")[0].strip()
            assert re.fullmatch(r"[\w.,\[\]-]+>=[\d.]+", needed) or needed in EXACT, requirement


def test_distributions_of_tenantry_need_each_other_from_this_version_on(dist: Path) -> None:
    own = [
        requirement.partition(";")[0].strip()
        for wheel in wheels(dist)
        for requirement in metadata(wheel).get_all("Requires-Dist", [])
        if requirement.startswith("tenantry")
    ]
    assert own
    assert set(own) >= EXACT
    assert {requirement.partition("=")[2].lstrip("=") for requirement in own} == {
        tenantry.__version__
    }


def test_wheel_that_is_built_in_a_checkout_needs_the_folders_beside_it(
    dist: Path, place: Path
) -> None:
    checkout = dist.parent / "sources"
    command = [
        release_tool("uv"),
        "build",
        "--quiet",
        "--wheel",
        "--out-dir",
        str(place / "of the checkout"),
        ".",
    ]
    run(command, cwd=checkout)
    [wheel] = wheels(place / "of the checkout")
    needed = {
        line
        for line in metadata(wheel).get_all("Requires-Dist", [])
        if line.startswith("tenantry-")
    }
    assert needed == {
        f"tenantry-sdk[cli] @ {(checkout / 'sdk').as_uri()}",
        f"tenantry-devkit @ {(checkout / 'devkit').as_uri()} ; extra == 'demo'",
        f"tenantry-devkit[testing] @ {(checkout / 'devkit').as_uri()} ; extra == 'testing'",
    }


def test_no_distribution_has_byte_code_or_tests(dist: Path) -> None:
    names = [name for wheel in wheels(dist) for name in zipfile.ZipFile(wheel).namelist()]
    for sources in dist.glob("*.tar.gz"):
        with tarfile.open(sources) as archive:
            names += archive.getnames()
    assert [name for name in names if name.endswith((".pyc", ".pyo")) or "/tests/" in name] == []


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def test_sdk_is_small(dist: Path, place: Path) -> None:
    assert megabytes(install(dist, place / "sdk", "tenantry-sdk")) < SDK_MEGABYTES
    assert megabytes(install(dist, place / "client", "tenantry-sdk[cli]")) < CLIENT_MEGABYTES


def test_service_is_smaller_than_its_bound_and_brings_no_database(dist: Path, place: Path) -> None:
    packages = install(dist, place / "service", "tenantry")
    assert megabytes(packages) < SERVICE_MEGABYTES
    assert list(packages.glob("pixeltable*")) == []


async def test_middleware_alone_needs_the_packages_of_its_guide(
    dist: Path, place: Path, tmp_path: Path, database_url: str
) -> None:
    environment, checkout = place / "middleware", dist.parent / "sources"
    uv = release_tool("uv")
    run([uv, "venv", "--quiet", str(environment)])
    for line in block_of("how-to/in-process.md", "pip install ./sdk").splitlines():
        run(
            [uv, "pip", "install", "--quiet", "--python", str(environment), *shlex.split(line)[2:]],
            cwd=checkout,
        )
    [packages] = environment.glob("lib/python3*/site-packages")
    assert megabytes(packages) < MIDDLEWARE_MEGABYTES
    secret = await add_owner(database_url, tmp_path)
    variables = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": database_url,
        "API_KEY_PEPPER": SECRETS["API_KEY_PEPPER"],
    }
    done = run(
        [str(environment / "bin" / "python"), "-c", APPLICATION, secret], cwd="/", env=variables
    )
    assert done.stdout == "200 OK\n401 Unauthorized\n"


def test_uv_runs_a_checkout_and_an_address_of_git(dist: Path, place: Path) -> None:
    checkout = dist.parent / "sources"
    commit_all(checkout)
    for source in (f"{checkout}[demo]", f"tenantry[demo] @ git+{checkout.as_uri()}"):
        shown = run(
            [release_tool("uvx"), "--from", source, "tenantry", "demo", "--help"], cwd=place
        )
        assert "Run everything on this machine" in shown.stdout


def run_demo(command: Sequence[str], folder: Path, place: Path, user: str, dist: Path) -> None:
    """Start the demo in a folder, send a request with its key, and stop it as Ctrl-C does."""
    home = place / f"home of {user}"
    for made in (home, folder):
        made.mkdir(exist_ok=True)
        shutil.chown(made, user)
    port = free_port()
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "TENANTRY", "VIRTUAL"))
    }
    variables = {
        **inherited,
        **from_wheels(dist),
        "HOME": str(home),
        "PORT": str(port),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with subprocess.Popen(
        [*command, "demo"],
        cwd=folder,
        env=variables,
        user=user,
        extra_groups=[],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        written = "".join(itertools.takewhile(lambda line: "demo reset" not in line, demo.stdout))
        try:
            key = re.search(r"live key +(svc_live_\w+)", written)
            assert key, written
            assert f"TOKEN=$({command[0].rpartition('/')[2]} " in written
            answer = httpx2.get(
                f"http://127.0.0.1:{port}/api/v1/projects",
                headers={"Authorization": f"Bearer {key[1]}"},
            )
            assert (answer.status_code, len(answer.json()["data"])) == (200, 1)
        finally:
            os.killpg(demo.pid, signal.SIGINT)
            demo.communicate()
    assert (folder / ".tenantry").is_dir()


@pytest.mark.parametrize(("tool", "user"), [("uvx", "root"), ("uvx", "nobody"), ("pipx", "nobody")])
def test_one_line_runs_the_demo(dist: Path, place: Path, tool: str, user: str) -> None:
    if os.geteuid() != 0:
        skip_or_fail("needs root, to run the demo as root and as another user")
    if tool == "uvx":
        tools = place / "tools"  # another user cannot enter the checkout
        tools.mkdir(exist_ok=True)
        for name in ("uv", "uvx"):
            shutil.copy(release_tool(name), tools / name)
        command = [str(tools / "uvx"), "tenantry[demo]"]
    else:
        command = [_pipx(place), "run", "tenantry[demo]"]
    run_demo(command, place / f"a folder of {user} for {tool}", place, user, dist)


def _pipx(place: Path) -> str:
    """Install pipx for Debian's Python, which every user can run."""
    environment = place / "pipx"
    if not environment.exists():
        release_tool("pipx")
        run(["/usr/bin/python3", "-m", "venv", str(environment)])
        run([str(environment / "bin" / "pip"), "install", "--quiet", "pipx"])
    return str(environment / "bin" / "pipx")
