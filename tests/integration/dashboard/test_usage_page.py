"""The usage page: requests by time, key and outcome, and as a file."""

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from tests.integration.dashboard.keys import add_key
from tests.integration.dashboard.signing_in import Browser
from tests.integration.dashboard.test_api_key_usage import ADD, count_requests
from tests.support.cases import cases
from tests.support.dashboard import ACME, AT_ACME, BETA, MIA, OLIVIA, Dashboard, Person
from tests.support.dashboard_page import Page

USAGE: Final = f"{AT_ACME}/usage"
ADD_HOUR: Final = """
INSERT INTO usage_hours (org_id, hour, key_id, outcome, number)
VALUES (%s, date_trunc('hour', now(), 'UTC') - %s * interval '1 hour', %s, 'accepted', %s)
"""


def day(days_ago: int) -> str:
    """The date of a day in UTC."""
    return (datetime.now(UTC) - timedelta(days=days_ago)).date().isoformat()


def shown_day(days_ago: int) -> str:
    """The same as a chart shows it."""
    at = datetime.now(UTC) - timedelta(days=days_ago)
    year = "" if at.year == datetime.now(UTC).year else f" {at.year}"
    return f"{at.day} {at:%b}{year}"


YESTERDAY: Final = f"since={day(1)}&until={day(1)}"
"""The requests of tests themselves, which are counted too, are of today."""


def numbers_in(page: Page) -> list[str]:
    """The sums of the bars, oldest first."""
    return re.findall(r"<title>[^<]*: ([\d,]+)</title>", page.html)


async def rows_of(person: Person, query: str) -> list[list[str]]:
    """The lines of an export."""
    answer = await person.get(f"{USAGE}/export?{query}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.reader(io.StringIO(answer.text)))


@pytest.fixture
async def olivia(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in(OLIVIA)


async def test_it_shows_the_requests_of_each_day(dashboard: Dashboard, olivia: Person) -> None:
    await count_requests(dashboard, "key_1", 1200, days_ago=1)
    await count_requests(dashboard, "key_2", 34, outcome="forbidden", days_ago=1)
    await count_requests(dashboard, "key_2", 56, days_ago=6)
    await count_requests(dashboard, "key_1", 9000, days_ago=7)
    week = await olivia.open(f"{USAGE}?range=7d")
    assert (numbers_in(week)[0], numbers_in(week)[5]) == ("56", "1,234")
    assert len(numbers_in(week)) == 7
    assert "Days are in UTC. Complete until" in week.text
    month = await olivia.open(USAGE)
    assert numbers_in(month)[22] == "9,000"
    assert len(numbers_in(month)) == 30


async def test_it_shows_the_last_24_hours_by_hour(dashboard: Dashboard, olivia: Person) -> None:
    for hours_ago in (22, 23, 24):
        await dashboard.execute(ADD_HOUR, (ACME, hours_ago, "key_1", hours_ago))
    page = await olivia.open(f"{USAGE}?range=24h")
    assert numbers_in(page)[:2] == ["23", "22"]
    assert len(numbers_in(page)) == 24
    assert "Hours are in UTC." in page.text


async def test_it_tells_outcomes_apart(dashboard: Dashboard, olivia: Person) -> None:
    await count_requests(dashboard, "key_1", 3, days_ago=1)
    await count_requests(dashboard, "key_1", 4, outcome="quota_exceeded", days_ago=1)
    page = await olivia.open(f"{USAGE}?by=outcome")
    assert "Day Accepted Quota exceeded" in page.text
    assert f"{shown_day(1)} 3 4 " in page.text


async def test_it_names_the_five_busiest_keys_and_adds_up_the_others(
    dashboard: Dashboard, olivia: Person
) -> None:
    named = [(await add_key(dashboard, f"Key {number:02}"))[0] for number in range(3, 8)]
    keys = ["key_unknown_1", "key_unknown_2", *named]
    for number, key_id in enumerate(keys, 1):
        await count_requests(dashboard, key_id, number * 10, days_ago=1)
    await count_requests(dashboard, "", 1, days_ago=1)
    page = await olivia.open(f"{USAGE}?by=key&{YESTERDAY}")
    head = page.text.partition("Show as a table")[2]
    assert "Day Key 07 Key 06 Key 05 Key 04 Key 03 Users Other keys" in head
    assert f"281 requests from {day(1)} through {day(1)}" in page.text
    assert f"{shown_day(1)} 70 60 50 40 30 1 30 " in head


async def test_keys_of_one_name_have_the_end_of_their_id(
    dashboard: Dashboard, olivia: Person
) -> None:
    keys = [(await add_key(dashboard, "Storefront"))[0] for _ in range(2)]
    for key_id in keys:
        await count_requests(dashboard, key_id, 1)
    page = await olivia.open(f"{USAGE}?by=key")
    for key_id in keys:
        assert f"Storefront (…{key_id[-6:]})" in page.text


async def test_it_shows_chosen_days(dashboard: Dashboard, olivia: Person) -> None:
    for days_ago in (9, 10, 12, 13):
        await count_requests(dashboard, "key_1", days_ago, days_ago=days_ago)
    page = await olivia.open(f"{USAGE}?since={day(12)}&until={day(10)}")
    assert f"22 requests from {day(12)} through {day(10)}" in page.text
    until_now = await olivia.open(f"{USAGE}?since={day(10)}&until=")
    assert f"19 requests since {day(10)}" in until_now.text


@cases(
    ("since", "until", "field", "fault"),
    [
        ("tomorrow", "", "since", "Enter a day, such as 2027-01-31."),
        ("", "0", "until", "Enter a day, such as 2027-01-31."),
        ("", day(1), "since", "Enter the first day, too."),
        (day(-1), "", "since", "Enter today or an earlier day."),
        (day(1), day(2), "until", "Enter the first day or a later one."),
        (day(400), day(390), "since", "Counts are kept for 400 days. Enter"),
        (day(92), day(0), "until", "The chart shows at most 92 days."),
    ],
)
async def test_a_wrong_day_is_explained_beside_its_field(
    dashboard: Dashboard, since: str, until: str, field: str, fault: str
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(f"{USAGE}?since={since}&until={until}")
    assert page.status == 422
    assert fault in page.html.partition(f'id="{field}-fault">')[2].partition("</p>")[0]
    assert page.focused == [field]


async def test_without_requests_it_says_what_would_be_here(olivia: Person) -> None:
    page = await olivia.open(f"{USAGE}?{YESTERDAY}")
    assert f"No requests from {day(1)}" in page.text
    assert "<figure" not in page.html


async def test_a_file_has_every_key_also_of_a_longer_time(
    dashboard: Dashboard, olivia: Person
) -> None:
    key_id, _ = await add_key(dashboard, "=SUM(A1)")
    await count_requests(dashboard, key_id, 2, days_ago=1)
    await count_requests(dashboard, "", 3, days_ago=200)
    rows = await rows_of(olivia, f"by=key&since={day(399)}&until={day(1)}")
    assert rows == [
        ["time", "keyId", "keyName", "requests"],
        [f"{day(200)}T00:00:00Z", "", "All users", "3"],
        [f"{day(1)}T00:00:00Z", key_id, "'=SUM(A1)", "2"],
    ]


async def test_a_file_has_what_the_page_shows(dashboard: Dashboard, olivia: Person) -> None:
    await count_requests(dashboard, "key_1", 3, days_ago=1)
    await count_requests(dashboard, "key_2", 4, outcome="forbidden", days_ago=1)
    await count_requests(dashboard, "key_2", 5, days_ago=2)
    time = f"{day(1)}T00:00:00Z"
    assert await rows_of(olivia, YESTERDAY) == [["time", "requests"], [time, "7"]]
    assert await rows_of(olivia, f"{YESTERDAY}&by=outcome") == [
        ["time", "outcome", "requests"],
        [time, "accepted", "3"],
        [time, "forbidden", "4"],
    ]
    page = await olivia.open(f"{USAGE}?range=7d&by=outcome")
    assert f"{USAGE}/export?range=7d&by=outcome" in page.links


async def test_a_wrong_day_of_a_file_is_explained_on_the_page(olivia: Person) -> None:
    answer = await olivia.get(f"{USAGE}/export?since=never&by=key")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{USAGE}?since=never&")


async def test_the_page_is_in_the_menu_of_those_who_may_see_usage(dashboard: Dashboard) -> None:
    olivia, mia = await dashboard.sign_in(OLIVIA), await dashboard.sign_in(MIA)
    assert USAGE in (await olivia.open(AT_ACME)).links
    assert USAGE not in (await mia.open(AT_ACME)).links
    assert (await mia.open(USAGE)).status == 403


async def test_another_tenants_requests_are_not_shown(dashboard: Dashboard, olivia: Person) -> None:
    await dashboard.execute(ADD, (BETA, 1, "key_1", "accepted", 5))
    for by in ("all", "key", "outcome"):
        assert "No requests" in (await olivia.open(f"{USAGE}?{YESTERDAY}&by={by}")).text
    assert await rows_of(olivia, YESTERDAY) == [["time", "requests"]]


async def test_a_token_without_the_scope_sees_no_usage(browser: Browser) -> None:
    await browser.start()
    browser.give(access={"scope": "api-keys:read"})
    await browser.open_callback()
    assert Page(await browser.client.get(USAGE)).status == 403
