"""The demo of a folder: where it keeps its settings, and what they tell a client of its."""

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tenantry.demo.names import ADDRESS, LIVE_KEY

DEMO_FILE: Final = "demo.env"
"""The demo's own settings, in the data folder."""
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
    return Path(values.get("TENANTRY_DATA_DIR") or ".tenantry")


def demo_here(environment: Mapping[str, str]) -> Demo | None:
    """The demo that has run in this folder, unless the settings are about another database.

    A folder may be anybody's. So its key goes to its own address and to nothing else, both are from one file, that
    address is on this machine, and nothing of the environment is put into what the folder's files say.
    """
    values = {**_read(Path(".env")), **environment}
    file = data_dir(values) / DEMO_FILE
    if values.get("DATABASE_URL") or values.get("DATABASE_URL_FILE"):
        return None
    made = _read(file)
    address, key = made.get(ADDRESS, ""), made.get(LIVE_KEY, "")
    if not _ADDRESS.fullmatch(address) or not _KEY.fullmatch(key):
        return None
    issuer = made.get("OIDC_ISSUER", "")
    near = issuer if _hostname(issuer) in _LOOPBACK else None
    return Demo(file.parent, address, key, near, made.get("OIDC_CLIENT_ID"))


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
