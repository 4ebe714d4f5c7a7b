"""Links to the demo's other pages, only in the demo."""

from pathlib import Path
from typing import Final

from tests.support.dashboard import AT_ACME, MIA, running_dashboard

PAGES: Final = "Mail inbox=http://127.0.0.1:3002/inbox;Payment provider=http://127.0.0.1:3004/"


async def test_menu_links_the_demo_pages(conninfo: str, people: Path) -> None:
    async with running_dashboard(
        conninfo, people, TENANTRY_DEMO="true", TENANTRY_DEMO_PAGES=PAGES
    ) as dashboard:
        page = await (await dashboard.sign_in(MIA)).open(AT_ACME)
    assert "Demo Mail inbox (opens in a new tab) Payment provider (opens in a new tab)" in page.text
    assert {"http://127.0.0.1:3002/inbox", "http://127.0.0.1:3004/"} <= set(page.links)


async def test_menu_has_no_demo_pages_outside_the_demo(conninfo: str, people: Path) -> None:
    async with running_dashboard(conninfo, people, TENANTRY_DEMO_PAGES=PAGES) as dashboard:
        page = await (await dashboard.sign_in(MIA)).open(AT_ACME)
    assert "Demo" not in page.text
    assert "3002" not in page.html
