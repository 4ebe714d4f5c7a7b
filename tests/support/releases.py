"""Two successive releases, which tests run on one database (docs/decisions/0031).

The earlier one is an archive of the last release's files, kept in the repository because a checkout
need not have the history. `python -m tests.support.releases COMMIT` writes it after a release.
Nothing was released yet, so there is no archive, and this tree is the earlier release.

The later one is this tree. As long as it has no migration that the earlier one lacks, it is a copy
of this tree with another migration, so that the tests prove something before there is one.
"""

import lzma
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.migrations import history, revisions

ARCHIVE: Final = Path(__file__).parent / "previous_release.tar.xz"
_ROOT: Final = Path(__file__).parents[2]
_SOURCE: Final = _ROOT / "src" / "tenantry"
_VERSIONS: Final = Path("db", "migrations", "versions")
_NEXT_MIGRATION: Final = "ALTER TABLE tenants ADD COLUMN of_the_next_release text"


class Release(NamedTuple):
    """A release that runs with ``path`` as the first entry of Python's module path."""

    path: Path
    revision: str

    def migrations(self) -> dict[str, str]:
        """The texts of its migrations, by file name."""
        files = (self.path / "tenantry" / _VERSIONS).glob("[0-9]*.py")
        return {file.name: file.read_text("utf-8") for file in files}


def of_this_tree() -> Release:
    return Release(_SOURCE.parent, revisions()[-1])


def successive_releases(folder: Path) -> tuple[Release, Release]:
    """Return the earlier and the later release; ``folder`` is for their files."""
    tree = of_this_tree()
    earlier = unpacked(folder / "earlier") if ARCHIVE.exists() else tree
    is_later = earlier.revision < tree.revision
    return earlier, tree if is_later else with_another_migration(folder / "later")


def unpacked(folder: Path) -> Release:
    """Unpack the last release."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    found = Release(folder / "src", "")
    return found._replace(revision=max(found.migrations()).partition("_")[0])


def with_another_migration(folder: Path) -> Release:
    """Copy this tree, and add what the next release may have."""
    copy = folder / "tenantry"
    shutil.copytree(_SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "migrations"))
    history(copy / "db" / "migrations", revisions()[-1], r9999=_NEXT_MIGRATION)
    return Release(folder, "9999")


def main() -> None:
    """Write the archive again, and print its commit."""
    [commit] = sys.argv[1:]
    content = _git("archive", commit, "src/tenantry")
    ARCHIVE.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    sys.stdout.write(f"{ARCHIVE.name}: {_git('rev-parse', commit).decode()}")


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=_ROOT, stdout=subprocess.PIPE, check=True).stdout


if __name__ == "__main__":
    main()
