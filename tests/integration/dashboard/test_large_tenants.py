"""Pages of a tenant with more rows than a page reads: no row is lost."""

import re
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from tenantry.accounts.projects import MOST_COUNTED
from tenantry.db.pagination import MAX_SCANNED_RECORDS, MAX_SCANNED_ROWS
from tests.support.dashboard import ACME, AT_ACME, OLIVIA, Dashboard, Person
from tests.support.dashboard_page import Page

ROOT: Final = Path(__file__).parents[3]
# Statements that fill each list: many rows, of which every n-th matches the filter.
EVENTS: Final = """
INSERT INTO billing_events (id, arrival, type, created, received_at, tenant_id, outcome, subscription_id)
SELECT 'evt_' || n, %(rows)s - n, 'invoice.payment_failed', 2000000000 - n / 2, now(), %(tenant)s, 'applied',
       CASE WHEN n %% %(every)s = 0 THEN 'sub_wanted' ELSE 'sub_1' END
  FROM generate_series(1, %(rows)s) AS n
"""
ENTRIES: Final = """
INSERT INTO audit_events (id, org_id, at, action, actor_kind, target_id)
SELECT 'aud_' || n, %(tenant)s, now() - n / 2 * interval '1 minute',
       CASE WHEN n %% %(every)s = 0 THEN 'api_key.leak_reported' ELSE 'api_key.updated' END, 'operator', 'key_' || n
  FROM generate_series(1, %(rows)s) AS n
"""
KEYS: Final = """
INSERT INTO api_keys (id, org_id, digest, name, scopes, access_level, mode, start, last4, created_at, created_by,
                      revoked_at)
SELECT 'key_' || n, %(tenant)s, sha256(n::text::bytea), 'Key', '{projects:read}', 'SCOPED', 'live', 'svc_live_AB',
       'wxyz', now() - n / 2 * interval '1 minute', 'olivia', CASE WHEN n %% %(every)s <> 0 THEN now() END
  FROM generate_series(1, %(rows)s) AS n
"""
MEMBERS: Final = """
INSERT INTO memberships (id, issuer, subject, tenant_id, role, created_at)
SELECT 'mem_' || n, issuer, 'user_' || n, %(tenant)s, CASE WHEN n %% %(every)s = 0 THEN 'admin' ELSE 'member' END,
       now() - n / 2 * interval '1 minute'
  FROM generate_series(1, %(rows)s) AS n, (SELECT issuer FROM memberships WHERE subject = %(owner)s) AS of
"""
PROJECTS: Final = """
INSERT INTO projects (id, org_id, mode, name, created_at, updated_at)
SELECT 'proj_' || n, %(tenant)s, 'live', CASE WHEN n %% %(every)s = 0 THEN 'Wanted' ELSE 'Project' END,
       now() - n / 2 * interval '1 minute', now()
  FROM generate_series(1, %(rows)s) AS n
"""
INVITATIONS: Final = """
INSERT INTO memberships (id, issuer, subject, tenant_id, role, invited, created_at)
SELECT 'inv_' || n, issuer, 'invited_user_' || n, %(tenant)s, 'member', true, now()
  FROM generate_series(1, %(rows)s) AS n, (SELECT issuer FROM memberships WHERE subject = %(owner)s) AS of
"""
PROFILES: Final = """
INSERT INTO user_profiles (org_id, issuer, subject, name, email, claimed_role, seen_at)
SELECT %(tenant)s, issuer, 'user_' || n, 'Firstname Lastname ' || n, 'firstname.' || n || '@acme.example',
       CASE WHEN n > 60 THEN 'member' END, now()
  FROM generate_series(1, %(rows)s) AS n, (SELECT issuer FROM memberships WHERE subject = %(owner)s) AS of
"""
USAGE: Final = """
INSERT INTO usage_days (org_id, key_id, day, outcome, number)
SELECT %(tenant)s, id, date_trunc('day', now(), 'UTC') - day * interval '1 day', outcome, 10000 + day
  FROM api_keys, generate_series(0, 91) AS day,
       unnest('{accepted,rate_limited,forbidden,quota_exceeded,expired_or_revoked,suspended}'::text[]) AS outcome
 WHERE last4 = 'wxyz' AND %(rows)s > 0
"""
REJECTIONS: Final = """
INSERT INTO rejections (id, org_id, kind, principal, mode, minute, code, needed, route, status, at, request_id,
                        address, counted)
SELECT 'rejection_' || n, %(tenant)s, 'api_key', 'key_' || n %% 50 + 1, 'live', now() - n * interval '1 minute',
       'insufficient_scope', 'projects:write', '/api/v1/projects/{project_id}', 403, now() - n * interval '1 minute',
       md5(n::text), '203.0.113.7', 1234
  FROM generate_series(1, %(rows)s) AS n
"""
EVERY_LIST: Final = pytest.mark.parametrize(
    ("statement", "most", "path", "prefix"),
    [
        (EVENTS, MAX_SCANNED_ROWS, "/events?search=wanted", f"{AT_ACME}/events/evt_"),
        (
            ENTRIES,
            MAX_SCANNED_ROWS,
            "/settings/audit?action=api_key.leak_reported",
            f"{AT_ACME}/settings/audit?targetId=key_",
        ),
        (
            KEYS,
            MAX_SCANNED_RECORDS,
            "/settings/api-keys?status=active",
            f"{AT_ACME}/settings/api-keys/key_",
        ),
        (
            MEMBERS,
            MAX_SCANNED_RECORDS,
            "/settings/members?role=admin",
            f"{AT_ACME}/settings/members/mem_",
        ),
        (PROJECTS, MAX_SCANNED_RECORDS, "/projects?search=wanted", f"{AT_ACME}/projects/proj_"),
    ],
    ids=["events", "audit", "keys", "members", "projects"],
)


@pytest.fixture
async def owner(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in()


async def fill(conninfo: str, statement: str, rows: int, every: int = 1) -> None:
    values: dict[str, Any] = {"tenant": ACME, "owner": OLIVIA.sub, "rows": rows, "every": every}
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        await connection.execute(statement, values)


def found(page: Page, prefix: str) -> list[int]:
    rows = re.compile(re.escape(prefix) + r"(\d+)")
    return [int(row[1]) for row in map(rows.fullmatch, page.links) if row]


def further(page: Page) -> str | None:
    return next((link for link in page.links if "cursor=" in link), None)


@pytest.mark.thorough
@EVERY_LIST
async def test_filter_searches_a_bounded_number_of_rows_a_page(
    owner: Person, dashboard: Dashboard, statement: str, most: int, path: str, prefix: str
) -> None:
    await fill(dashboard.conninfo, statement, most + 200, every=most + 150)
    first = await owner.open(AT_ACME + path)
    assert found(first, prefix) == []
    assert f"{most:,} " in first.text
    assert "This page searched" in first.text
    assert "Search older" in first.text
    second = await owner.open(further(first) or "")
    assert found(second, prefix) == [most + 150]
    assert "looked through" not in second.text
    assert further(second) is None


@pytest.mark.thorough
@EVERY_LIST
async def test_paging_through_a_filtered_list_shows_each_row_once_in_order(
    owner: Person, dashboard: Dashboard, statement: str, most: int, path: str, prefix: str
) -> None:
    rows, every = 2 * most + 300, 160
    await fill(dashboard.conninfo, statement, rows, every)
    address: str | None = AT_ACME + path
    met: list[int] = []
    pages = 0
    while address:
        page = await owner.open(address)
        met += found(page, prefix)
        address = further(page)
        pages += 1
    assert sorted(met) == list(range(every, rows + 1, every))
    assert [number // 2 for number in met] == sorted(number // 2 for number in met)
    assert pages > 2


async def test_exhausted_filter_says_that_nothing_matches(
    owner: Person, dashboard: Dashboard
) -> None:
    await fill(dashboard.conninfo, EVENTS, MAX_SCANNED_ROWS, every=MAX_SCANNED_ROWS + 1)
    page = await owner.open(f"{AT_ACME}/events?search=wanted")
    assert "No entry matches." in page.text
    assert further(page) is None


async def test_event_is_found_by_its_id_among_all(owner: Person, dashboard: Dashboard) -> None:
    await fill(dashboard.conninfo, EVENTS, MAX_SCANNED_ROWS + 200)
    page = await owner.open(f"{AT_ACME}/events?search=evt_{MAX_SCANNED_ROWS + 100}")
    assert found(page, f"{AT_ACME}/events/evt_") == [MAX_SCANNED_ROWS + 100]
    assert further(page) is None


async def test_a_user_is_found_among_all_members(owner: Person, dashboard: Dashboard) -> None:
    await fill(dashboard.conninfo, MEMBERS, MAX_SCANNED_RECORDS + 200)
    page = await owner.open(f"{AT_ACME}/settings/members?search=user_{MAX_SCANNED_RECORDS + 100}")
    assert found(page, f"{AT_ACME}/settings/members/mem_") == [MAX_SCANNED_RECORDS + 100]


async def test_entry_about_one_target_is_found_among_all(
    owner: Person, dashboard: Dashboard
) -> None:
    await fill(dashboard.conninfo, ENTRIES, MAX_SCANNED_ROWS + 200)
    page = await owner.open(
        f"{AT_ACME}/settings/audit?targetId=key_{MAX_SCANNED_ROWS + 100}&action=api_key.leak_reported"
    )
    assert "reported the key" in page.text


async def test_very_many_projects_are_counted_up_to_a_bound(
    owner: Person, dashboard: Dashboard
) -> None:
    await fill(dashboard.conninfo, PROJECTS, MOST_COUNTED)
    assert f"Projects {MOST_COUNTED:,} of 3" in (await owner.open(f"{AT_ACME}/billing")).text
    async with await psycopg.AsyncConnection.connect(
        dashboard.conninfo, autocommit=True
    ) as connection:
        await connection.execute("UPDATE tenants SET plan = 'business' WHERE id = %s", (ACME,))
        await connection.execute(
            "INSERT INTO projects (id, org_id, mode, name, created_at, updated_at) "
            "VALUES ('proj_more', %s, 'live', 'One more', now(), now())",
            (ACME,),
        )
    assert (
        f"Projects more than {MOST_COUNTED:,} (no limit)"
        in (await owner.open(f"{AT_ACME}/billing")).text
    )
    assert f"Projects more than {MOST_COUNTED:,}" in (await owner.open(f"{AT_ACME}/")).text


async def test_unpaid_invoice_is_searched_among_the_newest_events(
    owner: Person, dashboard: Dashboard
) -> None:
    await fill(dashboard.conninfo, EVENTS, MAX_SCANNED_ROWS + 1)
    async with await psycopg.AsyncConnection.connect(
        dashboard.conninfo, autocommit=True
    ) as connection:
        await connection.execute(
            "UPDATE tenants SET subscription_status = 'past_due' WHERE id = %s", (ACME,)
        )
        for number, shown in ((MAX_SCANNED_ROWS, True), (MAX_SCANNED_ROWS + 1, False)):
            await connection.execute(
                "UPDATE billing_events SET type = CASE id WHEN %s THEN 'invoice.payment_failed' "
                'ELSE \'customer.subscription.updated\' END, document = \'{"amount_due": 2900, "currency": "eur"}\'',
                (f"evt_{number}",),
            )
            page = await owner.open(f"{AT_ACME}/billing")
            assert "A payment failed" in page.text
            assert ("29.00 EUR could not be collected" in page.text) is shown
            assert ("The last invoice could not be collected" in page.text) is not shown


PAGES: Final = (
    "/",
    "/billing",
    "/billing/invoices",
    "/events?all=yes",
    "/projects",
    "/settings/api-keys",
    "/settings/api-keys?order=requests",
    "/settings/api-keys/key_1",
    "/settings/audit",
    "/settings/members",
    "/settings/members/invitations",
    "/settings/members/identity-provider",
    "/settings/transfer",
    "/usage/rejections",
    "/usage?range=24h&by=key",
    "/usage?range=90d",
    "/usage?range=90d&by=outcome",
    "/usage?range=90d&by=key",
)
SIZES: Final = re.compile(r"have\s(\d+)\sKB at most, all\sothers\s(\d+)")


async def test_pages_are_as_large_as_the_documentation_says(
    owner: Person, dashboard: Dashboard
) -> None:
    for statement, rows in (
        (KEYS, 50),
        (MEMBERS, 60),
        (INVITATIONS, 60),
        (PROFILES, 120),
        (PROJECTS, 50),
        (ENTRIES, 60),
        (EVENTS, 60),
        (USAGE, 1),
        (REJECTIONS, 60),
    ):
        await fill(dashboard.conninfo, statement, rows)
    await dashboard.execute("UPDATE api_keys SET name = 'Storefront of country ' || right(id, 2)")
    *others, by_outcome, by_key = [await kilobytes(owner, path) for path in PAGES]
    text = (ROOT / "docs" / "reference" / "dashboard.md").read_text()
    [stated] = SIZES.findall(text)
    assert (str(max(by_key, by_outcome)), str(max(others))) == stated


async def kilobytes(owner: Person, path: str) -> int:
    """The size of a page, in full tens."""
    page = await owner.open(AT_ACME + path)
    assert page.status == 200
    return -(-len(page.html.encode()) // 10_000) * 10
