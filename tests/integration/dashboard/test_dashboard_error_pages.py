"""Error pages: unknown addresses, and missing permissions."""

import asyncio
from asyncio import Task
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx2
import psycopg
import pytest

from tenantry_devkit.identity_tokens import DemoUser
from tests.support.app import running_app
from tests.support.dashboard import (
    ADAM,
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
from tests.support.database_link import database_link
from tests.support.postgres import PostgresServer
from tests.support.service import SHORT_TIMEOUTS

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PROGRAMS: tuple[dict[str, str], ...] = (
    {},
    {"accept": "*/*"},
    {"accept": "application/json"},
    {"accept": "application/json, text/html;q=0.5"},
)


@pytest.fixture(scope="module")
async def client(postgres: PostgresServer) -> AsyncIterator[httpx2.AsyncClient]:
    """The service without an identity provider; these requests change nothing."""
    with postgres.database() as conninfo:
        async with running_app(conninfo) as client:
            yield client


def is_page(answer: httpx2.Response) -> bool:
    """Whether this is a page of the dashboard, with a link back and the headers of every page."""
    return (
        answer.headers["content-type"].startswith("text/html")
        and answer.headers["content-security-policy"].startswith("default-src 'none'")
        and ('href="/"' in answer.text or f'class="button" href="{AT_ACME}/' in answer.text)
    )


def is_problem(answer: httpx2.Response) -> bool:
    """Whether this is a problem answer of the API."""
    return answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/nothing", "/settings/api-keys", "/favicon.ico", "/assets/x/y"])
async def test_unknown_address_answers_browsers_with_a_page_and_programs_with_a_problem(
    client: httpx2.AsyncClient, path: str
) -> None:
    page = await client.get(path, headers=BROWSER)
    answers = [await client.get(path, headers=headers) for headers in PROGRAMS]
    assert (page.status_code, is_page(page)) == (404, True)
    assert "Page not found" in page.text
    assert {(answer.status_code, is_problem(answer)) for answer in answers} == {(404, True)}


@pytest.mark.parametrize("path", ["/orgs/acme/nothing", "/orgs/acme/settings", "/orgs/a/b/c/d/e"])
async def test_unknown_address_below_orgs_answers_everyone_with_a_page(
    client: httpx2.AsyncClient, path: str
) -> None:
    answers = [await client.get(path, headers=headers) for headers in (BROWSER, *PROGRAMS)]
    assert {(answer.status_code, is_page(answer)) for answer in answers} == {(404, True)}


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/v1/nothing", "/api/v1/projects/x/y"])
async def test_unknown_address_of_the_api_answers_everyone_with_a_problem(
    client: httpx2.AsyncClient, path: str
) -> None:
    answers = [await client.get(path, headers=headers) for headers in (BROWSER, *PROGRAMS)]
    assert {(answer.status_code, is_problem(answer)) for answer in answers} == {(404, True)}


@pytest.mark.parametrize(
    "path", ["/orgs/%00/", f"{AT_ACME}/events/%00", f"{AT_ACME}/projects/%00/edit"]
)
async def test_invalid_characters_below_orgs_get_a_page(
    client: httpx2.AsyncClient, path: str
) -> None:
    answers = [await client.get(path, headers=headers) for headers in (BROWSER, *PROGRAMS)]
    assert {(answer.status_code, is_page(answer)) for answer in answers} == {(404, True)}


async def test_invalid_characters_elsewhere_get_what_the_client_accepts(
    client: httpx2.AsyncClient,
) -> None:
    page, problem = await client.get("/%00", headers=BROWSER), await client.get("/%00")
    of_the_api = await client.get("/api/v1/projects/%00", headers=BROWSER)
    assert is_page(page)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert is_problem(problem)
    assert is_problem(of_the_api)
    assert {answer.headers["vary"] for answer in (page, problem)} == {"Accept"}
    assert page.headers["x-request-id"]


IMPOSSIBLE: Final = (
    "/orgs/%ff/",
    f"/orgs/{'x' * 5000}/",
    f"{AT_ACME}/events/%ff",
    f"{AT_ACME}/events/%C0%AE",
    f"{AT_ACME}/events/{'x' * 5000}",
    f"{AT_ACME}/projects/%ED%A0%80",
    f"{AT_ACME}/settings/api-keys/{'x' * 5000}",
    f"{AT_ACME}/settings/members/%ff",
    f"{AT_ACME}/projects/{'a/' * 2000}",
)


async def test_impossible_id_is_not_found(dashboard: Dashboard) -> None:
    visitor = await dashboard.sign_in()
    for path in IMPOSSIBLE:
        answer = await visitor.get(path)
        assert (answer.status_code, is_page(answer)) == (404, True), path
        assert "Page not found" in answer.text, path
        assert "xxx" not in answer.text, path


async def test_invalid_query_is_rejected_without_being_repeated(dashboard: Dashboard) -> None:
    visitor = await dashboard.sign_in()
    for path in (
        f"{AT_ACME}/events/stream?after=xxx",
        "/sign-in/start?silent=xxx",
    ):
        answer = await visitor.get(path)
        assert (answer.status_code, is_page(answer)) == (400, True)
        assert "Invalid address" in answer.text
        assert "xxx" not in answer.text


async def test_unavailable_database_gets_a_page(conninfo: str, people: Path) -> None:
    async with (
        database_link(conninfo) as link,
        running_dashboard(link.conninfo, people, SHORT_TIMEOUTS) as dashboard,
    ):
        visitor, token = await dashboard.sign_in(), dashboard.token(OLIVIA)
        link.block()
        page, problem = await asyncio.gather(
            visitor.get(f"{AT_ACME}/projects"), dashboard.request("GET", "/projects", token)
        )
        link.unblock()
    assert (page.status_code, is_page(page)) == (503, True)
    assert (problem.status_code, is_problem(problem)) == (503, True)
    assert page.headers["retry-after"] == problem.headers["retry-after"] == "1"


async def test_form_outlives_an_unavailable_database(conninfo: str, people: Path) -> None:
    typed = {"name": "Shop", "description": "One", "once": "o" * 22}
    async with (
        database_link(conninfo) as link,
        running_dashboard(link.conninfo, people, SHORT_TIMEOUTS) as dashboard,
    ):
        user = await dashboard.sign_in()
        user.client.headers["sec-fetch-site"] = "same-origin"
        await link.cut()
        kept = await user.force(f"{AT_ACME}/projects/new", **typed)
        elsewhere = await user.client.post(
            f"{AT_ACME}/projects/new", data=typed, headers={"sec-fetch-site": "cross-site"}
        )
        await link.restore()
        assert kept.status == 503
        assert "Nothing was saved" in kept.text, kept.text
        assert kept.answer.headers["retry-after"] == "1"
        assert 'data-retry="/readyz"' in kept.html
        made = await user.send(kept)
    assert made.status == 200
    assert made.path.startswith(f"{AT_ACME}/projects/")
    assert (elsewhere.status_code, "Shop" in elsewhere.text) == (503, False)


async def test_form_kept_while_the_database_was_away_is_not_submitted_as_another_person(
    conninfo: str, people: Path
) -> None:
    async with (
        database_link(conninfo) as link,
        running_dashboard(link.conninfo, people, SHORT_TIMEOUTS) as dashboard,
    ):
        browser = await dashboard.sign_in(MIA)
        browser.client.headers["sec-fetch-site"] = "same-origin"
        await link.cut()
        kept = await browser.force(f"{AT_ACME}/projects/new", name="Shop")
        await link.restore()
        await browser.client.get(dashboard.start_of(OLIVIA), follow_redirects=True)
        asked = await browser.send(kept)  # as the script does by itself
        projects = await dashboard.call("GET", "/projects")
    assert kept.status == 503
    assert (asked.status, asked.heading()) == (403, "Submit this form?")
    assert "You are now signed in as Olivia Owner." in asked.text
    assert "data-retry" not in asked.html
    assert projects["data"] == []


async def test_form_outlives_a_database_that_hangs(conninfo: str, people: Path) -> None:
    typed = {"name": "Shop", "description": "One", "once": "o" * 22}
    path = f"{AT_ACME}/projects/new"
    async with (
        database_link(conninfo) as link,
        running_dashboard(link.conninfo, people, SHORT_TIMEOUTS) as dashboard,
    ):
        user = await dashboard.sign_in()
        user.client.headers["sec-fetch-site"] = "same-origin"
        link.block()
        kept, elsewhere = await asyncio.gather(
            user.force(path, **typed),
            user.client.post(path, data=typed, headers={"sec-fetch-site": "cross-site"}),
        )
        link.unblock()
        assert (kept.status, kept.heading()) == (503, "Not saved yet")
        assert "Nothing was saved" in kept.text
        assert kept.answer.headers["retry-after"] == "1"
        assert 'data-retry="/readyz"' in kept.html
        made = await user.send(kept)
    assert (made.status, made.heading()) == (200, "Shop")
    assert (elsewhere.status_code, "Shop" in elsewhere.text) == (503, False)


async def test_form_whose_save_is_unknown_has_one_effect(conninfo: str, people: Path) -> None:
    async with (
        database_link(conninfo) as link,
        running_dashboard(link.conninfo, people, SHORT_TIMEOUTS) as dashboard,
    ):
        user = await dashboard.sign_in()
        user.client.headers["sec-fetch-site"] = "same-origin"
        form = (await user.open(f"{AT_ACME}/projects/new")).form()
        link.hold_answers_after(b"INSERT INTO projects")
        kept = await user.fill(form, name="Storefront")
        assert (kept.status, kept.heading()) == (503, "Not confirmed yet")
        assert "It may have been saved" in kept.text
        assert "Nothing was saved" not in kept.text
        assert 'data-retry="/readyz"' in kept.html
        assert "Name Storefront" in kept.text
        link.hold_answers_after(b"no statement has this text")
        made = await user.send(kept)
        again = await user.send(kept)
        projects = await dashboard.call("GET", "/projects")
    assert (made.status, again.path) == (200, made.path)
    assert [project["name"] for project in projects["data"]] == ["Storefront"]


async def test_form_without_a_claim_that_hung_is_kept_but_not_sent_by_itself(
    conninfo: str, people: Path
) -> None:
    async with (
        database_link(conninfo) as link,
        running_dashboard(link.conninfo, people, SHORT_TIMEOUTS) as dashboard,
    ):
        user = await dashboard.sign_in()
        user.client.headers["sec-fetch-site"] = "same-origin"
        form = (await user.open(f"{AT_ACME}/settings/general")).form()
        link.hold_answers_after(b"UPDATE tenants")
        kept = await user.fill(form, name="Acme Stores")
        link.hold_answers_after(b"no statement has this text")
        assert (kept.status, kept.heading()) == (503, "Not confirmed yet")
        assert MAY_BE_SAVED in kept.text
        assert "data-retry" not in kept.html
        saved = await user.send(kept)
    assert saved.status == 200
    assert "Acme Stores" in saved.text


MAY_BE_SAVED: Final = "The form may have been saved: check before you submit it again."


@asynccontextmanager
async def held_form(
    conninfo: str, user: Person, path: str, **fields: str
) -> AsyncIterator[Task[Page]]:
    """A form that is being processed, and waits for a lock until the end of the block."""
    form = (await user.open(path)).form()
    async with (
        asyncio.timeout(60),
        await psycopg.AsyncConnection.connect(conninfo) as locking,
    ):
        await locking.execute("LOCK TABLE projects IN EXCLUSIVE MODE")
        sending = asyncio.create_task(user.fill(form, name="Storefront", **fields))
        waiting = "SELECT 1 FROM pg_locks WHERE relation = 'projects'::regclass AND NOT granted"
        while not await (await locking.execute(waiting)).fetchone():
            pass
        yield sending


async def test_form_without_a_claim_that_lost_the_database_may_have_been_saved(
    conninfo: str, people: Path
) -> None:
    async with (
        database_link(conninfo) as link,
        running_dashboard(link.conninfo, people) as dashboard,
    ):
        user = await dashboard.sign_in()
        project = (await dashboard.call("POST", "/projects", {"name": "Storefront"}))["id"]
        path = f"{AT_ACME}/projects/{project}/delete"
        async with held_form(conninfo, user, path) as sending:
            await link.cut()
            page = await sending
        await link.restore()
    assert page.status == 503
    assert MAY_BE_SAVED in page.text
    assert "Name Storefront" in page.text
    assert "Nothing was saved" not in page.text


async def test_second_click_on_a_slow_form_may_have_saved_it(dashboard: Dashboard) -> None:
    user = await dashboard.sign_in()
    path = f"{AT_ACME}/projects/new"
    async with held_form(dashboard.conninfo, user, path) as sending:
        page = await user.fill(user.pages[-1].form(), name="Storefront")
    assert (await sending).status == 200
    assert (page.status, page.heading()) == (409, "This form is still being processed")
    assert MAY_BE_SAVED in page.text
    assert "Nothing was saved" not in page.text


async def test_answers_that_depend_on_accept_have_vary(client: httpx2.AsyncClient) -> None:
    answers = [await client.get("/nothing", headers=headers) for headers in (BROWSER, *PROGRAMS)]
    assert {answer.headers["vary"] for answer in answers} == {"Accept"}


async def test_unsupported_method_gets_a_page(client: httpx2.AsyncClient) -> None:
    page = await client.put("/sign-in", headers=BROWSER)
    among_the_pages = await client.delete(f"{AT_ACME}/projects")
    problem = await client.put("/sign-in")
    of_the_api = await client.put("/api/v1/projects", headers=BROWSER)
    for answer in (page, among_the_pages):
        assert (answer.status_code, is_page(answer)) == (405, True)
        assert "Method not allowed" in answer.text
    for answer in (problem, of_the_api):
        assert (answer.status_code, is_problem(answer)) == (405, True)


async def test_missing_object_of_the_api_is_a_problem_in_a_browser_too(
    dashboard: Dashboard,
) -> None:
    answer = await dashboard.api.get("/api/v1/projects/proj_0", headers=BROWSER)
    assert (answer.status_code, is_problem(answer)) == (401, True)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/settings/api-keys", "see API keys"),
        ("/settings/api-keys/new", "create, change or revoke API keys"),
        ("/settings/members", "see members"),
        ("/settings/members/new", "manage members"),
        ("/settings/audit", "see the audit trail"),
    ],
)
async def test_member_sees_the_missing_permission_and_who_has_it(
    dashboard: Dashboard, path: str, words: str
) -> None:
    page = await (await dashboard.sign_in(MIA)).open(AT_ACME + path)
    assert page.status == 403
    assert (
        f"Your role, member, can't {words}. Ask an owner or admin of the organization." in page.text
    )
    assert f"{AT_ACME}/" in page.links
    assert "scope" not in page.text


@pytest.mark.parametrize(
    ("path", "words"),
    [("/settings/transfer", "transfer the organization")],
)
@pytest.mark.parametrize(("user", "role"), [(MIA, "member"), (ADAM, "admin")])
async def test_owner_only_page_names_the_owner(
    dashboard: Dashboard, path: str, words: str, user: DemoUser, role: str
) -> None:
    page = await (await dashboard.sign_in(user)).open(AT_ACME + path)
    assert page.status == 403
    assert f"Your role, {role}, can't {words}. Ask an owner of the organization." in page.text
    assert f"{AT_ACME}/projects" in page.links


async def test_page_of_a_suspended_tenant_offers_other_tenants_and_signing_out(
    dashboard: Dashboard,
) -> None:
    await dashboard.call("POST", "/members", {"userId": "olivia", "role": "member"}, user=BERTA)
    await dashboard.accept_invitations()
    olivia = await dashboard.sign_in(OLIVIA)
    wanted = {"name": "Acme", "ownerEmail": "o@x.example", "suspended": True}
    await dashboard.operate("PUT", "/tenants/acme", {**wanted, "reason": "Invoice 7 is unpaid"})
    page = await olivia.open(AT_ACME)
    assert page.status == 403
    assert "The organization is suspended: Invoice 7 is unpaid." in page.text
    assert {f"{AT_ACME}/", f"{AT_BETA}/"} <= set(page.links)
    assert "acme · suspended" in page.text
    assert not [
        link for link in page.links if link.startswith(f"{AT_ACME}/") and link != f"{AT_ACME}/"
    ]
    assert "You are signed out" in (await olivia.send(page, "/sign-out")).text


async def test_user_of_a_single_suspended_tenant_can_sign_out(dashboard: Dashboard) -> None:
    await dashboard.operate(
        "PUT", "/tenants/beta", {"name": "Beta", "ownerEmail": "b@x.example", "suspended": True}
    )
    berta = await dashboard.sign_in(BERTA)
    page = await berta.open("/")
    assert (page.status, page.path) == (403, f"{AT_BETA}/")
    assert "You are signed out" in (await berta.send(page, "/sign-out")).text


WITH_MENUS: Final = (
    ("/nothing", 404),
    ("/orgs/none", 404),
    ("/orgs/a%20b", 404),
    (AT_BETA, 404),
    (f"{AT_BETA}/projects/prj_none", 404),
    (f"{AT_ACME}/nothing", 404),
    (f"{AT_ACME}/settings", 404),
    (f"{AT_ACME}/projects/a/b/c", 404),
    (f"{AT_BETA}/nothing", 404),
    (f"{AT_ACME}/projects/prj_none", 404),
    (f"{AT_ACME}/settings/api-keys", 403),
    (f"{AT_ACME}/projects?cursor=x", 400),
    (f"{AT_ACME}/events/stream?after=x", 400),
)


async def test_error_page_has_the_menus_of_the_signed_in_user(dashboard: Dashboard) -> None:
    mia = await dashboard.sign_in(MIA)
    mia.client.headers.update(BROWSER)
    for path, status in WITH_MENUS:
        page = await mia.open(path)
        assert page.status == status, path
        assert page.form("/sign-out").fields["form_token"], path
        if path.startswith(f"{AT_ACME}/"):
            assert f"{AT_ACME}/projects" in page.links, path
        else:
            assert f"{AT_ACME}/" in page.links, path  # by the menu
            assert f"{AT_ACME}/projects" not in page.links, path
        assert f"{AT_BETA}/" not in page.links, path


@pytest.mark.parametrize(
    "path", ["projects", "events", "settings/api-keys", "settings/members", "settings/audit"]
)
async def test_invalid_cursor_says_so_in_words_of_the_page(dashboard: Dashboard, path: str) -> None:
    page = await (await dashboard.sign_in()).open(f"{AT_ACME}/{path}?cursor=x")
    assert (page.status, page.heading()) == (400, "Invalid address")
    assert ("Show the first page", f"{AT_ACME}/{path}") in page.anchors
    for word in ("cursor", "API."):
        assert word not in page.text


async def test_api_names_the_missing_scope(dashboard: Dashboard) -> None:
    mia = await dashboard.sign_in(MIA)
    answer = await dashboard.request("GET", "/api-keys", dashboard.token(MIA))
    assert answer.json()["detail"] == "This needs the scope api-keys:read."
    # the cookie is ignored below /api
    assert (await mia.get("/api/v1/api-keys")).status_code == 401
