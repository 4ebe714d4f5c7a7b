"""Files that are replaced at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

OWNER_ONLY: Final = 0o600


def write_private(path: Path, content: bytes, mode: int = OWNER_ONLY) -> None:
    """Create or replace a file atomically, in a folder of mode 0700. Raises `OSError`."""
    import tempfile  # noqa: PLC0415  # slow to import

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # of mode 0600
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.chmod(mode)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
