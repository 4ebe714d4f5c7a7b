"""Helpers of the tests of the API key pages."""

import re
from typing import Final

from tests.support.dashboard import ACME, AT_ACME, Dashboard, Fields, Person
from tests.support.dashboard_page import Page
from tests.support.service import JsonObject

KEYS: Final = f"{AT_ACME}/settings/api-keys"
NEW: Final = f"{KEYS}/new"
SECRET: Final = re.compile(r"[a-z]{3,4}_(?:live|test)_[A-Za-z0-9]{49}")
CI: Final[Fields] = {"name": "CI", "access": "scoped", "scope": ["projects:read"]}


def secret_in(page: Page) -> str:
    """Return the only secret that a page shows."""
    [secret] = set(SECRET.findall(page.html))
    return str(secret)


async def create(person: Person, **fields: str | list[str]) -> tuple[str, str]:
    """Create a key by the form; return its id and secret."""
    shown = await person.send(await person.open(NEW), **{**CI, **fields})
    assert shown.status == 200, shown.text
    [key_id] = {
        link.rpartition("/")[2] for link in shown.links if re.fullmatch(rf"{KEYS}/key_\w+", link)
    }
    return key_id, secret_in(shown)


async def add_key(dashboard: Dashboard, name: str = "CI", **wishes: object) -> tuple[str, str]:
    """Create a key of Olivia's by the API, with the fields of a request; return its id and
    secret.
    """
    scopes = [] if "accessLevel" in wishes else ["projects:read"]
    wishes = {"orgId": ACME, "name": name, "scopes": scopes, **wishes}
    made = await dashboard.call("POST", "/api-keys", wishes)
    return made["id"], made["secret"]


async def record(dashboard: Dashboard, key_id: str) -> JsonObject:
    """Return a key's record as the API shows it."""
    return await dashboard.call("GET", f"/api-keys/{key_id}")


async def names(dashboard: Dashboard, owner: str) -> list[str]:
    """The names of the tenant's keys, as the API lists them, newest first."""
    answer = await dashboard.request("GET", f"/api-keys?orgId={ACME}&limit=100", owner)
    return [key["name"] for key in answer.json()["data"]]
