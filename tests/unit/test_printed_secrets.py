"""Whatever the repository prints as a secret, to be copied, is refused where it would count."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tenantry.domain.plans import CatalogError, parse_catalog
from tenantry.settings import EMBEDDED, SETTINGS, SettingsError, load

ROOT: Final = Path(__file__).parents[2]
_SECRETS: Final = [
    setting.name for setting in SETTINGS.values() if setting.kind.name in ("secret", "secrets")
]
_WEBHOOK_SECRET: Final = re.compile(r"whsec_[A-Za-z0-9+/=_.-]+")
_ASSIGNED: Final = re.compile(
    rf"""\b({"|".join(_SECRETS)})(?:=["']?|["']?: ["']|: (?=\S+$))([\w+/=.,<>-]+)""", re.MULTILINE
)
_HMAC_KEY: Final = re.compile(r"-hmac ([A-Za-z0-9+/=_.-]+)")
_NOT_PRINTED: Final = ("tests/", "bench/")
"""Programs that use their secrets themselves: they show them to nobody."""
_NEEDED: Final = {
    "DATABASE_URL": EMBEDDED,
    "PROVIDER_WEBHOOK_SECRET": "whsec_0123456789abcdef",
    "API_KEY_PEPPER": "pepper-0123456789-0123456789-0123456789",
    "SESSION_SECRET": "session-0123456789-0123456789-0123456789",
}


def test_no_secret_that_a_file_prints_is_accepted() -> None:
    printed = [(file, *secret) for file, text in _texts() for secret in _secrets_in(text)]
    assert len(printed) > 20
    assert [found for found in printed if _is_accepted(*found[1:])] == []


def _texts() -> Iterator[tuple[str, str]]:
    """Yield the files of the repository: those that git ignores may hold a developer's secrets."""
    listing = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    for name in subprocess.check_output(listing, cwd=ROOT, text=True).split("\0"):
        if (ROOT / name).is_file() and not name.startswith(_NOT_PRINTED):
            yield name, (ROOT / name).read_bytes().decode(errors="replace")


def _secrets_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield the settings that a text prints secrets of, with these."""
    for found in _WEBHOOK_SECRET.findall(text):
        yield "PROVIDER_WEBHOOK_SECRET", found
        yield "[[webhooks]]", found
    yield from _ASSIGNED.findall(text)
    yield from (("API_KEY_PEPPER", found) for found in _HMAC_KEY.findall(text))


def _is_accepted(name: str, value: str) -> bool:
    try:
        if name == "[[webhooks]]":
            parse_catalog(_catalog(value))
        else:
            load({**_NEEDED, name: value})
    except (CatalogError, SettingsError):
        return False
    return True


def _catalog(secret: str) -> str:
    return f"""
[[plans]]
id = "free"
[[webhooks]]
name = "app"
url = "https://app.example.com/"
types = ["tenant.*"]
secrets = ["{secret}"]
"""
