"""Answers of the dashboard are not cached, so the next user of a computer cannot see them."""

from collections.abc import Iterator

import httpx2

from tests.support.dashboard import AT_ACME, MIA, Dashboard
from tests.support.routes import dashboard_addresses

_ALWAYS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_ELSEWHERE = (
    "/",
    "/sign-in",
    "/sign-in/start",
    "/sign-in/callback",
    "/signed-out",
    "/orgs/%00/",
    "/orgs/nobody/x",
)


def addresses() -> Iterator[tuple[str, str]]:
    """Return each method and address, with invented ids."""
    for each in sorted(dashboard_addresses()):
        method, _, path = each.partition(" ")
        yield (
            method,
            AT_ACME + "/".join("x" if part.startswith("{") else part for part in path.split("/")),
        )
        yield "PUT", AT_ACME + path
    for path in _ELSEWHERE:
        yield "GET", path
    yield "POST", "/sign-out"


async def cached_responses(client: httpx2.AsyncClient) -> list[tuple[str, str, int]]:
    """Return the addresses whose answers lack a header that prevents caching or embedding."""
    found = []
    for method, path in addresses():
        async with client.stream(method, path, headers={"accept": "text/html"}) as answer:
            if not _ALWAYS.items() <= dict(answer.headers).items():
                found.append((method, path, answer.status_code))
    return found


async def test_no_answer_of_the_dashboard_may_be_cached(dashboard: Dashboard) -> None:
    people = [await dashboard.sign_in(), await dashboard.sign_in(MIA)]
    clients = [dashboard.api, *(person.client for person in people)]
    assert [await cached_responses(client) for client in clients] == [[], [], []]
