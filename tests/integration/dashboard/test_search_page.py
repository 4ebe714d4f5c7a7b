"""The search of an organization's keys, members, projects and events, without a browser."""

from typing import Final

import pytest

from tests.integration.dashboard.keys import add_key
from tests.support.dashboard import ADAM, AT_ACME, BERTA, MIA, Dashboard, Person
from tests.support.events import failed

SEARCH: Final = f"{AT_ACME}/search"
MARKUP: Final = "<img src=x onerror=alert(1)>"


@pytest.fixture
async def owner(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in()


async def furnish(dashboard: Dashboard, owner: Person) -> dict[str, str]:
    """Create one of each kind that "storefront" finds; return their pages."""
    key_id, _ = await add_key(dashboard, "Storefront key")
    project = await dashboard.call("POST", "/projects", {"name": "Storefront"})
    await dashboard.deliver(failed(event_id="evt_storefront"))
    member = await dashboard.add_member("storefront-bot", "admin")
    return {
        "key": f"{AT_ACME}/settings/api-keys/{key_id}",
        "member": member,
        "project": f"{AT_ACME}/projects/{project['id']}",
        "event": f"{AT_ACME}/events/evt_storefront",
    }


async def found(person: Person, pages: dict[str, str], text: str) -> list[str]:
    page = await person.open(f"{SEARCH}?q={text}")
    assert page.status == 200
    return [kind for kind, path in pages.items() if path in page.links]


async def test_one_text_finds_objects_of_every_kind(dashboard: Dashboard, owner: Person) -> None:
    pages = await furnish(dashboard, owner)
    assert await found(owner, pages, "STORE") == ["key", "member", "project", "event"]
    assert await found(owner, pages, "storefront key") == ["key"]
    assert await found(owner, pages, pages["key"].rpartition("/")[2]) == ["key"]
    assert await found(owner, pages, pages["project"].rpartition("/")[2]) == ["project"]
    assert await found(owner, pages, "in_acme") == ["event"]
    assert await found(owner, pages, "payment failed") == ["event"]
    assert await found(owner, pages, "%25") == []


@pytest.mark.parametrize("path", ["/search?q=", "/settings/api-keys?search="])
async def test_pasted_secret_finds_its_key_and_stays_in_no_address(
    dashboard: Dashboard, owner: Person, path: str
) -> None:
    key_id, secret = await add_key(dashboard, "Nightly export")
    answer = await owner.get(f"{AT_ACME}{path}{secret}")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"{AT_ACME}{path}{secret[:13]}...{secret[-4:]}"
    page = await owner.open(answer.headers["location"])
    assert f"{AT_ACME}/settings/api-keys/{key_id}" in page.links
    assert secret not in page.html


async def test_key_with_these_last_characters_is_first(dashboard: Dashboard, owner: Person) -> None:
    wanted, secret = await add_key(dashboard, "Wanted")
    for number in range(6):
        await add_key(dashboard, f"Newer {number} {secret[-4:]}")
    page = await owner.open(f"{SEARCH}?q={secret[-4:].lower()}")
    keys = [link for link in page.links if link.startswith(f"{AT_ACME}/settings/api-keys/")]
    assert (keys[0], len(keys)) == (f"{AT_ACME}/settings/api-keys/{wanted}", 5)


async def test_member_finds_nothing_that_they_may_not_see(
    dashboard: Dashboard, owner: Person
) -> None:
    pages = await furnish(dashboard, owner)
    mia = await dashboard.sign_in(MIA)
    assert await found(mia, pages, "store") == ["project", "event"]


async def test_other_tenants_are_not_searched(dashboard: Dashboard, owner: Person) -> None:
    pages = await furnish(dashboard, owner)
    berta = await dashboard.sign_in(BERTA)
    assert (await berta.open(f"{SEARCH}?q=store")).status == 404
    answer = await berta.open("/orgs/beta/search?q=store")
    assert "Nothing matches" in answer.text
    assert not set(pages.values()) & set(answer.links)


async def test_more_matches_are_a_click_away(dashboard: Dashboard, owner: Person) -> None:
    for number in range(6):
        await dashboard.deliver(failed(event_id=f"evt_{number}"))
    page = await owner.open(f"{SEARCH}?q=evt_")
    assert page.html.count(f"{AT_ACME}/events/evt_") == 5
    [more] = [link for text, link in page.anchors if text == "More in Billing history"]
    assert (await owner.open(more)).html.count("data-event=") == 6


async def test_search_without_a_text_asks_for_one(owner: Person) -> None:
    for address in (SEARCH, f"{SEARCH}?q=%00%20"):
        page = await owner.open(address)
        assert page.status == 200
        assert "Nothing matches" not in page.text


async def test_markup_in_the_text_is_text(owner: Person) -> None:
    page = await owner.open(f"{SEARCH}?q={MARKUP}")
    assert "Nothing matches" in page.text
    assert "<img" not in page.html


async def test_box_of_every_page_leads_to_the_search(dashboard: Dashboard) -> None:
    adam = await dashboard.sign_in(ADAM)
    for path in ("/", "/events", "/settings/api-keys"):
        page = await adam.open(AT_ACME + path)
        assert f'role="search" action="{SEARCH}"' in page.html
