"""The release before the newest migration, kept as a whole: what it does on the new schema cannot be told otherwise.

It is kept in the repository because a checkout need not have the history. Make it anew when you add a migration:
``python -m tests.support.previous [COMMIT]`` takes the service's files of that commit, or else of the last commit that
lacks the newest migration, without the parts that it does not need to serve.
"""

import lzma
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from tenantry.db.migrate import MIGRATIONS

ARCHIVE: Final = Path(__file__).parent / "previous_release.tar.xz"
_ROOT: Final = Path(__file__).parents[2]
_LEFT_OUT: Final = ("local", "simulator", "testing")


def unpack(folder: Path) -> Path:
    """Unpack it into a folder; returns what is to be first on the path of Python."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def main() -> None:
    """Make the archive anew, and say from which commit."""
    newest = max((MIGRATIONS / "versions").glob("[0-9]*.py"))
    added = _git("log", "--diff-filter=A", "--format=%H", "--", str(newest)).split()
    commit = sys.argv[1] if sys.argv[1:] else f"{added[-1].decode()}^" if added else "HEAD"
    content = _git("archive", commit, "src/tenantry", *(f":!src/tenantry/{part}" for part in _LEFT_OUT))
    ARCHIVE.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    sys.stdout.write(f"{ARCHIVE.name}: {_git('rev-parse', commit).decode()}")


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=_ROOT, stdout=subprocess.PIPE, check=True).stdout


if __name__ == "__main__":
    main()
