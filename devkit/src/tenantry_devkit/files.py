"""Files that only their owner may read."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

OWNER_ONLY: Final = 0o600


def write_private(path: Path, content: bytes) -> None:
    """Create or replace a file of mode 0600 atomically."""
    with _fresh_file(path, content) as fresh:
        fresh.replace(path)


def create_private(path: Path, content: bytes) -> None:
    """Create a file with mode 0600, unless another process has created it meanwhile."""
    with _fresh_file(path, content) as fresh, contextlib.suppress(FileExistsError):
        path.hardlink_to(fresh)  # a link, unlike a rename, replaces nothing


@contextmanager
def _fresh_file(path: Path, content: bytes) -> Iterator[Path]:
    """Give a file with this content beside the path; it is deleted if it still has its name."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(fresh, "xb", opener=lambda name, flags: os.open(name, flags, OWNER_ONLY)) as file:
            file.write(content)
        yield fresh
    finally:
        fresh.unlink(missing_ok=True)
