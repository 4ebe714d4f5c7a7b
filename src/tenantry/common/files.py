"""Files that are replaced at once."""

import os
import tempfile
from pathlib import Path
from typing import Final

OWNER_ONLY: Final = 0o600


def write_private(path: Path, content: bytes, mode: int = OWNER_ONLY) -> None:
    """Create or replace a file atomically. Raises `OSError`."""
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
