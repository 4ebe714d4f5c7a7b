"""The requests of API keys on their pages."""

from typing import Final

from tests.integration.dashboard.keys import KEYS, add_key
from tests.integration.dashboard.signing_in import Browser
from tests.support.dashboard import ACME, OLIVIA, Dashboard, Person
from tests.support.dashboard_page import Page

ADD: Final = """
INSERT INTO usage_days (org_id, day, key_id, outcome, number)
VALUES (%s, date_trunc('day', now(), 'UTC') - %s * interval '1 day', %s, %s, %s)
"""


async def count_requests(
    dashboard: Dashboard, key_id: str, number: int, *, outcome: str = "accepted", days_ago: int = 0
) -> None:
    await dashboard.execute(ADD, (ACME, days_ago, key_id, outcome, number))


async def three_keys(dashboard: Dashboard, olivia: Person) -> dict[str, str]:
    """Keys with few, many and no requests in 30 days, the newest last; their ids by name."""
    found = {name: (await add_key(dashboard, name))[0] for name in ("Many", "Few", "None")}
    await count_requests(dashboard, found["Many"], 1200)
    await count_requests(dashboard, found["Many"], 34, outcome="rate_limited", days_ago=29)
    await count_requests(dashboard, found["Few"], 7, days_ago=3)
    await count_requests(dashboard, found["None"], 9000, days_ago=30)
    return found


async def test_list_shows_the_requests_of_each_key_in_30_days(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    await three_keys(dashboard, olivia)
    page = await olivia.open(KEYS)
    assert 'aria-label="1,234 requests in 30 days"' in page.html
    assert 'aria-label="7 requests in 30 days"' in page.html
    assert "9,000" not in page.text
    bars = page.html.partition('aria-label="7 requests')[2].partition("</svg>")[0]
    assert [paths.count("M") for paths in bars.split('class="none"')] == [1, 29]


async def test_busiest_keys_come_first_on_request(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    await three_keys(dashboard, olivia)
    newest = (await olivia.open(KEYS)).text
    assert newest.index("Few") < newest.index("Many")
    busiest = (await olivia.open(f"{KEYS}?order=requests")).text
    assert busiest.index("Many") < busiest.index("Few")
    assert "None" not in busiest
    found = (await olivia.open(f"{KEYS}?order=requests&search=few")).text
    assert ("Few" in found, "Many" in found) == (True, False)
    assert "All 1 Active 1" in found


async def test_page_of_a_key_shows_its_requests_by_day_and_outcome(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    keys = await three_keys(dashboard, olivia)
    page = await olivia.open(f"{KEYS}/{keys['Many']}")
    assert "1,234 requests in 30 days Accepted Rate limited" in page.text
    assert "Forbidden" not in page.text
    assert "Day Accepted Rate limited" in page.text
    assert "Complete until" in page.text
    unused = await olivia.open(f"{KEYS}/{keys['None']}")
    assert "No requests in 30 days." in unused.text


async def test_pages_without_the_scope_for_usage_show_none(browser: Browser) -> None:
    await browser.start()
    browser.give(access={"scope": "api-keys:read api-keys:write"})
    await browser.open_callback()
    page = Page(await browser.client.get(KEYS))
    assert page.status == 200
    assert "Most requests" not in page.text
    assert Page(await browser.client.get(f"{KEYS}?order=requests")).status == 200


async def test_page_of_a_key_shows_its_latest_changes(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard, "Name 0")
    for number in range(1, 12):
        await dashboard.call("PATCH", f"/api-keys/{key_id}", {"name": f"Name {number}"})
    page = await olivia.open(f"{KEYS}/{key_id}")
    assert page.text.count("changed the key") == 10
    assert "created the key" not in page.text
    assert "Show all changes" in page.text
