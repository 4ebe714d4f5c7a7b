"""What the billing page shows of the features of the plan catalog."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.dashboard import ACME, AT_ACME, Dashboard, Person, dashboard_of_file
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
    assert list(features) == ["sso", "seats", "exports"]
    assert (features["sso"], features["seats"]) == (sso, seats)
    assert re.fullmatch(exports, features["exports"]), features["exports"]


async def test_metered_feature_has_a_bar(dashboard: Dashboard, owner: Person) -> None:
    await use_exports(dashboard, 9)
    page = (await owner.get(BILLING)).text
    assert 'max="10" low="8.0" high="9.5" optimum="0" value="9" aria-label="exports used"' in page
