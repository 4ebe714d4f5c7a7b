"""Helpers of the tests of the API key pages."""

import re
from typing import Any, Final

from tests.support.dashboard import ACME, AT_ACME, Dashboard, Fields, Person
from tests.support.dashboard_page import Page

KEYS: Final = f"{AT_ACME}/settings/api-keys"
NEW: Final = f"{KEYS}/new"
SECRET: Final = re.compile(r"[a-z]{3,4}_(?:live|test)_[A-Za-z0-9]{49}")
CI: Final[Fields] = {"name": "CI", "access": "scoped", "scope": ["projects:read"]}


def secret_in(page: Page) -> str:
    """Return the only secret that a page shows."""
    [secret] = set(SECRET.findall(page.html))
    return str(secret)


async def create(person: Person, **fields: str | list[str]) -> tuple[str, str]:
    """Create a key; return its id and secret."""
    shown = await person.send(await person.open(NEW), **{**CI, **fields})
    assert shown.status == 200, shown.text
    [key_id] = {
        link.rpartition("/")[2] for link in shown.links if re.fullmatch(rf"{KEYS}/key_\w+", link)
    }
    return key_id, secret_in(shown)


async def record(dashboard: Dashboard, person: Person, key_id: str) -> dict[str, Any]:
    """Return a key's record as the API shows it to a new OWNER key."""
    _, owner = await create(person, name="looks", scope=[], access="owner", sure="1")
    answer = await dashboard.request("GET", f"/api-keys/{key_id}", owner)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def names(dashboard: Dashboard, owner: str) -> list[str]:
    """The names of the tenant's keys, as the API lists them, newest first."""
    answer = await dashboard.request("GET", f"/api-keys?orgId={ACME}&limit=100", owner)
    return [key["name"] for key in answer.json()["data"]]
