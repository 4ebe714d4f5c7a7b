"""The image of examples/container, built by Buildah and run without a registry.

The base image is not available here, so the local Python replaces it; and what pip installs
comes from a folder. The build steps are the Containerfile's own. It needs root and Buildah, and is required
(`tests.support.required`).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.installed import ROOT
from tests.support.required import debian_program, lacking

CONTAINERFILE: Final = ROOT / "examples" / "container" / "Containerfile"
BASE: Final = "python:3.12-slim"
_IMAGE: Final = "tenantry"
_VERSION: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LEFT_OUT: Final = ("test", "idlelib", "tkinter", "turtledemo", "lib2to3", "__pycache__", "site-packages", "config-*")
_PROGRAMS: Final = (Path("/bin/sh"),)
_LIBRARY: Final = re.compile(r"(?:=> )?(/\S+) \(0x")
# An unprivileged process without any capability, whose root file system is read-only but for /tmp.
_RUN: Final = """\
set -e
mount --make-rprivate /
mount --bind "$TREE" "$TREE"
mkdir -p "$TREE/proc" "$TREE/dev" "$TREE/tmp" "$TREE/run/secrets" "$TREE/run/postgresql"
mount -t proc proc "$TREE/proc"
mount --rbind /dev "$TREE/dev"
mount -t tmpfs tmpfs "$TREE/run/postgresql"
touch "$TREE/run/postgresql/.s.PGSQL.5432"
mount --bind "$DATABASE" "$TREE/run/postgresql/.s.PGSQL.5432"
mount --bind "$SECRETS" "$TREE/run/secrets"
mount -t tmpfs tmpfs "$TREE/tmp"
mount -o remount,bind,ro "$TREE"
setpriv=$(command -v setpriv) chroot=$(command -v chroot)
exec env -i $(cat "$SETTINGS") "$setpriv" --no-new-privs --bounding-set=-all,+sys_chroot,+setuid,+setgid \
  "$chroot" --userspec="$ACCOUNT" "$TREE" "$@"
"""


class Image:
    """The built image, as a tree of files and what it is to be run with."""

    def __init__(self, tree: Path, config: Mapping[str, Any], folder: Path) -> None:
        self.tree = tree
        self.config = config
        self._folder = folder

    def command(self, socket: Path, secrets: Mapping[str, str], settings: Mapping[str, str], *words: str) -> list[str]:
        """The command that runs these arguments after the entry point, or the image's own, in separate namespaces."""
        held = self._folder / "secrets"
        held.mkdir(exist_ok=True)
        for name, secret in secrets.items():
            (held / name).write_text(f"{secret}\n")
            (held / name).chmod(0o444)
        environment = dict(line.split("=", 1) for line in self.config["Env"]) | dict(settings)
        lines = self._folder / "settings"
        lines.write_text("\n".join(f"{name}={value}" for name, value in environment.items()))
        places = {
            "TREE": self.tree, "DATABASE": socket, "SECRETS": held, "SETTINGS": lines, "ACCOUNT": self.config["User"],
        }  # fmt: skip
        return [
            "env", *(f"{name}={value}" for name, value in places.items()),
            "unshare", "--pid", "--fork", "--kill-child=SIGTERM", "--mount", "--ipc", "--uts",
            "sh", "-c", _RUN, "sh", *self.config["Entrypoint"], *(words or self.config["Cmd"]),
        ]  # fmt: skip


@contextmanager
def built_image() -> Iterator[Image]:
    """The image, built in a temporary store."""
    debian_program("buildah")
    if os.geteuid() != 0:
        lacking("needs root, to run what Buildah has built")
    with tempfile.TemporaryDirectory(prefix="tenantry-image-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        store = ("--root", str(folder / "root"), "--runroot", str(folder / "run"), "--storage-driver", "vfs")

        def buildah(*arguments: str) -> str:
            done = subprocess.run(["buildah", *store, *arguments], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            return done.stdout.strip()

        _make_base(folder / "base", buildah)
        _download(folder / "wheels")
        buildah(
            "build", "--isolation", "chroot", "--pull-never", "--format", "docker",
            "--volume", f"{folder / 'wheels'}:/registry:ro",
            "--file", str(CONTAINERFILE), "--tag", _IMAGE, str(ROOT),
        )  # fmt: skip
        config = json.loads(buildah("inspect", "--type", "image", _IMAGE))["Docker"]["config"]
        made = buildah("from", "--pull-never", _IMAGE)
        yield Image(Path(buildah("mount", made)), config, folder)
        buildah("umount", made)


def _make_base(tree: Path, buildah: Any) -> None:
    """An image by the name of the base, with this Python, a shell, and the libraries that both need."""
    local = tree / "usr" / "local"
    standard = Path(sys.base_prefix) / "lib" / _VERSION
    shutil.copytree(standard, local / "lib" / _VERSION, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for library in (Path(sys.base_prefix) / "lib").glob("libpython*.so*"):
        shutil.copy(library, local / "lib")
    (local / "bin").mkdir()
    shutil.copy(Path(sys.base_prefix) / "bin" / _VERSION, local / "bin")
    for alias in ("python", "python3"):
        (local / "bin" / alias).symlink_to(_VERSION)
    packages = Path(sys.prefix) / "lib" / _VERSION / "site-packages"
    needing = [*_PROGRAMS, local / "bin" / _VERSION, *standard.rglob("*.so"), *packages.rglob("*.so")]
    for library in {found for each in needing for found in _libraries(each)}:
        _copy_as_it_lies(library, tree)
    for program in _PROGRAMS:
        _copy_as_it_lies(program, tree)
    for place in ("tmp", "etc", "proc", "dev", "run"):
        (tree / place).mkdir(exist_ok=True)
    (tree / "tmp").chmod(0o1777)
    (tree / "etc" / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /registry\n")
    (tree / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    made = buildah("from", "scratch")
    buildah("add", made, str(tree), "/")
    path = "/usr/local/bin:/usr/bin:/bin"
    buildah("config", "--env", f"PATH={path}", "--env", "LD_LIBRARY_PATH=/usr/local/lib", "--shell", "/bin/sh -c", made)
    buildah("commit", "--rm", made, BASE)


def _libraries(program: Path) -> list[Path]:
    """The system's libraries that a program or an extension needs."""
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    found = [Path(path) for path in _LIBRARY.findall(listed)]
    return [path for path in found if path.is_relative_to("/lib") or path.is_relative_to("/lib64")]


def _copy_as_it_lies(path: Path, tree: Path) -> None:
    target = tree / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)


def _download(folder: Path) -> None:
    """What the image installs, with its hashes checked once more there."""
    pinned = [word for name in ("build", "runtime") for word in ("-r", str(ROOT / "requirements" / f"{name}.txt"))]
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*download, "--dest", str(folder), *pinned], check=True, capture_output=True)
