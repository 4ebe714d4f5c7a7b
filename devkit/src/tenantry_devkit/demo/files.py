"""Files of the demo that only their owner may read."""

import os
from pathlib import Path
from typing import Final

OWNER_ALONE: Final = 0o600


def write_private(path: Path, content: bytes) -> None:
    """Replace ``path`` by a file with mode 0600; a reader sees the old content or the whole new one."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with open(fresh, "xb", opener=lambda name, flags: os.open(name, flags, OWNER_ALONE)) as file:
        file.write(content)
    fresh.replace(path)
