"""The operator's product on pages: name, logo and accent color."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx2

from tenantry.dashboard.guards import OPERATOR_PAGES
from tests.integration.dashboard.keys import create
from tests.integration.dashboard.test_links import fill_every_page
from tests.support.app import running_app
from tests.support.dashboard import (
    ACME,
    BERTA,
    CUSTOMER,
    MIA,
    NOA,
    OLIVIA,
    Dashboard,
    running_dashboard,
)
from tests.support.dashboard_page import Page
from tests.support.pictures import png
from tests.support.routes import pages, requests_of_every_kind

_EVENT_IDS: Final = re.compile(r"evt_\w+")
"""Those of the tests' events name it."""
_TEXTS: Final = ("title", "detail", "errors")


async def asset(client: httpx2.AsyncClient, page: str, name: str) -> httpx2.Response:
    """The response for the asset that a page links by this name."""
    found = re.search(rf'(?:href|src)="(/assets/\w+/{re.escape(name)})"', page)
    assert found is not None
    return await client.get(found[1])


async def test_pages_show_the_product(conninfo: str, tmp_path: Path) -> None:
    logo = tmp_path / "logo.png"
    logo.write_bytes(png(96, 96))
    async with running_app(
        conninfo,
        PRODUCT_NAME="Nimbus <b>",
        PRODUCT_COLOR="#ffcc00",
        PRODUCT_LOGO=str(logo),
    ) as client:
        for path in ("/sign-in", "/docs"):
            page = (await client.get(path)).text
            assert "Nimbus &lt;b&gt;</title>" in page
            style = await asset(client, page, "product.css")
            assert style.headers["content-type"].startswith("text/css")
            assert "--accent: light-dark(#" in style.text
            picture = await asset(client, page, "product.png")
            assert picture.content == png(96, 96)
            assert picture.headers["content-type"] == "image/png"
            assert picture.headers["x-content-type-options"] == "nosniff"
            assert picture.headers["content-security-policy"] == "default-src 'none'"
        setup = (await client.get("/sign-in")).text
        assert "tenantry" not in setup.lower()
        document = (await client.get("/api/v1/openapi.json")).json()
        assert document["info"]["title"] == "Nimbus <b>"


async def test_pages_show_tenantry_without_settings(conninfo: str) -> None:
    async with running_app(conninfo) as client:
        page = (await client.get("/sign-in")).text
        assert " · tenantry</title>" in page
        assert "/product." not in page


async def test_nothing_that_customers_see_names_tenantry(conninfo: str, people: Path) -> None:
    mail = {"SMTP_URL": "smtp://127.0.0.1:9", "MAIL_FROM": "billing@nimbus.example"}
    async with running_dashboard(
        conninfo, people, PRODUCT_NAME="Nimbus", INVITATIONS="true", **mail
    ) as dashboard:
        ids = await an_object_of_each_kind(dashboard)
        olivia = await dashboard.sign_in(OLIVIA)
        for event_id in (ids["event_id"], *await events_of_grants(dashboard)):
            await olivia.open(f"/orgs/{ACME}/events/{event_id}")
        for path in sorted(pages()):
            if not path.startswith(OPERATOR_PAGES):
                await olivia.open(path.format_map(ids))
        await create(olivia, name="Shown once")
        strangers = [await dashboard.sign_in(user) for user in (MIA, BERTA, NOA)]
        for person in strangers:
            for path in ("/", "/account", "/settings/members", "/events", "/nothing"):
                await person.open(f"/orgs/{ACME}{path}")
        seen = [page for person in (olivia, *strangers) for page in person.pages]
        own = [page for page in seen if str(page.answer.request.url).startswith(dashboard.url)]
        assert {page.status for page in own} >= {200, 403, 404}
        assert {page.path for page in own if names_tenantry(page)} == set()
        assert {page.path for page in own if "/docs" in page.links} == set()
        assert any("$API_KEY" in page.text for page in own)
        assert [text async for text in error_texts(dashboard) if "tenantry" in text.lower()] == []


def names_tenantry(page: Page) -> bool:
    return "tenantry" in _EVENT_IDS.sub("", page.html).lower()


async def an_object_of_each_kind(dashboard: Dashboard) -> dict[str, str]:
    """Return the id of an object of each kind that pages are about, by path parameter; every link
    is on some page.
    """
    await fill_every_page(dashboard, invoice=True)
    for name, gives in (("contract", {"plan": "business"}), ("more", {"limits": {"projects": 90}})):
        terms = {**gives, "reason": "Contract 2027", "until": "2099-01-01T00:00:00Z"}
        await dashboard.operate("PUT", f"/tenants/{ACME}/grants/{name}", terms)
    event, *_ = (await dashboard.call("GET", "/billing/events"))["data"][::-1]
    key, *_ = (await dashboard.call("GET", "/api-keys"))["data"]
    project, *_ = (await dashboard.call("GET", "/projects"))["data"]
    member, *_ = (await dashboard.call("GET", "/members"))["data"]
    invited = {"email": "ida@nimbus.example", "role": "member"}
    invitation = await dashboard.call("POST", "/invitations", invited)
    own, *_ = (await dashboard.call("GET", "/me/memberships"))["data"]
    return {
        "org_id": ACME,
        "event_id": event["id"],
        "key_id": key["id"],
        "project_id": project["id"],
        "member_id": member["id"],
        "invitation_id": invitation["id"],
        "membership_id": own["id"],
        "customer_id": CUSTOMER,
        "name": "contract",
    }


async def events_of_grants(dashboard: Dashboard) -> list[str]:
    entries = (await dashboard.call("GET", "/billing/events"))["data"]
    return [entry["id"] for entry in entries if entry["type"].startswith("tenantry.grant")]


async def error_texts(dashboard: Dashboard) -> AsyncIterator[str]:
    """Yield what the API's errors say, to a caller without a credential and to a member."""
    for credential in ("", dashboard.token(MIA)):
        headers = {"Authorization": f"Bearer {credential}"} if credential else {}
        for method, path in requests_of_every_kind():
            if path.startswith("/api/") and method != "HEAD":
                answer = await dashboard.api.request(method, path, headers=headers)
                if answer.headers.get("content-type") == "application/problem+json":
                    problem = answer.json()
                    yield f"{method} {path}: {[problem.get(name) for name in _TEXTS]}"


SAMPLES: Final = """\
```curl
curl -H "Authorization: Bearer {key}" {base}/v1/reports?a=1&b=</code><script>
```
```Python
nimbus.Client("{key}")
```
"""


async def test_first_request_is_that_of_the_product(
    conninfo: str, people: Path, tmp_path: Path
) -> None:
    samples = tmp_path / "samples.md"
    samples.write_text(SAMPLES)
    async with running_dashboard(
        conninfo,
        people,
        PRODUCT_SAMPLE=str(samples),
        PRODUCT_KEY_VARIABLE="NIMBUS_KEY",
        PRODUCT_DOCS_URL='https://docs.example/?a="><script>',
        PRODUCT_SUPPORT="help@nimbus.example",
    ) as dashboard:
        olivia = await dashboard.sign_in(OLIVIA)
        overview = await olivia.open(f"/orgs/{ACME}/")
        empty = await olivia.open(f"/orgs/{ACME}/settings/api-keys")
        key_id, secret = await create(olivia)
        created = olivia.pages[-1]
        key = await olivia.open(f"/orgs/{ACME}/settings/api-keys/{key_id}")
        again = await olivia.open(f"/orgs/{ACME}/settings/api-keys/{key_id}/created")
    assert f"Bearer {secret}" in created.text
    assert f'nimbus.Client("{secret}")' in created.text
    for page in (overview, empty, key, again):
        assert 'nimbus.Client("$NIMBUS_KEY")' in page.text
        assert f'Bearer $NIMBUS_KEY" {dashboard.url}/v1/reports' in page.text
        assert secret not in page.html
    for page in (overview, empty, created, key, again):
        assert "tenantry_sdk" not in page.html
        assert "<script>" not in page.html
        assert {"mailto:help@nimbus.example", "/docs"} <= set(page.links)
        assert "Account API" in page.text


async def test_page_of_a_suspended_organization_links_the_support(
    conninfo: str, people: Path
) -> None:
    support = "https://help.nimbus.example"
    async with running_dashboard(conninfo, people, PRODUCT_SUPPORT=support) as dashboard:
        await dashboard.execute(
            "UPDATE tenants SET suspended_at = now(), suspension = 'Unpaid' WHERE id = %s", (ACME,)
        )
        page = await (await dashboard.sign_in(OLIVIA)).open(f"/orgs/{ACME}/usage")
    assert page.heading() == "Organization suspended"
    assert "<p><a href=" + f'"{support}"' in page.html
