"""Which demo a command is about: where it keeps its settings, and what they tell its clients."""

import contextlib
import io
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

DEMO_FILE: Final = "demo.env"
"""The demo's own settings, in the data folder."""
ADDRESS: Final = "TENANTRY_DEMO_ADDRESS"
LIVE_KEY: Final = "TENANTRY_DEMO_LIVE_KEY"
_DATA_DIR: Final = "TENANTRY_DATA_DIR"
_DEFAULT: Final = ".tenantry"
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_ADDRESS: Final = re.compile(r"http://(?:127\.0\.0\.1|\[::1\]|localhost):[0-9]{1,5}")
_KEY: Final = re.compile(r"svc_(?:live|test)_[0-9A-Za-z]{49}")
_MOST_BYTES: Final = 64 * 1024


class Demo(NamedTuple):
    """The demo as its clients see it; whether it runs is another matter."""

    folder: Path
    base_url: str
    live_key: str
    issuer: str | None
    client_id: str | None


def data_dir(values: Mapping[str, str]) -> Path:
    """The folder of the embedded database and the demo's settings."""
    return Path(values.get(_DATA_DIR) or _DEFAULT)


def find_demo(values: Mapping[str, str]) -> Path | None:
    """The data folder of the demo that a command is about; None without one, and where a database is named.

    That is `TENANTRY_DATA_DIR` where it is set, else the nearest `.tenantry` with a demo in it: of the current folder,
    or of a folder above it. ``values`` are the environment over the ``.env`` file of the current folder.
    """
    if values.get(_DATA_DIR):
        folder = data_dir(values)
        return folder if (folder / DEMO_FILE).is_file() and not _names_database(values) else None
    for folder in _candidates():
        if (folder / DEMO_FILE).is_file():
            return None if _names_database({**_read(folder.parent / ".env"), **values}) else folder
    return None


def env_file_of(folder: Path) -> dict[str, str]:
    """The ``.env`` file of the folder that a demo was started in, where that is this user's; it runs with that too."""
    file = folder.parent / ".env"
    with contextlib.suppress(OSError):
        if folder.name == _DEFAULT and file.stat().st_uid == os.geteuid():
            return _read(file)
    return {}


def demo_values(folder: Path) -> dict[str, str]:
    """The settings that the demo of a folder has made, and the address that it serves."""
    made = _read(folder / DEMO_FILE)
    address = made.get(ADDRESS, "")
    if _ADDRESS.fullmatch(address):
        parts = urlsplit(address)
        made |= {"HOST": parts.hostname or "", "PORT": str(parts.port)}
    return {**made, _DATA_DIR: str(folder)}


def demo_here(environment: Mapping[str, str]) -> Demo | None:
    """The demo that `find_demo` finds, as its clients see it.

    A folder may be anybody's. So its key goes to its own address and to nothing else, both are from one file, that
    address is on this machine, and nothing of the environment is put into what the folder's files say.
    """
    folder = find_demo({**_read(Path(".env")), **environment})
    if folder is None:
        return None
    made = _read(folder / DEMO_FILE)
    address, key = made.get(ADDRESS, ""), made.get(LIVE_KEY, "")
    if not _ADDRESS.fullmatch(address) or not _KEY.fullmatch(key):
        return None
    issuer = made.get("OIDC_ISSUER", "")
    near = issuer if _hostname(issuer) in _LOOPBACK else None
    return Demo(folder, address, key, near, made.get("OIDC_CLIENT_ID"))


def _candidates() -> Iterator[Path]:
    """Where a demo may be. A folder above the current one counts only if this user made the demo there."""
    yield Path(_DEFAULT)
    with contextlib.suppress(OSError):  # the current folder may be gone, and a folder above it closed
        for parent in Path.cwd().parents:
            folder = parent / _DEFAULT
            if (folder / DEMO_FILE).is_file() and all(
                path.lstat().st_uid == os.geteuid() for path in (folder, folder / DEMO_FILE)
            ):
                yield folder


def _names_database(values: Mapping[str, str]) -> bool:
    return bool(values.get("DATABASE_URL") or values.get("DATABASE_URL_FILE"))


def _read(path: Path) -> dict[str, str]:
    """What a file of settings says to the letter; nothing where it is no readable text."""
    from dotenv import dotenv_values  # noqa: PLC0415  # not every command needs it

    try:
        if not path.is_file():  # nor a pipe, which might never end
            return {}
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return {}
    values = dotenv_values(stream=io.StringIO(text), interpolate=False)
    return {name: value for name, value in values.items() if value is not None}


def _hostname(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
