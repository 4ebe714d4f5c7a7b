"""Files that only their owner may read."""

import contextlib
import os
import secrets
from pathlib import Path

from tenantry.common.files import OWNER_ONLY


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
    with open(
        path,
        "xb",
        opener=lambda name, flags: os.open(name, flags, OWNER_ONLY),
    ) as file:
        file.write(content)
