"""The service installed from wheels, without the sources."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_PARTS: Final = {
    ".": ("src", "requirements", "pyproject.toml", "README.md", "LICENSE"),
    "sdk": ("src", "pyproject.toml"),
    "devkit": ("src", "pyproject.toml"),
}
_FURTHER: Final = ("README.md", "LICENSE")


def build_wheels(folder: Path) -> list[Path]:
    """The wheels of the service, the SDK and the development kit, made in ``folder``, of copies of the sources."""
    for part, names in _PARTS.items():
        copy = folder / "sources" / part
        copy.mkdir(parents=True, exist_ok=True)
        for name in {*names, *_FURTHER}:
            source = ROOT / part / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            elif source.exists():
                shutil.copy(source, copy / name)
        subprocess.run(
            [
                sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
                "--wheel-dir", str(folder / "wheels"), str(copy),
            ],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    return sorted((folder / "wheels").glob("*.whl"))


def install_wheels(wheels: list[Path], target: Path) -> None:
    """Put the packages of wheels into a folder, without what they need."""
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target),
            *map(str, wheels),
        ],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
