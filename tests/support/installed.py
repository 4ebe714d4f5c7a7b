"""The service installed from wheels, without the sources; and the distributions as they are
published.
"""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

from tests.support.required import skip_or_fail

ROOT: Final = Path(__file__).parents[2]
_PARTS: Final = {
    ".": ("src", "pyproject.toml", "README.md", "LICENSE", "hatch_build.py"),
    "sdk": ("src", "pyproject.toml", "README.md", "LICENSE"),
    "devkit": ("src", "pyproject.toml", "README.md", "LICENSE"),
}
_AUTHOR: Final = ("-c", "user.name=tenantry", "-c", "user.email=tenantry@example.com")
run: Final = partial(subprocess.run, check=True, capture_output=True, text=True)


def build_wheels(folder: Path) -> list[Path]:
    """The wheels of the service, the SDK and the development kit, made in ``folder``, of copies of
    the sources.
    """
    for part, names in _PARTS.items():
        copy = folder / "sources" / (part if part != "." else "service")
        copy.mkdir(parents=True)
        for name in names:
            source = ROOT / part / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "--quiet",
                "--no-deps",
                "--no-build-isolation",
                "--no-index",
                "--wheel-dir",
                str(folder / "wheels"),
                str(copy),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
    return sorted((folder / "wheels").glob("*.whl"))


def install_wheels(wheels: list[Path], target: Path) -> None:
    """Put the packages of wheels into a folder, without what they need."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--target",
            str(target),
            *map(str, wheels),
        ],
        check=True,
        capture_output=True,
        text=True,
    )


def release_tool(name: str) -> str:
    """Where a tool of requirements/tools.txt is."""
    found = ROOT / ".venv" / "tools" / "bin" / name
    if not found.exists():
        skip_or_fail(f"needs {name}: `make .venv/.tools`")
    return str(found)


def copy_checkout(place: Path) -> Path:
    """A copy of what git tracks, as it is now."""
    sources = place / "sources"
    listed = subprocess.check_output(
        ["git", "ls-files", "-z", "--deduplicate"], cwd=ROOT, text=True
    )
    for name in listed.split("\0"):
        if name and (ROOT / name).exists():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, sources / name, follow_symlinks=False)
    return sources


def commit_all(sources: Path) -> None:
    """Make a folder a repository of git with one commit, which can be cloned."""
    for arguments in (
        ["init", "--quiet"],
        ["add", "--all"],
        [*_AUTHOR, "commit", "--quiet", "--message", "Sources"],
    ):
        run(["git", *arguments], cwd=sources)


def build_distributions(place: Path) -> Path:
    """The folder of the wheels and source distributions of what git tracks, as it is now."""
    python, sources = release_tool("python"), copy_checkout(place)
    for part in (".", "sdk", "devkit"):
        run([python, "-m", "build", "--outdir", str(place / "dist"), part], cwd=sources)
    return place / "dist"


def install(dist: Path, environment: Path, *arguments: str) -> Path:
    """Install into a new environment without byte code; return its folder of packages."""
    uv = release_tool("uv")
    run([uv, "venv", "--quiet", str(environment)])
    command = [uv, "pip", "install", "--quiet", "--python", str(environment), *arguments]
    run(command, env={**os.environ, **from_wheels(dist)})
    [packages] = environment.glob("lib/python3*/site-packages")
    return packages


def from_wheels(dist: Path) -> dict[str, str]:
    """The variables with which uv and pip install the distributions of tenantry from these
    wheels.
    """
    constraints = dist.parent / "constraints.txt"
    wheels = {wheel.name.partition("-")[0].replace("_", "-"): wheel for wheel in dist.glob("*.whl")}
    constraints.write_text(
        "".join(f"{name} @ {wheel.as_uri()}\n" for name, wheel in wheels.items())
    )
    return {"UV_CONSTRAINT": str(constraints), "PIP_CONSTRAINT": str(constraints)}
