"""The secret that events relayed on this machine are signed with: made once, and for its owner's eyes alone."""

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tenantry.cli.exit_codes import fail
from tenantry.common.secret import Secret

_OWNER_ALONE: Final = 0o600
_SECRET: Final = re.compile(r"whsec_[A-Za-z0-9]{16,}")


def secret_path(values: Mapping[str, str]) -> Path:
    """Where the secret is kept: below XDG_STATE_HOME, by default ``~/.local/state``.

    Raises `RuntimeError` where there is no home directory either.
    """
    base = Path(values.get("XDG_STATE_HOME", ""))
    folder = base if base.is_absolute() else Path.home() / ".local" / "state"  # a relative one is to be ignored
    return folder / "tenantry" / "listen.secret"


def load_or_create_secret(path: Path) -> Secret:
    """The secret in this file, which is made, readable by its owner alone, where it is missing.

    Raises `OSError`, and `ValueError` where the file holds something else.
    """
    if not path.exists():
        _create(path)
    if stat.S_IMODE(path.stat().st_mode) & ~_OWNER_ALONE:
        path.chmod(_OWNER_ALONE)
    text = path.read_text("utf-8", "replace").strip()
    if _SECRET.fullmatch(text) is None:
        raise ValueError(f"{path} holds no signing secret. Remove it, and a new one is made.")
    return Secret(text)


def _create(path: Path) -> None:
    """Put a new secret there; of two that do so at once one wins, and both then read the same."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ALONE)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"whsec_{secrets.token_hex(24)}\n")
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(fresh)
    finally:
        fresh.unlink()


def signing_secret(values: Mapping[str, str]) -> Secret:
    """The secret that `tenantry listen` signs with, created on first use; exits with a message on failure."""
    try:
        return load_or_create_secret(secret_path(values))
    except (OSError, ValueError, RuntimeError) as error:
        fail(f"The signing secret cannot be kept: {error}")
