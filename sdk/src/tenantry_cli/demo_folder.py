"""Finds the demo that a command uses, and reads its settings."""

import contextlib
import io
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

DEMO_FILE: Final = "demo.env"
"""The demo's generated settings, in the data folder."""
ADDRESS: Final = "TENANTRY_DEMO_ADDRESS"
DATABASE: Final = "TENANTRY_DEMO_DATABASE_URL"
"""The database's address, for applications that authenticate in-process."""
LIVE_KEY: Final = "TENANTRY_DEMO_LIVE_KEY"
TEST_KEY: Final = "TENANTRY_DEMO_TEST_KEY"
_DATA_DIR: Final = "TENANTRY_DATA_DIR"
_DEFAULT: Final = ".tenantry"
_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}
_ADDRESS: Final = re.compile(r"http://(?:127\.0\.0\.1|\[::1\]|localhost):[0-9]{1,5}")
_KEY: Final = re.compile(r"[a-z0-9]{2,16}_(?:live|test)_[0-9A-Za-z]{49}")


class Demo(NamedTuple):
    """A demo as its clients see it; it need not be running."""

    folder: Path
    base_url: str
    live_key: str
    test_key: str | None
    issuer: str | None
    client_id: str | None

    def takes(self, key: str) -> bool:
        """Whether a key is one of the demo's own."""
        return key in (self.live_key, self.test_key)

    @property
    def source(self) -> str:
        return f"the demo in {self.folder}"


def is_loopback_url(address: str) -> bool:
    try:
        return urlsplit(address).hostname in _LOOPBACK
    except ValueError:
        return False


def data_dir(values: Mapping[str, str]) -> Path:
    """Return the folder of the embedded database and the demo's settings."""
    return Path(values.get(_DATA_DIR) or _DEFAULT)


def find_demo(values: Mapping[str, str]) -> Path | None:
    """Return the data folder of the demo that a command uses; None without a demo.

    It is `TENANTRY_DATA_DIR` if set, else the nearest `.tenantry` with a demo, in the current
    folder or one above. ``values`` are the environment over the ``.env`` file of the current
    folder.
    """
    candidates = [data_dir(values)] if values.get(_DATA_DIR) else _candidates()
    return next((folder for folder in candidates if (folder / DEMO_FILE).is_file()), None)


def demo_values(folder: Path) -> dict[str, str]:
    """Read the settings that a demo runs with, and its address."""
    generated = {**_read(folder / DEMO_FILE), _DATA_DIR: str(folder)}
    if _ADDRESS.fullmatch(generated.get(ADDRESS, "")):
        parts = urlsplit(generated[ADDRESS])
        generated |= {
            "HOST": parts.hostname or "",
            "PORT": str(parts.port),
        }
    return generated


def environment_over_env_file(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment over the ``.env`` file of the current folder, read literally."""
    return {**_read(Path(".env")), **environment}


def demo_here(environment: Mapping[str, str]) -> Demo | None:
    """Return the demo that `find_demo` finds, as its clients see it.

    Another user may have written the folder. So address and key come from one file, the address
    must be on this machine, and no variable of the environment is expanded in the file.
    """
    folder = find_demo(environment_over_env_file(environment))
    if folder is None:
        return None
    generated = _read(folder / DEMO_FILE)
    address = generated.get(ADDRESS, "")
    key = generated.get(LIVE_KEY, "")
    if not _ADDRESS.fullmatch(address) or not _KEY.fullmatch(key):
        return None
    issuer = generated.get("OIDC_ISSUER", "")
    return Demo(
        folder,
        address,
        key,
        generated.get(TEST_KEY),
        issuer if is_loopback_url(issuer) else None,
        generated.get("OIDC_CLIENT_ID"),
    )


def _candidates() -> Iterator[Path]:
    """Yield the folders that may hold a demo. One above the current folder counts only if this user
    owns the demo.
    """
    yield Path(_DEFAULT)
    # the current folder may be deleted, and a folder above it unreadable
    with contextlib.suppress(OSError):
        for parent in Path.cwd().parents:
            folder = parent / _DEFAULT
            if (folder / DEMO_FILE).is_file() and all(
                path.lstat().st_uid == os.geteuid() for path in (folder, folder / DEMO_FILE)
            ):
                yield folder


def _read(path: Path) -> dict[str, str]:
    """Read a file of settings literally; an unreadable one is empty."""
    from dotenv import dotenv_values  # noqa: PLC0415  # not every command needs it

    try:
        if not path.is_file():  # a pipe might never end
            return {}
        with path.open("rb") as file:
            text = file.read(64 * 1024).decode()
    except (OSError, UnicodeDecodeError):
        return {}
    values = dotenv_values(stream=io.StringIO(text), interpolate=False)
    return {name: value for name, value in values.items() if value is not None}
