"""The demo of a folder: where it keeps its settings, and what they tell a client of its."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tenantry.demo.names import LIVE_KEY

DEMO_FILE: Final = "demo.env"
"""The demo's own settings, in the data folder."""
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


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
    """The demo that has run in this folder, unless the settings are about another database. It is on loopback."""
    from dotenv import dotenv_values  # noqa: PLC0415  # not every command needs it

    values = {**_known(dotenv_values(".env")), **environment}
    file = data_dir(values) / DEMO_FILE
    if values.get("DATABASE_URL") or not file.is_file():
        return None
    made = _known(dotenv_values(file))
    host, port = values.get("HOST") or _LOOPBACK[0], values.get("PORT") or "3001"
    if host not in _LOOPBACK or not port.isdecimal() or not made.get(LIVE_KEY):
        return None
    host = f"[{host}]" if ":" in host else host
    issuer = made.get("OIDC_ISSUER", "")
    # a folder may be anybody's: it sends nobody away from this machine
    near = issuer if urlsplit(issuer).hostname in _LOOPBACK else None
    return Demo(file.parent, f"http://{host}:{port}", made[LIVE_KEY], near, made.get("OIDC_CLIENT_ID"))


def _known(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}
