"""The image of the `Containerfile`, built and run by Podman without a registry of images.

Base images are not available here: the packages of Debian 13 that they consist of replace them. The
steps of the build are the Containerfile's own; what pip installs is downloaded before. It needs
root and some of Debian's programs, and is required (`tests.support.required`).
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tenantry import __version__
from tests.support.installed import ROOT
from tests.support.required import debian_program, skip_or_fail

CONTAINERFILE: Final = ROOT / "Containerfile"
IMAGE: Final = f"localhost/tenantry:{__version__}"
DEBIAN: Final = "docker.io/library/debian:13-slim"
BASE: Final = "gcr.io/distroless/python3-debian13"
_SUITE: Final = "trixie"
_PYTHON: Final = "3.13"
_RUNTIME: Final = (
    "base-files",
    "ca-certificates",
    "libc6",
    "libgcc-s1",
    "libpython3-stdlib",
    "libssl3t64",
    "libstdc++6",
    "media-types",
    "netbase",
    "python3-minimal",
    "tzdata",
)
"""What the base image consists of, and what these packages depend on."""
_AUTHORITIES: Final = (
    'cat "$1"/usr/share/ca-certificates/mozilla/*.crt >"$1"/etc/ssl/certs/ca-certificates.crt'
)
"""As a hook of mmdebstrap: what the package's script does in a system that can run it."""
_LEFT_OUT: Final = ("usr/share/doc", "usr/share/locale", "usr/share/man")
_PATIENCE: Final = 120
_SHOWN: Final = 4000
_GLIBC: Final = range(17, 42)
"""The versions of glibc, as `manylinux_2_N`, whose wheels run on Debian 13."""
_ENGINE: Final = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]

[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
pull_policy = "never"
runtime = "runc"
tmp_dir = "{folder}/engine"

[network]
network_config_dir = "{folder}/networks"
"""
_STORAGE: Final = """\
[storage]
driver = "overlay"
graphroot = "{folder}/root"
runroot = "{folder}/run"
"""


class Engine:
    """Podman with its own images, containers and networks, below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = {
            "CONTAINERS_CONF": _ENGINE,
            "CONTAINERS_STORAGE_CONF": _STORAGE,
            "CONTAINERS_REGISTRIES_CONF": "",
        }
        self.environment = dict(os.environ)
        for name, text in files.items():
            path = folder / f"{name.lower()}.toml"
            path.write_text(text.format(folder=folder))
            self.environment[name] = str(path)

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of Podman."""
        done = subprocess.run(
            ["podman", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0 or not check, (
            f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
        return done

    def inspect(self, name: str) -> dict[str, Any]:
        """Return what Podman knows of an image or a container."""
        [found] = json.loads(self.run("inspect", name).stdout)
        return dict(found)

    def logs(self, name: str) -> subprocess.CompletedProcess[str]:
        """Return what a container has written."""
        return self.run("logs", name, check=False)

    def is_healthy(self, name: str) -> bool:
        """Run the check of a container's health once; without systemd Podman does not run it by
        itself.
        """
        return self.run("healthcheck", "run", name, check=False).returncode == 0

    def build(self, tag: str, folder: Path, containerfile: str, *options: str) -> None:
        """Build an image of a folder's files."""
        path = self.folder / "Containerfile"
        path.write_text(containerfile)
        self.run(
            "build", "--format", "docker", "--tag", tag, "--file", str(path), *options, str(folder)
        )


@contextmanager
def running_engine() -> Iterator[Engine]:
    """Podman with nothing in it yet; afterwards everything that it made is gone."""
    for program in ("podman", "runc", "iptables", "mmdebstrap"):
        debian_program(program)
    if os.geteuid() != 0:
        skip_or_fail("needs root, to run containers")
    with tempfile.TemporaryDirectory(prefix="tenantry-image-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        engine = Engine(folder)
        try:
            yield engine
        finally:
            # first the containers: as they end, Podman writes to the folder that the reset removes
            engine.run("rm", "--all", "--force", "--time", "0")
            engine.run("system", "reset", "--force")


def until(is_so: Callable[[], object], engine: Engine, *containers: str) -> None:
    """Return once this holds; fail after two minutes, with the logs of these containers."""
    deadline = time.monotonic() + _PATIENCE
    while not is_so():
        logs = "\n".join(
            f"{done.stdout}{done.stderr}" for done in (engine.logs(name) for name in containers)
        )
        assert time.monotonic() < deadline, logs[-_SHOWN:]
        time.sleep(0.2)


def build_image(engine: Engine, *further: str) -> None:
    """Build the image on stand-ins for its base images. ``further`` packages are in that of
    `DEBIAN`.
    """
    _debian(engine, DEBIAN, "apt", "python3-venv", *further)
    _debian(engine, BASE, "extract", *_RUNTIME)
    wheels = engine.folder / "wheels"
    _download(wheels)
    (engine.folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /registry\n")
    engine.build(
        IMAGE,
        ROOT,
        CONTAINERFILE.read_text("utf-8"),
        "--network",
        "host",
        "--volume",
        f"{wheels}:/registry:ro",
        "--volume",
        f"{engine.folder / 'pip.conf'}:/etc/pip.conf:ro",
    )


def _debian(engine: Engine, tag: str, variant: str, *packages: str) -> None:
    """An image of packages of Debian, and of those they depend on."""
    tree = engine.folder / "debian.tar"
    left_out = [f"--dpkgopt=path-exclude=/{path}/*" for path in _LEFT_OUT]
    make = [
        "mmdebstrap",
        "--quiet",
        f"--variant={variant}",
        f"--include={','.join(packages)}",
        *left_out,
    ]
    if variant == "extract":
        make.append(f"--extract-hook={_AUTHORITIES}")
    made = subprocess.run([*make, _SUITE, str(tree)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-4000:]
    engine.build(
        tag, engine.folder, f"FROM scratch\nADD {tree.name} /\n", "--ignorefile", "/dev/null"
    )
    tree.unlink()


def _download(folder: Path) -> None:
    """What the image installs, with its hashes checked once more there."""
    machine = platform.machine()
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in _GLIBC]
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        f"--python-version={_PYTHON}",
        f"--platform=manylinux2014_{machine}",
        *platforms,
        "--dest",
        str(folder),
    ]
    for pinned in re.findall(r"-r (requirements/\S+)", CONTAINERFILE.read_text("utf-8")):
        subprocess.run([*download, "-r", str(ROOT / pinned)], check=True, capture_output=True)
