"""The archive of the previous release: tests run it on the next release's schema.

It is kept in the repository because a checkout need not have the history. Make it anew with the
first migration after a release: ``python -m tests.support.previous COMMIT`` takes the service's
files of that commit, without the parts that it does not need to serve.
"""

import lzma
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(__file__).parent / "previous_release.tar.xz"
_ROOT: Final = Path(__file__).parents[2]
_LEFT_OUT: Final = ("local", "simulator", "testing")


def unpack(folder: Path) -> Path:
    """Unpack it into a folder; return the first entry for Python's path."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def newest_revision() -> str:
    """The revision of the newest migration of that release."""
    with tarfile.open(ARCHIVE) as archive:
        files = (Path(name) for name in archive.getnames())
        return max(file.name[:4] for file in files if file.match("versions/[0-9]*.py"))


def main() -> None:
    """Make the archive anew, and say from which commit."""
    [commit] = sys.argv[1:]
    content = _git(
        "archive", commit, "src/tenantry", *(f":!src/tenantry/{part}" for part in _LEFT_OUT)
    )
    ARCHIVE.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    sys.stdout.write(f"{ARCHIVE.name}: {_git('rev-parse', commit).decode()}")


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=_ROOT, stdout=subprocess.PIPE, check=True).stdout


if __name__ == "__main__":
    main()
