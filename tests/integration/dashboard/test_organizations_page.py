"""The menu of organizations, and the page that lists all."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.dashboard import (
    ACME,
    AT_ACME,
    AT_BETA,
    BERTA,
    MIA,
    OLIVIA,
    Dashboard,
    Person,
    running_dashboard,
)
from tests.support.dashboard_page import Page
from tests.support.postgres import PostgresServer

ALL: Final = "/account"
MANY: Final = 1000


@pytest.fixture(scope="module")
async def many_organizations(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    """Olivia and Mia belong to acme, and Olivia to a thousand more tenants."""
    with postgres.database() as conninfo:
        async with running_dashboard(conninfo, people) as dashboard:
            await dashboard.join_many(OLIVIA, MANY)
            yield dashboard


@pytest.fixture(scope="module")
async def olivia(many_organizations: Dashboard) -> Person:
    return await many_organizations.sign_in(OLIVIA)


def offered(page: Page) -> list[str]:
    """Return the tenants in the menu."""
    return _linked(
        page.html.partition('<details class="menu switcher">')[2].partition("</details>")[0]
    )


def listed(page: Page) -> list[str]:
    """Return the tenants in the page's list."""
    return _linked(page.html.partition("<main")[2])


def _linked(part: str) -> list[str]:
    return [after.partition("/")[0] for after in part.split('href="/orgs/')[1:]]


async def test_menu_lists_twenty_of_a_thousand_organizations(many_organizations: Dashboard) -> None:
    page = await (await many_organizations.sign_in(OLIVIA)).open(AT_ACME)
    assert offered(page) == [ACME, *(f"many-{number}" for number in range(1, 20))]
    assert f"{ALL}#organizations" in page.links
    assert "All organizations 1,001" in page.text


@pytest.mark.parametrize(
    "path", ["/orgs/many-777/", "/orgs/many-777/settings/general", "/orgs/many-777/projects"]
)
async def test_menu_contains_the_current_tenant(olivia: Person, path: str) -> None:
    page = await olivia.open(path)
    assert page.status == 200
    assert len(page.answer.content) < 50_000
    assert "many-777" in offered(page)
    assert "Organization: Many 00777" in page.text


async def test_start_page_redirects_to_the_last_visited_tenant(
    many_organizations: Dashboard,
) -> None:
    olivia = await many_organizations.sign_in(OLIVIA)
    await olivia.open("/orgs/many-500/")
    rail, _, _ = (await olivia.open(ALL)).html.partition("<main")
    assert "many-500" in _linked(rail)
    assert (await olivia.open("/")).path == "/orgs/many-500/"


async def test_start_page_never_redirects_to_a_suspended_tenant_of_many(
    dashboard: Dashboard,
) -> None:
    await dashboard.join_many(BERTA, 30)
    await dashboard.execute(
        "UPDATE tenants SET suspended_at = now(), suspension = '' WHERE id ~ '^many-' AND id <> 'many-30'"
    )
    await dashboard.operate("DELETE", "/tenants/beta")
    assert (await (await dashboard.sign_in(BERTA)).open("/")).path == "/orgs/many-30/"


async def test_menu_lists_a_few_tenants_by_name(dashboard: Dashboard) -> None:
    await dashboard.call("POST", "/members", {"userId": "olivia", "role": "member"}, user=BERTA)
    await dashboard.accept_invitations()
    await dashboard.join_many(OLIVIA, 3)
    olivia = await dashboard.sign_in(OLIVIA)
    for path in (AT_ACME, AT_BETA):
        page = await olivia.open(path)
        assert offered(page) == ["acme", "beta", "many-1", "many-2", "many-3"]
        assert f"{ALL}#organizations" not in page.links


async def test_single_tenant_has_no_menu(many_organizations: Dashboard) -> None:
    assert offered(await (await many_organizations.sign_in(MIA)).open(AT_ACME)) == []


async def test_page_lists_all_tenants_by_name(olivia: Person) -> None:
    page, seen = await olivia.open(ALL), []
    while True:
        seen += listed(page)
        assert len(page.answer.content) < 50_000
        following = [link for link in page.links if "after=" in link]
        if not following:
            break
        page = await olivia.open(following[0])
    assert seen == [ACME, *(f"many-{number}" for number in range(1, MANY + 1))]


async def test_tenants_are_found_by_name_and_id(olivia: Person) -> None:
    by_name = await olivia.open(f"{ALL}?name=ANY+0099")
    assert listed(by_name) == [f"many-{number}" for number in range(990, 1000)]
    assert "/orgs/many-123/" in (await olivia.open(f"{ALL}?name=many-123")).links
    nothing = await olivia.open(f"{ALL}?name=%25")
    assert "No organization matches. Show all" in nothing.text


async def test_next_page_keeps_the_filter(olivia: Person) -> None:
    page = await olivia.open(f"{ALL}?name=many+000")
    [following] = [link for link in page.links if "after=" in link]
    page = await olivia.open(following)
    assert {"/orgs/many-51/", "/orgs/many-99/"} <= set(page.links)
    assert not [link for link in page.links if "after=" in link]


@pytest.mark.parametrize(
    "query", ["after=acme", "after=beta", "after=none", "name=beta", "name=Beta", "name=%00"]
)
async def test_only_the_users_own_tenants_are_listed(
    many_organizations: Dashboard, query: str
) -> None:
    mia = await many_organizations.sign_in(MIA)
    page = await mia.open(f"{ALL}?{query}")
    assert page.status == 200
    assert "/orgs/beta/" not in page.links
    assert "many-" not in page.html


async def test_tenant_of_a_removed_member_is_not_listed(dashboard: Dashboard) -> None:
    await dashboard.join_many(MIA, 2)
    seat = await dashboard.add_member("mia")
    mia = await dashboard.sign_in(MIA)
    assert "acme" in offered(await mia.open("/orgs/many-1/"))
    await (await dashboard.sign_in(OLIVIA)).force(f"{seat}/remove")
    assert offered(await mia.open("/orgs/many-1/")) == ["many-1", "many-2"]
    assert f"{AT_ACME}/" not in (await mia.open(ALL)).links
    assert (await mia.open(AT_ACME)).status == 404


async def test_markup_in_the_filter_is_escaped(olivia: Person) -> None:
    page = await olivia.open(f'{ALL}?name="><b>x')
    assert "b" not in page.tags
