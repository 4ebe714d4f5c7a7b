"""The billing page with SUBSCRIPTIONS=each: unpaid invoices of any subscription, and which one
counts.
"""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import events
from tests.support.dashboard import ADAM, AT_ACME, MIA, Dashboard, Person, dashboard_of_file
from tests.support.postgres import PostgresServer

BILLING: Final = f"{AT_ACME}/billing"
PAY: Final = "https://invoice.stripe.com/i/acct_1/"
DAY: Final = 86_400
CATALOG: Final = """
[[plans]]
id = "free"
name = "Free"
[[plans]]
id = "pro"
name = "Pro"
stripe_price_id = "price_pro"
[[plans]]
id = "business"
name = "Business"
stripe_price_id = "price_business"
[[addons]]
id = "more"
name = "Extra projects"
stripe_price_id = "price_more"
[addons.limits]
projects = 10
"""


@pytest.fixture(scope="module")
async def shared_dashboard(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    async with dashboard_of_file(postgres, people, CATALOG, SUBSCRIPTIONS="each") as dashboard:
        yield dashboard


@pytest.fixture
async def owner(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in()


async def subscribe(
    dashboard: Dashboard, subscription_id: str, price: str, **fields: object
) -> None:
    """Report an active subscription, a minute ago."""
    at = int(time.time()) - 60
    named: dict[str, Any] = {
        "subscription_id": subscription_id,
        "price": price,
        "period_end": at + 30 * DAY,
        **fields,
    }
    await dashboard.deliver(events.updated(created=at, **named))


async def fail(
    dashboard: Dashboard, subscription_id: str, invoice_id: str, amount: int, **fields: object
) -> None:
    """Report a failed payment, of which the provider makes another attempt in three days."""
    now = int(time.time())
    named: dict[str, Any] = {
        "next_attempt": now + 3 * DAY,
        "created": now - 30,
        "url": f"{PAY}{invoice_id}",
        **fields,
    }
    await dashboard.deliver(
        events.failed(
            subscription_id=subscription_id, invoice_id=invoice_id, amount=amount, **named
        )
    )


def section(page: str, fragment: str) -> str:
    """Return the HTML of the section whose heading has this id."""
    _, _, rest = page.partition(f'id="{fragment}"')
    return rest.partition("</section>")[0]


async def test_debt_of_a_subscription_that_does_not_count_comes_first(
    dashboard: Dashboard, owner: Person
) -> None:
    await subscribe(dashboard, "sub_main", "price_business")
    await subscribe(dashboard, "sub_side", "price_pro")
    await fail(dashboard, "sub_side", "in_side", 1999)
    page = await owner.open(BILLING)
    assert "Active" in section(page.html, "plan")
    [attempt] = [time.strftime("%b %Y", time.gmtime(time.time() + 3 * DAY))]
    owed = section(page.html, "owed")
    assert page.html.index('id="owed"') < page.html.index('id="plan"')
    assert all(
        words in owed for words in ("19.99 EUR", "sub_side", "The provider tries again on", attempt)
    )
    assert f'href="{PAY}in_side"' in owed
    overview = await owner.open(f"{AT_ACME}/")
    assert "19.99 EUR, failed on" in overview.text
    assert f"{PAY}in_side" in overview.links


async def test_every_unpaid_invoice_is_shown_until_it_is_paid(
    dashboard: Dashboard, owner: Person
) -> None:
    await subscribe(dashboard, "sub_main", "price_business")
    await subscribe(dashboard, "sub_side", "price_pro")
    await fail(dashboard, "sub_main", "in_main", 9900)
    await fail(dashboard, "sub_side", "in_side", 1999)
    await fail(dashboard, "sub_side", "in_later", 2999)
    assert "3 payments failed" in (await owner.open(BILLING)).text
    for invoice_id, subscription_id in (("in_later", "sub_side"), ("in_side", "sub_side")):
        now = int(time.time())
        await dashboard.deliver(
            events.succeeded(subscription_id=subscription_id, invoice_id=invoice_id, created=now)
        )
    page = await owner.open(BILLING)
    assert ("99.00 EUR" in page.text, "19.99 EUR" in page.text, "29.99 EUR" in page.text) == (
        True,
        False,
        False,
    )


async def test_unpaid_subscription_has_no_next_attempt(dashboard: Dashboard, owner: Person) -> None:
    await subscribe(dashboard, "sub_main", "price_business")
    await fail(dashboard, "sub_main", "in_main", 9900)
    unpaid = events.updated(
        subscription_id="sub_main", status="unpaid", created=int(time.time()) - 10
    )
    await dashboard.deliver(unpaid)
    owed = section((await owner.open(BILLING)).html, "owed")
    assert "99.00 EUR" in owed
    assert "The provider does not try again by itself." in owed
    assert "tries again on" not in owed


async def test_past_attempt_is_not_announced(dashboard: Dashboard, owner: Person) -> None:
    await subscribe(dashboard, "sub_main", "price_business")
    await fail(dashboard, "sub_main", "in_main", 9900, next_attempt=int(time.time()) - 5)
    assert "tries again" not in (await owner.open(BILLING)).text


async def test_debt_without_a_known_invoice_is_shown(dashboard: Dashboard, owner: Person) -> None:
    await subscribe(dashboard, "sub_main", "price_business")
    await subscribe(dashboard, "sub_side", "price_pro", status="past_due")
    owed = section((await owner.open(BILLING)).html, "owed")
    assert "The last invoice could not be collected" in owed
    assert "sub_side" in owed


async def test_only_who_may_pay_gets_the_link(dashboard: Dashboard) -> None:
    await subscribe(dashboard, "sub_main", "price_business")
    await fail(dashboard, "sub_main", "in_main", 9900)
    for user, links in ((ADAM, 1), (MIA, 0)):
        person = await dashboard.sign_in(user)
        for path in (BILLING, f"{AT_ACME}/"):
            page = await person.open(path)
            assert "99.00 EUR" in page.text, (user, path)
            assert page.html.count(PAY) == links, (user, path)


async def test_table_marks_the_subscription_that_decides_the_plan(
    dashboard: Dashboard, owner: Person
) -> None:
    await subscribe(dashboard, "sub_side", "price_pro")
    assert "sub_side" not in (await owner.open(BILLING)).text
    await subscribe(dashboard, "sub_main", "price_business")
    table = section((await owner.open(BILLING)).html, "subscriptions")
    first, second = table.split("<tr>")[2:]
    mark = ">decides your plan<"
    assert ("sub_main" in first, mark in first, "Business" in first) == (True, True, True)
    assert ("sub_side" in second, mark in second, "Pro" in second) == (True, False, True)


async def test_price_that_the_catalog_lacks_is_not_free(
    dashboard: Dashboard, owner: Person
) -> None:
    await subscribe(dashboard, "sub_odd", "price_custom")
    page = await owner.open(BILLING)
    assert page.heading("plan") == "Subscription without a plan of the catalog"
    assert "Price unknown price price_custom" in page.text
    assert "Free your plan" not in page.text
    await subscribe(dashboard, "sub_more", "price_more")
    table = section((await owner.open(BILLING)).html, "subscriptions")
    assert "Free" not in table
    assert "unknown price <code><bdi>price_custom</bdi></code>" in table
    assert "add-on <bdi>Extra projects</bdi>" in table


async def test_ended_subscription_has_no_plan(dashboard: Dashboard, owner: Person) -> None:
    await subscribe(dashboard, "sub_main", "price_business")
    await subscribe(dashboard, "sub_over", "price_pro")
    await dashboard.deliver(
        events.deleted(subscription_id="sub_over", created=int(time.time()) - 5)
    )
    table = section((await owner.open(BILLING)).html, "subscriptions")
    assert "Canceled" in table
    assert "Free" not in table


async def test_history_does_not_take_another_subscription_for_one_that_ends_no_more(
    dashboard: Dashboard, owner: Person
) -> None:
    await subscribe(dashboard, "sub_ends", "price_pro", cancel=True)
    later = int(time.time()) + 60 * DAY
    newer = {"subscription_created": int(time.time()) - 60, "period_end": later}
    await subscribe(dashboard, "sub_goes_on", "price_pro", **newer)
    assert "no longer end" not in (await owner.open(f"{AT_ACME}/events?all=yes")).text
    page = await owner.open(BILLING)
    assert "It renews automatically." in section(page.html, "plan")
