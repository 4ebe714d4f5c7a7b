"""Every page in a real browser, judged by axe-core: light and dark, on a screen and on a phone."""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

import psycopg
import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect

from tenantry.api.reference import PATH as REFERENCE
from tenantry.app import build_app
from tenantry_devkit.demo.companion import Companion
from tenantry_devkit.identity_tokens import DemoUser
from tenantry_devkit.inbox import Inbox
from tenantry_devkit.serving import serving
from tenantry_devkit.simulator import Simulator
from tests.integration.dashboard.keys import KEYS, NEW, create
from tests.support import events
from tests.support.accessibility import COLOR_RULES, axe, violations_of
from tests.support.app import make_settings
from tests.support.browser import Browsers, Watched
from tests.support.dashboard import (
    ACME,
    ADAM,
    AT_ACME,
    AT_BETA,
    BERTA,
    BETA,
    MIA,
    NELL,
    NOA,
    OLGA,
    OLIVIA,
    Dashboard,
    running_dashboard,
)
from tests.support.postgres import PostgresServer
from tests.support.provider_api import KEY, running_provider
from tests.support.serving import served
from tests.system.test_reference_page_browser import SCHEMES

WIDTHS: Final = (1280, 390)
MEMBERS: Final = f"{AT_ACME}/settings/members"
PROJECTS: Final = f"{AT_ACME}/projects"
AUDIT: Final = f"{AT_ACME}/settings/audit"
DEMO: Final = {
    "TENANTRY_DEMO": "true",
    "INVITATIONS": "true",
    "SMTP_URL": "smtp://127.0.0.1:9",
    "MAIL_FROM": "mail@acme.example",
    "TENANTRY_DEMO_PEOPLE": "olivia=Olivia, the owner;mia=Mia, a member",
    "TENANTRY_DEMO_PAGES": "Mail inbox=http://127.0.0.1:3002/inbox;Payment provider=http://127.0.0.1:3004/",
}
MAIL: Final = (
    b"From: billing@tenantry.example\r\nTo: olivia@acme.example\r\nSubject: A payment failed\r\n"
    b"MIME-Version: 1.0\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<p>A payment failed.</p>\r\n"
)
EMPTY_AND_SEND: Final = """
(form) => {
  for (const field of form.elements) {
    if (field.type === "text") field.value = "";
    if (field.type === "checkbox") field.checked = false;
  }
  form.noValidate = true;
  form.requestSubmit();
}
"""


class Place(NamedTuple):
    """The dashboard of a tenant with something of everything, and the ids of what it has."""

    dashboard: Dashboard
    ids: dict[str, str]


@pytest.fixture(scope="module")
def source() -> str:
    return axe()


@pytest.fixture(scope="module")
async def place(
    source: str, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Place]:
    assert source  # before anything is started that only this needs
    async with AsyncExitStack() as stack:
        conninfo = stack.enter_context(postgres.database())
        provider = await stack.enter_async_context(running_provider())
        values = {"PROVIDER_SECRET_KEY": KEY, "PROVIDER_API_BASE": provider.url, **DEMO}
        folder = tmp_path_factory.mktemp("people")
        dashboard = await stack.enter_async_context(running_dashboard(conninfo, folder, **values))
        yield Place(dashboard, await fill_every_page(dashboard, conninfo))


async def fill_every_page(dashboard: Dashboard, conninfo: str) -> dict[str, str]:
    """Something of everything; returns ids by what they are of."""
    olivia = await dashboard.sign_in(OLIVIA)
    _, owner = await create(
        olivia, name="Everything", scope=[], access="owner", sure="1", expiry="never"
    )
    key, secret = await create(
        olivia, name="In use", scope=["projects:read", "projects:write", "billing:read"]
    )
    await dashboard.use_key(key, secret)
    kinds = {"Test": {"mode": "test"}, "Ends soon": {}, "Old": {}, "Revoked": {}, "Expired": {}}
    ids = {name: (await create(olivia, name=name, **fields))[0] for name, fields in kinds.items()}
    await dashboard.request("DELETE", f"/api-keys/{ids['Revoked']}", owner)
    rotated = await dashboard.request(
        "POST", f"/api-keys/{ids['Old']}/rotate", owner, {"overlapSeconds": 3600}
    )
    assert rotated.is_success, rotated.text
    ids |= {"In use": key, "Everything": rotated.json()["id"]}
    mailed = await dashboard.call(
        "POST", "/invitations", {"email": "grace@acme.example", "role": "member"}
    )
    ids["by mail"] = mailed["id"]
    for name in ("Storefront", "Warehouse"):
        made = await dashboard.request(
            "POST", "/projects", owner, {"name": name, "description": f"The {name.lower()}."}
        )
        ids["project"] = made.json()["id"]
    for user in (ADAM, MIA):
        added = await dashboard.request(
            "POST", "/members", owner, {"userId": user.sub, "role": user.role}
        )
        ids[user.sub] = added.json()["id"]
    await dashboard.accept_invitations()
    invited = await dashboard.request(
        "POST", "/members", owner, {"userId": "invited", "role": "member"}
    )
    ids["invited"] = invited.json()["id"]
    gone = await dashboard.request("POST", "/members", owner, {"userId": "gone", "role": "member"})
    ids["gone"] = gone.json()["id"]
    await dashboard.request("DELETE", f"/members/{ids['gone']}", owner)
    await dashboard.deliver(events.updated(event_id="evt_1"))
    await dashboard.deliver(
        events.updated(event_id="evt_odd", price="price_unknown", created=events.NOW + 1)
    )
    await dashboard.deliver(events.failed(event_id="evt_failed", created=events.NOW + 2))
    contract = {"plan": "business", "until": "2034-01-01T00:00:00Z", "reason": "Contract 2027-014"}
    await dashboard.operate("PUT", f"/tenants/{ACME}/grants/contract", contract)
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        for name, days in (("Expired", -1), ("Ends soon", 7)):
            await connection.execute(
                "UPDATE api_keys SET expires_at = now() + %s * interval '1 day' WHERE id = %s",
                (days, ids[name]),
            )
        for outcome in ("accepted", "rate_limited", "forbidden"):
            await connection.execute(
                "INSERT INTO usage_days (org_id, day, key_id, outcome, number) "
                "VALUES (%s, date_trunc('day', now(), 'UTC'), %s, %s, 12)",
                (ACME, ids["In use"], outcome),
            )
        await connection.execute(
            "INSERT INTO rejections (id, org_id, kind, principal, mode, minute, code, needed, route, status, at, "
            "request_id, address, counted) "
            "VALUES ('rejection_1', %s, 'api_key', %s, 'live', now(), 'insufficient_scope', 'projects:write', "
            "'/api/v1/projects', 403, now(), '5e0c4ad1c1f24b7f9a0b6f9f6d0c7a51', '203.0.113.7', 12)",
            (ACME, ids["In use"]),
        )
        await connection.execute(
            "INSERT INTO memberships (issuer, subject, tenant_id, role) "
            "SELECT issuer, %s, %s, 'member' FROM memberships WHERE subject = %s",
            (OLIVIA.sub, BETA, OLIVIA.sub),
        )
    return ids


@pytest.fixture(scope="module")
async def owners(browsers: Browsers, place: Place) -> AsyncIterator[BrowserContext]:
    context = await enter(await browsers.connected(), place.dashboard, OLIVIA)
    yield context
    await context.close()


@pytest.fixture(scope="module")
async def members(browsers: Browsers, place: Place) -> AsyncIterator[BrowserContext]:
    context = await enter(await browsers.connected(), place.dashboard, MIA)
    yield context
    await context.close()


@pytest.fixture(scope="module")
async def operators(browsers: Browsers, place: Place) -> AsyncIterator[BrowserContext]:
    olga = await place.dashboard.sign_in(OLGA)
    form = await olga.open(f"/operator{NEW}")
    await olga.send(form, name="By support", scopes="projects:read")
    context = await enter(await browsers.connected(), place.dashboard, OLGA)
    yield context
    await context.close()


async def enter(browser: Browser, dashboard: Dashboard, user: DemoUser) -> BrowserContext:
    """A browser with a signed-in user."""
    context = await browser.new_context(reduced_motion="reduce", base_url=dashboard.url)
    page = await context.new_page()
    answer = await page.goto(dashboard.start_of(user))
    assert answer is not None
    assert answer.ok
    await page.close()
    return context


async def judge(page: Page, source: str, watched: Watched, part: str = "html") -> None:
    """Nothing is wrong with the page as it is now, at any width, in light or dark, and the browser
    did not complain.

    ``part`` is a selector of what is looked at. In dark only the rules about colors are applied:
    the others do not depend on the scheme.
    """
    found: dict[str, list[str]] = {}
    for scheme, width in itertools.product(SCHEMES, WIDTHS):
        await page.set_viewport_size({"width": width, "height": 844})
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        for violation in await violations_of(
            page, source, part, COLOR_RULES if scheme == "dark" else ()
        ):
            found.setdefault(violation, []).append(f"{scheme} {width}")
    assert found == {}
    assert watched.complaints == []


async def judge_address(
    context: BrowserContext, source: str, address: str, status: int = 200
) -> None:
    """The same of a page by its address, whose answer has this status."""
    page = await context.new_page()
    watched = Watched(page)
    answer = await page.goto(address)
    assert answer is not None
    assert answer.status == status
    # that a page is about what went wrong, the browser writes to its console
    watched.complaints = [one for one in watched.complaints if f"status of {status}" not in one]
    await judge(page, source, watched)
    await page.close()


OWNERS_PAGES: Final = (
    f"{AT_ACME}/",
    f"{AT_ACME}/settings/general",
    f"{AT_ACME}/settings/general/delete",
    f"{AT_ACME}/billing",
    f"{AT_ACME}/billing/invoices",
    f"{AT_ACME}/search?q=a",
    f"{AT_ACME}/usage",
    f"{AT_ACME}/usage?by=outcome&range=24h",
    f"{AT_ACME}/usage?by=key&range=90d",
    f"{AT_ACME}/usage/rejections",
    f"{AT_ACME}/usage/rejections?code=rate_limited",
    f"{AT_ACME}/billing?awaits=pro",
    f"{AT_ACME}/events",
    f"{AT_ACME}/events?all=yes",
    f"{AT_ACME}/events?search=nothing",
    f"{AT_ACME}/events/evt_1",
    f"{AT_ACME}/events/evt_odd",
    f"{AT_ACME}/events/evt_failed",
    KEYS,
    NEW,
    f"{KEYS}?status=revoked",
    f"{KEYS}?order=requests",
    f"{KEYS}/{{In use}}",
    f"{KEYS}/{{In use}}/edit",
    f"{KEYS}/{{In use}}/rotate",
    f"{KEYS}/{{In use}}/revoke",
    f"{KEYS}/{{In use}}/first-use",
    f"{KEYS}/{{Test}}/first-use",
    f"{KEYS}/{{Old}}",
    f"{KEYS}/{{Everything}}",
    f"{KEYS}/{{Revoked}}",
    f"{KEYS}/{{Expired}}",
    PROJECTS,
    f"{PROJECTS}/new",
    f"{PROJECTS}/{{project}}",
    f"{PROJECTS}/{{project}}/edit",
    f"{PROJECTS}/{{project}}/delete",
    MEMBERS,
    f"{MEMBERS}?status=removed",
    f"{MEMBERS}?search=missing",
    f"{MEMBERS}/identity-provider",
    f"{MEMBERS}/invitations",
    f"{MEMBERS}/invitations?status=closed",
    f"{MEMBERS}/invitations/new",
    f"{MEMBERS}/invitations/{{by mail}}",
    f"{MEMBERS}/invitations/{{by mail}}/withdraw",
    f"{MEMBERS}/new",
    f"{MEMBERS}/{{mia}}",
    f"{MEMBERS}/{{mia}}/remove",
    f"{MEMBERS}/{{gone}}",
    f"{MEMBERS}/{{invited}}",
    f"{MEMBERS}/{{invited}}/remove",
    f"{AT_ACME}/settings/transfer",
    "/account",
    "/account?name=nothing",
    "/account/new-organization",
    AUDIT,
    f"{AUDIT}?action=api_key.created",
    f"{AUDIT}?actorId=missing",
)


@pytest.mark.parametrize("path", OWNERS_PAGES)
async def test_an_owners_page(owners: BrowserContext, place: Place, source: str, path: str) -> None:
    await judge_address(owners, source, path.format(**place.ids))


OF_CUSTOMER: Final = f"/operator{AT_ACME}"
OPERATORS_PAGES: Final = (
    f"{OF_CUSTOMER}/",
    f"{OF_CUSTOMER}/suspend",
    f"{OF_CUSTOMER}/resume",
    f"{OF_CUSTOMER}/verify-owner-address",
    f"{OF_CUSTOMER}/billing",
    f"{OF_CUSTOMER}/billing/customers/new",
    f"{OF_CUSTOMER}/billing/customers/cus_acme/move",
    f"{OF_CUSTOMER}/billing/customers/cus_acme/unlink",
    f"{OF_CUSTOMER}/billing/grants/new",
    f"{OF_CUSTOMER}/billing/grants/contract/edit",
    f"{OF_CUSTOMER}/billing/grants/contract/end",
    f"{OF_CUSTOMER}/mails",
    f"{OF_CUSTOMER}/settings/general",
    f"/operator{AT_BETA}/",
    f"/operator{AT_BETA}/billing",
    f"/operator{AT_BETA}/mails",
    "/operator",
    "/operator?search=acme",
    "/operator?search=nothing",
    "/operator/acts",
    "/operator/acts?person=nobody",
    "/operator/confirmed",
    f"/operator{AUDIT}",
    f"/operator{AT_ACME}/search?q=a",
)


@pytest.mark.parametrize("path", OPERATORS_PAGES)
async def test_an_operators_page(operators: BrowserContext, source: str, path: str) -> None:
    await judge_address(operators, source, path)


@pytest.mark.parametrize(
    "path",
    [
        f"{OF_CUSTOMER}/suspend",
        f"{OF_CUSTOMER}/billing/customers/new",
        f"{OF_CUSTOMER}/billing/grants/new",
    ],
)
async def test_a_rejected_form_of_an_operator(
    operators: BrowserContext, source: str, path: str
) -> None:
    page = await operators.new_page()
    watched = Watched(page)
    await page.goto(path)
    await page.locator("main form").evaluate(EMPTY_AND_SEND)
    await expect(page.locator(".fault").first).to_be_visible()
    watched.complaints = [one for one in watched.complaints if "status of 422" not in one]
    await judge(page, source, watched)
    await page.close()


@pytest.mark.parametrize(
    "path", ["/", "/projects", "/events", "/events/evt_failed", "/billing", "/settings/general"]
)
async def test_a_members_page(members: BrowserContext, source: str, path: str) -> None:
    await judge_address(members, source, AT_ACME + path)


@pytest.mark.parametrize("path", ["/", "/projects", "/events", "/billing"])
async def test_a_page_where_there_is_nothing_yet(
    owners: BrowserContext, source: str, path: str
) -> None:
    await judge_address(owners, source, AT_BETA + path)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{PROJECTS}/prj_none", 404),
        (f"{AUDIT}?actorId={'a' * 300}", 422),
        (f"{AT_ACME}/usage?since=2020-01-01", 422),
    ],
)
async def test_a_page_about_what_went_wrong(
    owners: BrowserContext, source: str, path: str, status: int
) -> None:
    await judge_address(owners, source, path, status)


async def test_a_page_that_is_not_for_members(members: BrowserContext, source: str) -> None:
    await judge_address(members, source, KEYS, 403)


async def test_a_page_of_a_tenant_that_shows_nothing(owners: BrowserContext, source: str) -> None:
    await judge_address(owners, source, "/orgs/none", 404)
    await judge_address(owners, source, f"{AT_ACME}/none", 404)


async def test_a_form_of_a_session_that_has_ended(
    browser: Browser, place: Place, source: str
) -> None:
    context = await enter(browser, place.dashboard, OLIVIA)
    page = await context.new_page()
    watched = Watched(page)
    await page.goto(f"{PROJECTS}/new")
    await page.get_by_label("Name").fill("A long story")
    await context.clear_cookies()
    await page.get_by_role("button", name="Create project").click()
    await expect(page.get_by_role("heading", name="Your session has ended")).to_be_visible()
    watched.complaints = [one for one in watched.complaints if "status of 401" not in one]
    await judge(page, source, watched)
    other = await context.new_page()
    await other.goto(place.dashboard.start_of(OLIVIA))
    await page.get_by_role("button", name="Submit", exact=True).click()
    await expect(page.get_by_role("heading", name="Submit this form?")).to_be_visible()
    watched.complaints = [one for one in watched.complaints if "status of 403" not in one]
    await judge(page, source, watched)
    await context.close()


async def test_the_confirmation_of_an_operator(browser: Browser, place: Place, source: str) -> None:
    context = await enter(browser, place.dashboard, OLGA)
    await judge_address(context, source, "/operator/confirmed")
    await place.dashboard.execute("UPDATE dashboard_sessions SET authenticated_at = NULL")
    await judge_address(context, source, "/operator/confirmed", 403)
    page = await context.new_page()
    watched = Watched(page)
    await page.goto(f"/operator{PROJECTS}/new")
    await page.get_by_label("Name").fill("By support")
    await page.get_by_role("button", name="Create project").click()
    await expect(page.get_by_role("heading", name="Confirm that it is you")).to_be_visible()
    watched.complaints = [one for one in watched.complaints if "status of 401" not in one]
    await judge(page, source, watched)
    await context.close()


async def test_what_a_form_did(owners: BrowserContext, place: Place, source: str) -> None:
    page = await owners.new_page()
    watched = Watched(page)
    await page.goto(f"{MEMBERS}/{place.ids['mia']}")
    await page.get_by_role("button", name="Change role").click()
    await expect(page.get_by_role("status")).to_contain_text("Role changed.")
    await judge(page, source, watched)
    await page.close()


async def test_the_reference(owners: BrowserContext, source: str) -> None:
    await judge_address(owners, source, REFERENCE)


@pytest.mark.parametrize(
    ("path", "link"),
    [
        (f"{KEYS}/{{In use}}", "Rotate"),
        (f"{KEYS}/{{In use}}", "Revoke"),
        (f"{PROJECTS}/{{project}}", "Delete"),
        (f"{MEMBERS}/{{mia}}", "Remove"),
        (f"{MEMBERS}/{{invited}}", "Withdraw invitation"),
        (f"{MEMBERS}/invitations/{{by mail}}", "Withdraw"),
    ],
)
async def test_a_dialog(
    owners: BrowserContext, place: Place, source: str, path: str, link: str
) -> None:
    page = await owners.new_page()
    watched = Watched(page)
    await page.goto(path.format(**place.ids))
    await page.locator("main").get_by_role("link", name=link, exact=True).click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await judge(page, source, watched)
    await page.close()


async def test_the_checker_sees_violations(browser: Browser, source: str) -> None:
    page = await browser.new_page()
    await page.set_content(
        "<p style='color: #999'>Grey</p><img src='/x.png'><button>A</button><button>B</button>"
    )
    found = {violation.partition(":")[0] for violation in await violations_of(page, source)}
    await page.close()
    assert found >= {"color-contrast", "image-alt", "document-title", "landmark-one-main"}


@pytest.mark.parametrize("menu", [0, 1])
async def test_a_menu(owners: BrowserContext, source: str, menu: int) -> None:
    page = await owners.new_page()
    watched = Watched(page)
    await page.goto(AT_ACME)
    await page.locator(".menu summary").nth(menu).click()
    # What it covers meanwhile is not to be used, and so not judged.
    await judge(page, source, watched, ".menu[open]")
    await page.close()


async def test_the_drawer(owners: BrowserContext, source: str) -> None:
    page = await owners.new_page()
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(AT_ACME)
    await page.get_by_role("button", name="Menu").click()
    assert await violations_of(page, source, "#rail") == []
    await page.close()


async def test_what_an_entry_of_the_trail_unfolds(owners: BrowserContext, source: str) -> None:
    page = await owners.new_page()
    watched = Watched(page)
    await page.goto(AUDIT)
    for details in await page.locator(".trail details").all():
        await details.locator("summary").click()
    await judge(page, source, watched)
    await page.close()


@pytest.mark.parametrize(
    "path",
    [
        NEW,
        f"{KEYS}/{{In use}}/edit",
        f"{KEYS}/{{In use}}/revoke",
        f"{PROJECTS}/new",
        f"{PROJECTS}/{{project}}/delete",
        f"{MEMBERS}/new",
        f"{MEMBERS}/invitations/new",
        f"{AT_ACME}/settings/transfer",
    ],
)
async def test_a_form_with_invalid_fields(
    owners: BrowserContext, place: Place, source: str, path: str
) -> None:
    page = await owners.new_page()
    watched = Watched(page)
    await page.goto(path.format(**place.ids))
    await page.locator("main form").evaluate(EMPTY_AND_SEND)
    await expect(page.locator(".fault, [role=alert]").first).to_be_visible()
    watched.complaints = [one for one in watched.complaints if "status of 422" not in one]
    await judge(page, source, watched)
    await page.close()


async def test_the_secret_of_a_new_key(owners: BrowserContext, source: str) -> None:
    page = await owners.new_page()
    watched = Watched(page)
    await page.goto(NEW)
    once = await page.locator("[name=once]").input_value()
    for attempt in ("shown", "shown before"):
        await page.goto(NEW)
        await page.locator("[name=once]").evaluate("(field, once) => { field.value = once; }", once)
        await page.get_by_role("textbox", name="Name").fill("Shop")
        await page.get_by_label("Chosen scopes").check()
        await page.get_by_role("checkbox", name="projects:read").check()
        await page.get_by_role("button", name="Create key").click()
        if attempt == "shown":
            await expect(page.locator(".secret")).to_be_visible()
            await judge(page, source, watched)
            await page.locator("#saved").check()
    await expect(page.get_by_text("It created this key, and no second one.")).to_be_visible()
    await expect(page.locator(".secret")).to_have_count(0)
    await judge(page, source, watched)
    await page.close()


async def test_the_way_to_the_payment_provider(browser: Browser, place: Place, source: str) -> None:
    context = await enter(browser, place.dashboard, OLIVIA)
    await context.route("https://*.provider.example/**", lambda route: route.fulfill(status=204))
    page = await context.new_page()
    watched = Watched(page)
    await page.goto(f"{AT_ACME}/billing")
    await page.get_by_role("button", name="Update payment method").click()
    await expect(
        page.get_by_role("heading", name="Redirecting to the payment provider")
    ).to_be_visible()
    await judge(page, source, watched)
    await context.close()


# Without a session


@pytest.mark.parametrize(
    ("path", "status"), [("/sign-in", 200), ("/signed-out", 200), ("/sign-in/callback", 400)]
)
async def test_a_page_of_signing_in(
    browser: Browser, place: Place, source: str, path: str, status: int
) -> None:
    context = await browser.new_context(base_url=place.dashboard.url)
    await judge_address(context, source, path, status)
    await context.close()


async def test_the_page_of_an_invitation(
    browser: Browser, conninfo: str, tmp_path: Path, source: str
) -> None:
    mail = {"SMTP_URL": "smtp://127.0.0.1:9", "MAIL_FROM": "mail@acme.example"}
    async with running_dashboard(conninfo, tmp_path, INVITATIONS="true", **mail) as dashboard:
        paths = {}
        for email in (str(NOA.email), "another@x.example"):
            body = {"email": email, "role": "member"}
            made = await dashboard.call("POST", "/invitations", body)
            link = await dashboard.call("GET", f"/invitations/{made['id']}/link")
            paths[email] = str(link["url"])
        signed_out = await browser.new_context(base_url=dashboard.url)
        await judge_address(signed_out, source, paths[str(NOA.email)], 200)
        await judge_address(signed_out, source, "/invitation?token=x", 404)
        await signed_out.close()
        for user in (NOA, NELL, OLIVIA):
            context = await enter(browser, dashboard, user)
            for path in paths.values():
                await judge_address(context, source, path, 200)
            await context.close()


async def test_a_user_without_an_organization(
    browser: Browser, conninfo: str, tmp_path: Path, source: str
) -> None:
    async with running_dashboard(conninfo, tmp_path) as dashboard:
        await dashboard.operate("DELETE", f"/tenants/{BETA}")
        context = await enter(browser, dashboard, BERTA)
        page = await context.new_page()
        watched = Watched(page)
        await page.goto("/")
        await expect(
            page.get_by_role("heading", name="You don't belong to an organization yet")
        ).to_be_visible()
        await judge(page, source, watched)
        await context.close()


async def test_a_service_without_an_identity_provider(
    browser: Browser, postgres: PostgresServer, source: str
) -> None:
    with postgres.database() as conninfo:
        async with served(build_app(make_settings(), conninfo)) as address:
            context = await browser.new_context()
            await judge_address(context, source, f"{address}/sign-in", 404)
            await context.close()


# Beside the service


async def test_the_pages_of_the_development_services(
    browser: Browser, source: str, tmp_path: Path
) -> None:
    inbox = Inbox(tmp_path / "inbox")
    mail = inbox.store(MAIL, sender="billing@tenantry.example", recipients=["olivia@acme.example"])
    companion = Companion(tmp_path, users=(OLIVIA, BERTA), audience="a", client_id="c", inbox=inbox)
    question = (
        "/authorize?client_id=c&response_type=code&redirect_uri=http://127.0.0.1:9/&scope=openid"
        "&code_challenge_method=S256&code_challenge=" + "x" * 43
    )
    with companion:
        context = await browser.new_context(base_url=companion.http_url)
        for path in ("/inbox", f"/inbox/{mail}", "/device", question):
            await judge_address(context, source, path)
        await judge_address(context, source, "/inbox/none", 404)
        await context.close()


async def test_the_pages_of_the_simulated_payment_provider(browser: Browser, source: str) -> None:
    async with serving(Simulator()) as sim:
        customer = sim.customer("cus_acme", name="Acme")
        sim.subscribe(customer, "price_pro")
        sim.card_declines(customer)
        await sim.advance(days=31)
        invoices = [invoice.hosted_invoice_url or "" for invoice in sim.invoices.values()]
        context = await browser.new_context(base_url=sim.url)
        session = sim.checkout("price_pro", metadata={"orgId": ACME})
        for path in ("/", session.url or "", sim.portal("cus_acme").url, invoices[0], invoices[-1]):
            await judge_address(context, source, path)
        await judge_address(context, source, "/c/pay/cs_none", 404)
        await context.close()


LISTS: Final = (
    KEYS,
    MEMBERS,
    f"{MEMBERS}/invitations",
    PROJECTS,
    AUDIT,
    f"{AT_ACME}/usage/rejections",
    f"{AT_ACME}/usage?by=key",
)
"""Those whose rows lead to what they cut. The billing history shows whole sentences."""
ROWS: Final = "main .table tbody tr:not(.trail *), main .trail summary"
TWO_LINES: Final = 72
"""The height of three lines is 79."""


@pytest.mark.parametrize("path", LISTS)
async def test_a_row_of_a_list_has_two_lines_on_a_phone(owners: BrowserContext, path: str) -> None:
    page = await owners.new_page()
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(path)
    for table in await page.locator(".chart summary").all():
        await table.click()
    rows = await page.locator(ROWS).all()
    assert rows
    heights = [await row.evaluate("(row) => row.getBoundingClientRect().height") for row in rows]
    assert max(heights) < TWO_LINES
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    await page.close()
