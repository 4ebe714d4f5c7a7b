"""Files that only their owner may read."""

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

OWNER_ONLY: Final = 0o600


def write_private(path: Path, content: bytes) -> None:
    """Create or replace a file with mode 0600, atomically."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    _write_new(fresh, content)
    fresh.replace(path)


def create_private(path: Path, content: bytes) -> None:
    """Create a file with mode 0600, unless another process has created it meanwhile."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write_new(fresh, content)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(fresh)  # a link, unlike a rename, replaces nothing
    finally:
        fresh.unlink(missing_ok=True)


def _write_new(path: Path, content: bytes) -> None:
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, OWNER_ONLY)) as file:
        file.write(content)
