"""The operator's list of customers: search, filters and pages."""

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from tenantry.db.pagination import MAX_SCANNED_RECORDS
from tests.integration.dashboard.keys import add_key
from tests.support.cases import cases
from tests.support.dashboard import (
    ACME,
    AT_ACME,
    AT_BETA,
    BERTA,
    BETA,
    CUSTOMER,
    MIA,
    NOA,
    OLGA,
    OLIVIA,
    Dashboard,
)
from tests.support.dashboard_page import Page
from tests.support.events import updated

LIST: Final = "/operator"
NAMES: Final = (
    "Evil <b>bold</b>",
    "<script>alert(1)</script>",
    "\u202ereversed",
    '"><img src=x onerror=y>',
    "\u05d0\u05d1\u05d2",
)


def customers(page: Page) -> list[str]:
    """Return the ids of the customers that a list shows, in its order."""
    return [
        href.removeprefix("/operator/orgs/").rstrip("/")
        for href in page.links
        if href.startswith("/operator/orgs/") and href.count("/") == 4
    ]


async def found(dashboard: Dashboard, query: str) -> list[str]:
    olga = await dashboard.sign_in(OLGA)
    page = await olga.open(f"{LIST}?{query}")
    assert page.status == 200
    return customers(page)


async def test_list_has_plan_status_use_and_last_request(dashboard: Dashboard) -> None:
    await dashboard.deliver(updated())
    now = datetime.now(UTC)
    await dashboard.execute(
        "INSERT INTO usage_days (org_id, key_id, day, outcome, number) VALUES "
        "('acme', 'key_1', %(today)s, 'accepted', 1200), ('acme', '', %(today)s, 'forbidden', 34), "
        "('acme', 'key_1', %(long_ago)s, 'accepted', 9999)",
        {
            "today": now.replace(hour=0, minute=0, second=0, microsecond=0),
            "long_ago": now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=7),
        },
    )
    await dashboard.execute(
        "INSERT INTO usage_hours (org_id, key_id, hour, outcome, number) VALUES "
        "('acme', 'key_1', %(hour)s, 'accepted', 1), ('acme', '', %(before)s, 'accepted', 1)",
        {"hour": now - timedelta(hours=5), "before": now - timedelta(hours=9)},
    )
    page = await (await dashboard.sign_in(OLGA)).open(LIST)
    assert customers(page) == [BETA, ACME]
    row = page.text.partition("Acme acme")[2]
    assert row.startswith(" Pro Active 1,234 5 hours ago")
    assert "Beta beta Free No subscription 0 none" in page.text


async def test_request_of_this_hour_says_so(dashboard: Dashboard) -> None:
    await dashboard.execute(
        "INSERT INTO usage_hours (org_id, key_id, hour, outcome, number) "
        "VALUES ('acme', '', now() + interval '1 hour', 'accepted', 1)"
    )
    page = await (await dashboard.sign_in(OLGA)).open(LIST)
    assert "Acme acme Free No subscription 0 this hour" in page.text


async def test_count_of_a_tenant_with_many_keys_is_bounded(dashboard: Dashboard) -> None:
    await dashboard.execute(
        "INSERT INTO usage_days (org_id, key_id, day, outcome, number) "
        "SELECT 'acme', 'key_' || n, date_trunc('day', now(), 'UTC'), 'accepted', 2 "
        "FROM generate_series(1, 3000) AS n"
    )
    page = await (await dashboard.sign_in(OLGA)).open(LIST)
    assert "Acme acme Free No subscription more than 4,002 none" in page.text


async def test_effective_plan_is_named_beside_the_one_that_it_replaces(
    dashboard: Dashboard,
) -> None:
    await dashboard.deliver(updated(status="unpaid"))
    page = await (await dashboard.sign_in(OLGA)).open(LIST)
    assert "Acme acme Free instead of Pro Unpaid" in page.text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (ACME, "Id"),
        ("cme", "Name Free"),
        ("OLIVIA@acme.example", "Owner's address olivia@acme.example"),
        ("a@acme.ex", "Owner's address olivia@acme.example"),
        (CUSTOMER, "Provider's customer cus_acme"),
        ("S_ACM", "Provider's customer cus_acme"),
        ("mia", "User's id mia"),
        ("mia@acme.example", "Member's address mia@acme.example"),
    ],
)
async def test_search_finds_a_customer_and_says_by_what(
    dashboard: Dashboard, text: str, what: str
) -> None:
    await dashboard.add_member(MIA.sub)
    await (await dashboard.sign_in(MIA)).open("/")
    olga = await dashboard.sign_in(OLGA)
    page = await olga.open(f"{LIST}?search={text}")
    assert customers(page) == [ACME]
    assert page.path == LIST
    assert f"Acme acme {what}" in page.text


async def test_search_finds_a_key_by_its_id_and_last_characters(dashboard: Dashboard) -> None:
    key_id, secret = await add_key(dashboard, "CI")
    olga = await dashboard.sign_in(OLGA)
    shown = f"svc_live_{secret[9:13]}…{secret[-4:]}"
    for text in (key_id, secret[-4:]):
        page = await olga.open(f"{LIST}?search={text}")
        assert customers(page)[0] == ACME
        assert f"Key {shown}" in page.text
        assert f"/operator/orgs/acme/settings/api-keys/{key_id}" in page.links


async def test_whole_secret_is_shortened_before_it_is_in_an_address(dashboard: Dashboard) -> None:
    _, secret = await add_key(dashboard, "CI")
    olga = await dashboard.sign_in(OLGA)
    page = await olga.open(f"{LIST}?search={secret}")
    assert secret not in str(page.answer.url)
    assert secret not in page.html
    assert customers(page) == [ACME]


async def test_exact_match_comes_first_and_once(dashboard: Dashboard) -> None:
    for org_id in ("zeta", "zeta-2", "a-zeta"):
        await dashboard.operate(
            "PUT", f"/tenants/{org_id}", {"name": "Other", "ownerEmail": "z@z.example"}
        )
    assert await found(dashboard, "search=zeta") == ["zeta", "a-zeta", "zeta-2"]


async def test_many_exact_matches_are_bounded(dashboard: Dashboard) -> None:
    await dashboard.execute(
        "INSERT INTO tenants (id, name, owner_id, owner_email) "
        "SELECT 'many-' || n, 'Many', 'x', 'one@many.example' FROM generate_series(1, 30) AS n"
    )
    olga = await dashboard.sign_in(OLGA)
    page = await olga.open(f"{LIST}?search=one@many.example")
    assert "5 more customers match the whole text." in page.text


async def test_filters_narrow_the_list_and_the_exact_matches(dashboard: Dashboard) -> None:
    await dashboard.deliver(updated())
    await dashboard.operate("POST", "/operator/tenants/beta/suspend", {"reason": "Unpaid"})
    for query, expected in {
        "plan=pro": [ACME],
        "plan=free": [BETA],
        "plan=unheard-of": [BETA, ACME],
        "status=active": [ACME],
        "status=<b>": [BETA, ACME],
        "access=full": [ACME],
        "access=none": [BETA],
        "access=other": [BETA, ACME],
        "suspended=yes": [BETA],
        "suspended=no": [ACME],
        "suspended=perhaps": [BETA, ACME],
        "suspended=yes&plan=pro": [],
        "search=acme&suspended=yes": [],
        "search=beta&suspended=yes": [BETA],
        # a plan, a status and an access may have one name
        "search=beta&status=none&access=none": [BETA],
        "search=acme&status=none": [],
    }.items():
        assert await found(dashboard, query) == expected, query


async def test_suspended_customer_has_a_tag(dashboard: Dashboard) -> None:
    await dashboard.operate("POST", "/operator/tenants/beta/suspend", {})
    page = await (await dashboard.sign_in(OLGA)).open(LIST)
    assert "Beta beta Free Suspended" in page.text


async def test_ended_customer_is_not_listed(dashboard: Dashboard) -> None:
    await dashboard.operate("DELETE", "/tenants/beta")
    assert await found(dashboard, "") == [ACME]
    assert await found(dashboard, "search=beta") == []


async def test_pages_follow_one_another(dashboard: Dashboard) -> None:
    await dashboard.join_many(NOA, 60)
    olga = await dashboard.sign_in(OLGA)
    page = await olga.open(f"{LIST}?plan=free")
    seen = customers(page)
    while "Next" in dict(page.anchors):
        page = await olga.open(dict(page.anchors)["Next"])
        seen += customers(page)
    assert len(seen) == len(set(seen)) == 62
    last = await olga.open(f"{LIST}?plan=free&page=3")
    assert customers(last) == seen[50:]
    assert "51\N{EN DASH}62 of 62 customers" in last.text


async def test_search_examines_a_bounded_number_and_continues(dashboard: Dashboard) -> None:
    await dashboard.execute(
        "INSERT INTO tenants (id, name, owner_id, owner_email, created_at) "
        "SELECT 'many-' || n, CASE WHEN n > %(rows)s THEN 'Wanted' ELSE 'Many' END, 'x', 'x@x.example', "
        "now() - n * interval '1 minute' FROM generate_series(1, %(rows)s + 3) AS n",
        {"rows": MAX_SCANNED_RECORDS},
    )
    olga = await dashboard.sign_in(OLGA)
    page = await olga.open(f"{LIST}?search=wanted")
    assert customers(page) == []
    assert page.heading("h2") == "None of these customers matches."
    assert "This page searched 10,000 customers" in page.text
    page = await olga.open(dict(page.anchors)["Search older"])
    assert customers(page) == ["many-10001", "many-10002", "many-10003"]
    # what the text names as a whole is found among all
    page = await olga.open(f"{LIST}?search=many-10003")
    assert customers(page) == ["many-10003"]


async def test_exact_matches_are_on_the_first_page_alone(dashboard: Dashboard) -> None:
    await dashboard.join_many(NOA, 60)
    olga = await dashboard.sign_in(OLGA)
    first = await olga.open(f"{LIST}?search=many-1&plan=free")
    assert customers(first)[0] == "many-1"
    assert customers(await olga.open(f"{LIST}?search=many-1&page=1")) == customers(first)
    second = await olga.open(f"{LIST}?search=many-&page=2")
    assert len(customers(second)) == 25
    last = await olga.open(f"{LIST}?search=many-1&page=9")
    assert customers(last) == ["many-19", *(f"many-{n}" for n in range(18, 9, -1)), "many-1"]


async def test_search_without_a_match_offers_the_whole_list(dashboard: Dashboard) -> None:
    page = await (await dashboard.sign_in(OLGA)).open(f"{LIST}?search=nothing-like-it")
    assert page.heading("h2") == "No customer matches."
    assert ("Show all", LIST) in page.anchors


async def test_list_without_customers_says_how_they_come(dashboard: Dashboard) -> None:
    for org_id in (ACME, BETA):
        await dashboard.operate("DELETE", f"/tenants/{org_id}")
    page = await (await dashboard.sign_in(OLGA)).open(LIST)
    assert page.heading("h2") == "No customers yet"


@pytest.mark.parametrize("query", ["cursor=x", "before=kwGhYQ", "cursor=é", "page=2&cursor=%F0"])
async def test_bad_cursor_is_refused(dashboard: Dashboard, query: str) -> None:
    page = await (await dashboard.sign_in(OLGA)).open(f"{LIST}?{query}")
    assert page.status == 400
    assert LIST in page.links


@pytest.mark.parametrize("name", NAMES)
async def test_hostile_names_are_text(dashboard: Dashboard, name: str) -> None:
    await dashboard.execute("UPDATE tenants SET name = %s WHERE id = 'acme'", (name,))
    olga = await dashboard.sign_in(OLGA)
    for path in (LIST, f"{LIST}?search=acme"):
        page = await olga.open(path)
        assert name in page.text
        assert "script" not in page.tags[20:]
        assert "img" not in page.tags
        assert f"<bdi>{name[:1]}" in page.html.replace("&lt;", "<").replace("&#34;", '"')


@cases(
    "text",
    [
        "%",
        "a.me",
        "^acme",
        "acme|beta",
        "a*e",
        "[a-z]",
        "***=acme",
        "\\",
        "(?i)acme",
        "'; --",
        "\u202e",
        "%(now)s",
        "a" * 999,
    ],
)
async def test_hostile_searches_find_no_customer(dashboard: Dashboard, text: str) -> None:
    olga = await dashboard.sign_in(OLGA)
    page = Page(await olga.client.get(LIST, params={"search": text}))
    assert page.status == 200
    assert customers(page) == []


async def test_operator_without_an_organization_starts_at_the_list(dashboard: Dashboard) -> None:
    page = await (await dashboard.sign_in(OLGA)).open("/")
    assert page.path == LIST


async def test_operator_with_an_organization_starts_there(dashboard: Dashboard) -> None:
    await dashboard.add_member(OLGA.sub)
    page = await (await dashboard.sign_in(OLGA)).open("/")
    assert page.path == f"/orgs/{ACME}/"
    assert ("Operator", LIST) in page.anchors


async def test_others_start_as_before_and_see_no_link(dashboard: Dashboard) -> None:
    for user in (NOA, OLIVIA, BERTA):
        page = await (await dashboard.sign_in(user)).open("/")
        assert page.path != LIST
        assert LIST not in page.links


async def test_search_on_a_customers_page_finds_other_customers(dashboard: Dashboard) -> None:
    olga = await dashboard.sign_in(OLGA)
    page = await olga.open(f"/operator/orgs/{ACME}/search?q=beta")
    assert ("Beta", "/operator/orgs/beta/") in page.anchors
    assert ("More in Customers", f"{LIST}?search=beta") in page.anchors


async def test_search_of_customers_finds_no_other_customer(dashboard: Dashboard) -> None:
    for user, path in ((OLIVIA, AT_ACME), (BERTA, AT_BETA)):
        page = await (await dashboard.sign_in(user)).open(f"{path}/search?q=e")
        assert "Customers" not in page.text
        assert not [href for href in page.links if href.startswith(LIST)]
