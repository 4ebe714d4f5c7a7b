"""What the billing page shows of the features of the plan catalog."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.dashboard import ACME, AT_ACME, MIA, Dashboard, Person, dashboard_of_file
from tests.support.postgres import PostgresServer

BILLING: Final = f"{AT_ACME}/billing"
CATALOG: Final = """
[[features]]
id = "sso"
type = "boolean"
[[features]]
id = "seats"
type = "limit"
[[features]]
id = "exports"
name = "File exports"
type = "metered"
unit = "files"
[[plans]]
id = "free"
[plans.features]
exports = 10
[[plans]]
id = "pro"
[plans.features]
sso = true
seats = 5
exports = 1000
[[plans]]
id = "enterprise"
[plans.features]
seats = true
exports = true
"""


@pytest.fixture(scope="module")
async def shared_dashboard(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    async with dashboard_of_file(postgres, people, CATALOG) as dashboard:
        yield dashboard


@pytest.fixture
async def owner(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in()


async def change_plan(dashboard: Dashboard, plan: str) -> None:
    query: Any = "UPDATE tenants SET plan = %s, subscription_status = 'active' WHERE id = %s"
    await dashboard.execute(query, (plan, ACME))


async def use_exports(dashboard: Dashboard, used: int) -> None:
    """Set the counter of this month."""
    query: Any = (
        "INSERT INTO usage_counters (org_id, mode, feature, period_start, period_end, used)"
        " SELECT %s, 'live', 'exports', extract(epoch FROM month),"
        "        extract(epoch FROM month + interval '1 month'), %s"
        "   FROM (SELECT date_trunc('month', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC') AS m (month)"
    )
    await dashboard.execute(query, (ACME, used))


def features_on(page: str) -> dict[str, str]:
    """The text of each feature on the page, without its bar."""
    section = page.partition('id="features"')[2].partition("</section>")[0]
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", section, re.DOTALL)
    return {
        re.sub("<.*?>", "", name): " ".join(re.sub("<.*?>", "", text).split())
        for name, text in found
    }


@pytest.mark.parametrize(
    ("plan", "sso", "seats", "exports"),
    [
        ("free", "Not included", "Not included", r"8 of 10 files Resets on 1 \w{3} \d{4}"),
        ("pro", "Included", "Up to 5", r"8 of 1,000 files Resets on 1 \w{3} \d{4}"),
        ("enterprise", "Not included", "No limit", r"8 files \(no limit\)"),
    ],
)
async def test_billing_page_shows_what_the_tenant_has_of_each_feature(
    dashboard: Dashboard, owner: Person, plan: str, sso: str, seats: str, exports: str
) -> None:
    await change_plan(dashboard, plan)
    await use_exports(dashboard, 8)
    features = features_on((await owner.get(BILLING)).text)
    assert list(features) == ["sso", "seats", "File exports"]
    assert (features["sso"], features["seats"]) == (sso, seats)
    assert re.fullmatch(exports, features["File exports"]), features["File exports"]


@pytest.mark.parametrize("path", ["/billing", "/usage"])
async def test_metered_feature_has_a_bar_with_its_name(
    dashboard: Dashboard, owner: Person, path: str
) -> None:
    await use_exports(dashboard, 9)
    page = (await owner.get(AT_ACME + path)).text
    assert (
        'max="10" low="8.0" high="9.5" optimum="0" value="9" aria-label="File exports used"' in page
    )


async def test_usage_page_says_what_is_left_of_a_quota(dashboard: Dashboard, owner: Person) -> None:
    await use_exports(dashboard, 3)
    page = await owner.open(f"{AT_ACME}/usage")
    assert re.search(
        r"File exports 3 of 10 files used 7 left\..* Starts again 1 \w{3} \d{4}, 00:00", page.text
    )
    await change_plan(dashboard, "enterprise")
    unlimited = await owner.open(f"{AT_ACME}/usage")
    assert "File exports 3 files used (no limit)" in unlimited.text


@pytest.mark.parametrize(
    ("used", "title"),
    [(7, None), (8, "A quota is nearly used up."), (10, "A quota is used up.")],
)
async def test_overview_and_usage_warn_of_a_quota_that_is_nearly_used_up(
    dashboard: Dashboard, owner: Person, used: int, title: str | None
) -> None:
    await use_exports(dashboard, used)
    for path in ("/", "/usage"):
        page = await owner.open(AT_ACME + path)
        assert ("A quota is" in page.text) == (title is not None)
        assert title is None or f"{title} File exports: {used} of 10 files used" in page.text


async def test_who_may_not_see_usage_gets_no_warning(dashboard: Dashboard) -> None:
    await use_exports(dashboard, 10)
    mia = await dashboard.sign_in(MIA)
    assert "A quota is" not in (await mia.open(AT_ACME)).text
