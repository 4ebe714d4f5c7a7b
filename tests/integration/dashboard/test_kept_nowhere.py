"""Answers of the dashboard are in no cache: what one person was shown, the next one at the same computer is not."""

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
_ELSEWHERE = ("/", "/sign-in", "/sign-in/start", "/sign-in/callback", "/signed-out", "/orgs/%00/", "/orgs/nobody/x")


def addresses() -> Iterator[tuple[str, str]]:
    """Each method and address, with made-up ids."""
    for each in sorted(dashboard_addresses()):
        method, _, path = each.partition(" ")
        yield method, AT_ACME + "/".join("x" if part.startswith("{") else part for part in path.split("/"))
        yield "PUT", AT_ACME + path
    for path in _ELSEWHERE:
        yield "GET", path
    yield "POST", "/sign-out"


async def kept(client: httpx2.AsyncClient) -> list[tuple[str, str, int]]:
    """What is answered without one of the headers that keep pages to themselves."""
    found = []
    for method, path in addresses():
        async with client.stream(method, path, headers={"accept": "text/html"}) as answer:
            if not _ALWAYS.items() <= dict(answer.headers).items():
                found.append((method, path, answer.status_code))
    return found


async def test_no_answer_of_the_dashboard_is_to_be_kept_whoever_asks(dashboard: Dashboard) -> None:
    people = [await dashboard.sign_in(), await dashboard.sign_in(MIA)]
    clients = [dashboard.api, *(person.client for person in people)]
    assert [await kept(client) for client in clients] == [[], [], []]
