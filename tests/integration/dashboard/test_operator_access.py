"""Who may open the operator's pages (CONTRACT 11.2), and what they leave behind."""

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from litestar.routes import HTTPRoute
from psycopg.sql import SQL, Identifier

from tenantry.app import litestar_routes
from tenantry.dashboard.forms import MOST_BYTES
from tenantry.dashboard.guards import PageGuard
from tests.integration.dashboard.keys import add_key
from tests.support.app import OPERATOR_TOKEN
from tests.support.cases import cases
from tests.support.dashboard import (
    ACME,
    AT_ACME,
    BETA,
    NOA,
    OLGA,
    OLIVIA,
    SESSION_COOKIE,
    Dashboard,
    Person,
    running_dashboard,
)
from tests.support.slow_request import SlowRequest

_LIST: Final = "/operator"
_KEYS: Final = f"/operator{AT_ACME}/settings/api-keys"
_NEW: Final = f"{_KEYS}/new"
_HTML: Final = {"Accept": "text/html"}
_PATHS: Final = (
    _LIST,
    f"{_LIST}/",
    f"/{_LIST}",
    f"{_LIST}/confirmed",
    f"{_LIST}/x",
    _NEW,
    f"/{_NEW}",
    f"/operator{AT_ACME}/settings/audit/export",
    "/operator/orgs/nowhere/settings/api-keys",
)
_METHODS: Final = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
_KINDS: Final = ("text/html", "application/json")
_NOT_COMPARED: Final = {"date", "x-request-id", "transfer-encoding"}
_REQUEST_ID: Final = re.compile(r"\b[0-9a-f]{32}\b")
_FROM_HERE: Final = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
async def olga(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in(OLGA)


@pytest.fixture
async def without_operators(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    async with running_dashboard(conninfo, people, OPERATORS="") as dashboard:
        yield dashboard


def shown(answer: httpx2.Response) -> tuple[int, dict[str, str], str]:
    """Return the status, headers and content, without what differs between any two requests."""
    headers = {name: text for name, text in answer.headers.items() if name not in _NOT_COMPARED}
    return answer.status_code, headers, _REQUEST_ID.sub("", answer.text)


async def differing(client: httpx2.AsyncClient, **headers: str) -> list[tuple[str, str, str]]:
    """Return the requests for the operator's addresses whose answers are not those of an address
    without a page.
    """
    base = str(client.base_url).rstrip("/")  # with it, `//operator` is a path and no host
    found = []
    for method, kind in product(_METHODS, _KINDS):
        sent = {"Accept": kind, **headers}
        missing = shown(await client.request(method, "/no-such-page", headers=sent))
        assert missing[0] == 404
        for path in _PATHS:
            answer = shown(await client.request(method, base + path, headers=sent))
            found += [(method, kind, path)] if answer != missing else []
    return found


async def test_without_operators_no_address_has_a_page(without_operators: Dashboard) -> None:
    assert await differing((await without_operators.sign_in(OLGA)).client) == []
    assert await differing(without_operators.api) == []


async def test_users_who_are_no_operator_find_no_page(dashboard: Dashboard) -> None:
    assert await differing((await dashboard.sign_in(OLIVIA)).client) == []


async def test_users_without_an_organization_find_no_page(dashboard: Dashboard) -> None:
    assert await differing((await dashboard.sign_in(NOA)).client) == []


async def test_users_to_be_confirmed_again_who_are_no_operator_find_no_page(
    dashboard: Dashboard,
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    await dashboard.execute(
        "UPDATE dashboard_sessions SET proved_at = proved_at - interval '2 hours'"
    )
    for headers in ({}, _FROM_HERE):
        assert await differing(olivia.client, **headers) == []


async def test_operators_to_be_confirmed_again_are_sent_to_the_provider(
    dashboard: Dashboard, olga: Person
) -> None:
    await dashboard.execute(
        "UPDATE dashboard_sessions SET proved_at = proved_at - interval '2 hours'"
    )
    answer = await olga.get(_LIST, **_HTML)
    assert answer.headers["location"].startswith("/sign-in/start?return_to=%2Foperator&silent=1")


@cases("kind", ["form", "operator's form"])
async def test_no_more_than_a_form_is_read_of_a_sender_without_a_session(
    dashboard: Dashboard, kind: str
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    cookie = olivia.client.cookies[SESSION_COOKIE]
    await olivia.force("/sign-out")
    path = f"{AT_ACME}/projects/new" if kind == "form" else f"/operator{AT_ACME}/projects/new"
    sent = {
        **_HTML,
        **_FROM_HERE,
        "Cookie": f"{SESSION_COOKIE}={cookie}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    request = await SlowRequest.begin(
        dashboard.url, "POST", path, b"name=" + b"a" * MOST_BYTES, sent
    )
    status, _, _ = await request.finish(send_rest=False)
    assert status == 401


async def test_a_suspended_customer_finds_no_page(dashboard: Dashboard) -> None:
    await dashboard.operate("POST", f"/operator/tenants/{ACME}/suspend", {"reason": "Unpaid"})
    assert await differing((await dashboard.sign_in(OLIVIA)).client) == []


async def test_forms_of_users_who_are_no_operator_have_no_effect(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.force(_NEW, name="Mine", access="scoped", scope="projects:read")
    assert page.status == 404
    assert await dashboard.execute("SELECT 1 FROM api_keys") == []


@cases("path", [_LIST, f"{_LIST}/", _KEYS, f"{_LIST}/confirmed", f"{_KEYS}?cursor=x"])
async def test_visitors_sign_in_first(dashboard: Dashboard, path: str) -> None:
    answer = await dashboard.api.get(path, headers=_HTML)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/sign-in?return_to=%2Foperator")


async def test_credentials_of_programs_open_no_page(dashboard: Dashboard) -> None:
    _, secret = await add_key(dashboard, accessLevel="OWNER")
    olivia = await dashboard.sign_in(OLIVIA)
    for credential in (OPERATOR_TOKEN, secret, dashboard.token(OLGA)):
        for name, text in (("Authorization", f"Bearer {credential}"), ("X-API-Key", credential)):
            sent = {name: text, "X-Act-As-Organization": ACME}
            for path in (_LIST, _KEYS):
                assert (await olivia.get(path, **_HTML, **sent)).status_code == 404
                answer = await dashboard.api.get(path, headers={**_HTML, **sent})
                assert answer.headers["location"].startswith("/sign-in?")


async def test_operators_see_the_pages_of_every_tenant(olga: Person) -> None:
    assert (await olga.open(_LIST)).status == 200
    for org in (ACME, BETA):
        assert (await olga.open(f"/operator/orgs/{org}/settings/api-keys")).status == 200
    assert (await olga.open(f"{AT_ACME}/settings/api-keys")).status == 404
    assert (await olga.open("/operator/orgs/nowhere/settings/api-keys")).status == 404


async def test_operators_see_a_suspended_customer(dashboard: Dashboard, olga: Person) -> None:
    await dashboard.operate("POST", f"/operator/tenants/{ACME}/suspend", {"reason": "Unpaid"})
    assert (await olga.open(_KEYS)).status == 200


async def test_operators_are_told_of_a_wrong_method(olga: Person) -> None:
    answer = await olga.client.request("DELETE", _LIST, headers=_HTML)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


def test_every_page_of_the_operator_is_guarded() -> None:
    found = 0
    for route in litestar_routes().routes:
        if isinstance(route, HTTPRoute) and re.match(r"/operator(/|\Z)", route.path_format):
            for handler in route.route_handlers:
                if handler.http_methods != {"OPTIONS"}:
                    guards = handler.resolve_guards()
                    assert [guard for guard in guards if isinstance(guard, PageGuard)], route
                    assert not handler.opt.get("public"), route
                    found += 1
    assert found > 30


async def test_an_act_is_the_operators_for_customers_and_a_persons_for_operators(
    dashboard: Dashboard, olga: Person
) -> None:
    form = await olga.open(_NEW)
    await olga.send(form, name="By support", scopes="projects:read")
    [(kind, actor_id, address, request_id)] = await dashboard.execute(
        "SELECT actor_kind, actor_id, address, request_id FROM audit_events "
        "WHERE action = 'api_key.created'"
    )
    assert (kind, actor_id, address) == ("operator", None, None)
    acts = await dashboard.execute(
        "SELECT action, org_id, subject, name, address, request_id FROM operator_acts"
    )
    assert acts == [("api_key.created", ACME, OLGA.sub, OLGA.name, "127.0.0.1", request_id)]


async def act_in_many_ways(olga: Person) -> None:
    """Create a key, a project and an invitation, and change the organization."""
    await olga.send(await olga.open(_NEW), name="Key", scopes="projects:read")
    pages = f"/operator{AT_ACME}"
    await olga.send(await olga.open(f"{pages}/projects/new"), name="Project")
    await olga.send(await olga.open(f"{pages}/settings/members/new"), userId="zoe", role="member")
    await olga.send(await olga.open(f"{pages}/settings/general"), name="Acme Corporation")
    for path in ("/settings/members", "/settings/audit", "/usage", "/search?q=key"):
        assert (await olga.open(pages + path)).status == 200


_OF_INSTALLATION: Final = {"operator_acts", "dashboard_sessions", "idempotency_keys"}


async def test_no_table_of_tenants_holds_the_person(dashboard: Dashboard, olga: Person) -> None:
    await act_in_many_ways(olga)
    [(acts,)] = await dashboard.execute("SELECT count(*) FROM operator_acts WHERE org_id = 'acme'")
    assert acts >= 4
    tables = await dashboard.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
    )
    holding = set()
    for (table,) in tables:
        query = SQL("SELECT 1 FROM {} AS row WHERE row::text ILIKE %s LIMIT 1")
        if await dashboard.execute(query.format(Identifier(table)), ("%olga%",)):
            holding.add(table)
    assert holding == _OF_INSTALLATION


async def test_nothing_that_customers_read_names_the_person(
    dashboard: Dashboard, olga: Person
) -> None:
    await act_in_many_ways(olga)
    olivia = await dashboard.sign_in(OLIVIA)
    for path in (
        "/",
        "/settings/audit",
        "/settings/audit/export",
        "/settings/audit/export?format=ndjson",
        "/settings/api-keys",
        "/settings/members",
        "/settings/members/invitations",
        "/settings/general",
        "/projects",
        "/events",
        "/usage",
    ):
        page = await olivia.open(AT_ACME + path)
        assert page.status == 200, path
        assert "olga" not in page.html.lower(), path
    for path in ("/audit-events", "/members", f"/api-keys?orgId={ACME}", "/projects"):
        assert "olga" not in str(await dashboard.call("GET", path)).lower(), path
    for path in (f"/operator/tenants/{ACME}/export", "/operator/changes", "/events"):
        answer = await dashboard.request("GET", path, OPERATOR_TOKEN)
        assert "olga" not in answer.text.lower(), path


async def test_pages_of_the_operator_are_no_visit_and_no_use(own_dashboard: Dashboard) -> None:
    before = await own_dashboard.execute("SELECT count(*) FROM memberships")
    await act_in_many_ways(await own_dashboard.sign_in(OLGA))
    async with own_dashboard.away():  # a service that stops writes what it has counted
        assert await own_dashboard.execute("SELECT tenant_id FROM dashboard_sessions") == [(None,)]
        for table in ("user_profiles", "memberships"):
            found = await rows_of(own_dashboard, table)
            assert [row for row in found if OLGA.sub in row] == [], table
        for table in ("usage_hours", "usage_counters", "request_counts", "rejections"):
            assert await rows_of(own_dashboard, table) == [], table
        [(invited,)] = await own_dashboard.execute("SELECT count(*) FROM memberships")
        assert [(invited - 1,)] == before


async def test_an_operator_who_is_a_member_visits_only_as_one(conninfo: str, people: Path) -> None:
    async with running_dashboard(conninfo, people, OPERATORS=OLIVIA.sub) as dashboard:
        olivia = await dashboard.sign_in(OLIVIA)
        visited = "SELECT tenant_id FROM dashboard_sessions"
        for path, tenant in ((_KEYS, None), (f"{AT_ACME}/settings/api-keys", ACME)):
            assert (await olivia.open(path)).status == 200
            assert await dashboard.execute(visited) == [(tenant,)]


async def test_the_operators_own_address_proves_no_address_of_a_customer(
    dashboard: Dashboard, olga: Person
) -> None:
    form = (await olga.open(f"/operator{AT_ACME}/settings/general")).form(
        f"/operator{AT_ACME}/settings/general/billing-address"
    )
    await olga.fill(form, ownerEmail=str(OLGA.email))
    [(address, verified)] = await dashboard.execute(
        "SELECT owner_email, lower(verified_email) = lower(owner_email) FROM tenants WHERE id = 'acme'"
    )
    assert (address, verified) == (OLGA.email, False)


async def test_claims_of_two_operators_do_not_collide(conninfo: str, people: Path) -> None:
    async with running_dashboard(conninfo, people, OPERATORS="olga,nobody") as dashboard:
        for number, user in enumerate((OLGA, NOA), start=1):
            person = await dashboard.sign_in(user)
            form = (await person.open(_NEW)).form()
            for _ in range(2):  # a double click
                page = await person.fill(form, name="Same", scope="projects:read", once="x" * 22)
                assert page.status in (200, 409), page.text
            found = await dashboard.execute("SELECT name FROM api_keys")
            assert found == [("Same",)] * number
        owners = await dashboard.execute(
            "SELECT DISTINCT principal FROM idempotency_keys WHERE route LIKE 'POST%%'"
        )
        assert {owner.split(":")[1] for (owner,) in owners} == {ACME}


@cases(
    "ago, status",
    [
        (timedelta(), 200),
        (timedelta(minutes=59), 200),
        (timedelta(hours=1, seconds=1), 401),
        (timedelta(hours=2), 401),
    ],
)
async def test_a_change_needs_a_recent_sign_in(
    dashboard: Dashboard, ago: timedelta, status: int
) -> None:
    olga = await dashboard.sign_in(OLGA, authenticated=ago)
    olga.client.headers.update(_FROM_HERE)
    page = await olga.send(await olga.open(_NEW), name="By support", scopes="projects:read")
    assert page.status == status
    assert "By support" in page.text
    made = await dashboard.execute("SELECT name FROM api_keys WHERE name = 'By support'")
    assert bool(made) == (status == 200)
    await dashboard.execute("DELETE FROM api_keys")


async def test_a_change_of_a_session_that_does_not_know_when_is_refused(
    dashboard: Dashboard, olga: Person
) -> None:
    await dashboard.execute("UPDATE dashboard_sessions SET authenticated_at = NULL")
    page = await olga.send(await olga.open(_NEW), name="By support", scopes="projects:read")
    assert (page.status, page.heading()) == (401, "Confirm that it is you")
    assert (
        "Sign in again",
        "/sign-in/start?return_to=%2Foperator%2Fconfirmed&again=1",
    ) in page.anchors
    confirmed = await olga.open(f"{_LIST}/confirmed")
    assert (confirmed.status, confirmed.heading()) == (403, "You are not confirmed")


async def test_every_form_of_the_operator_needs_a_recent_sign_in(dashboard: Dashboard) -> None:
    olga = await dashboard.sign_in(OLGA, authenticated=timedelta(hours=1, seconds=1))
    tried = 0
    for route in litestar_routes().routes:
        template = route.path_format
        if template.startswith(f"{_LIST}/") and "POST" in getattr(route, "methods", ()):
            path = re.sub(r"\{\w+\}", "x", template.replace("{org_id}", ACME))
            page = await olga.force(path)
            assert (page.status, page.heading()) == (401, "Confirm that it is you"), path
            tried += 1
    assert tried > 10
    assert await dashboard.execute("SELECT 1 FROM operator_acts") == []


async def test_a_confirmed_operator_submits_the_kept_form_with_one_click(
    dashboard: Dashboard,
) -> None:
    olga = await dashboard.sign_in(OLGA, authenticated=timedelta(hours=2))
    olga.client.headers.update(_FROM_HERE)
    kept = await olga.send(await olga.open(_NEW), name="By support", scopes="projects:read")
    assert 'data-signs-in="/operator/confirmed"' in kept.html
    confirmed = await dashboard.sign_in(OLGA)
    page = await confirmed.open(f"{_LIST}/confirmed")
    assert (page.status, page.heading()) == (200, "You are confirmed")
    # what the script of the kept page does
    form = kept.form(_NEW)
    confirmed.client.headers.update(_FROM_HERE)
    made = await confirmed.fill(form, form_token=confirmed.form_token())
    assert made.status == 200
    assert len(await dashboard.execute("SELECT 1 FROM api_keys WHERE name = 'By support'")) == 1


async def test_another_operator_is_asked_before_a_kept_form_is_submitted(
    conninfo: str, people: Path
) -> None:
    async with running_dashboard(conninfo, people, OPERATORS="olga,nobody") as dashboard:
        olga = await dashboard.sign_in(OLGA, authenticated=timedelta(hours=2))
        olga.client.headers.update(_FROM_HERE)
        kept = await olga.send(await olga.open(_NEW), name="By Olga", scopes="projects:read")
        noa = await dashboard.sign_in(NOA)
        noa.client.headers.update(_FROM_HERE)
        asked = await noa.fill(kept.form(_NEW))
        assert (asked.status, asked.heading()) == (403, "Submit this form?")
        assert "Noa Newcomer" in asked.text
        assert await dashboard.execute("SELECT 1 FROM api_keys") == []
        assert (await noa.send(asked, _NEW)).status == 200
        [(subject,)] = await dashboard.execute("SELECT subject FROM operator_acts")
        assert subject == NOA.sub


@cases(
    "headers, token",
    [
        ({"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, None),
        ({"Sec-Fetch-Site": "same-site", "Origin": "https://www.vendor.example"}, None),
        ({"Origin": "https://evil.example"}, "0" * 64),
        ({"Origin": "null"}, ""),
        (_FROM_HERE, ""),
        (_FROM_HERE, "0" * 64),
    ],
)
async def test_forms_of_other_sites_have_no_effect(
    dashboard: Dashboard, olga: Person, headers: dict[str, str], token: str | None
) -> None:
    fields = {"name": "Evil", "scope": "projects:read", "once": "x" * 22}
    fields["form_token"] = olga.form_token() if token is None else token
    answer = await olga.client.post(_NEW, data=fields, headers=headers)
    assert answer.status_code == 403
    assert ("Evil" in answer.text) == (headers == _FROM_HERE)
    assert await dashboard.execute("SELECT 1 FROM api_keys") == []
    assert await dashboard.execute("SELECT 1 FROM operator_acts") == []


async def test_no_answer_may_be_cached_or_framed(dashboard: Dashboard, olga: Person) -> None:
    for client in (olga.client, (await dashboard.sign_in(OLIVIA)).client, dashboard.api):
        for path in _PATHS:
            for method in ("GET", "HEAD", "POST"):
                base = str(client.base_url).rstrip("/")
                answer = await client.request(method, base + path, headers=_HTML)
                where = method, path
                assert answer.headers["cache-control"] == "no-store", where
                assert answer.headers["x-frame-options"] == "DENY", where
                policy = answer.headers["content-security-policy"]
                assert "frame-ancestors 'none'" in policy, where


async def test_looking_ahead_and_head_have_no_effect(dashboard: Dashboard, olga: Person) -> None:
    tables = "dashboard_sessions", "operator_acts", "audit_events", "idempotency_keys"
    before = [await rows_of(dashboard, table) for table in tables]
    await dashboard.execute("UPDATE dashboard_sessions SET used_at = used_at - interval '10 min'")
    before = [await rows_of(dashboard, table) for table in tables]
    for path in (_LIST, _KEYS, f"/operator{AT_ACME}/settings/audit/export"):
        assert (await olga.client.head(path)).status_code == 200
    assert [await rows_of(dashboard, table) for table in tables] == before
    ahead = {"Sec-Purpose": "prefetch", "Sec-Fetch-Mode": "navigate"}
    assert (await olga.get(_KEYS, **ahead)).status_code == 200
    assert await rows_of(dashboard, "operator_acts") == []


async def rows_of(dashboard: Dashboard, table: str) -> list[Any]:
    return await dashboard.execute(SQL("SELECT * FROM {} ORDER BY 1").format(Identifier(table)))
