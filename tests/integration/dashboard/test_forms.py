"""Forms of another site or session are rejected; headers of every page."""

import re
from typing import Final

import pytest

from tenantry_devkit.identity_tokens import DemoUser
from tests.support.dashboard import ADAM, MIA, OLIVIA, Dashboard, Person
from tests.support.dashboard_page import Page

OUT: Final = "/sign-out"


async def is_signed_in(user: Person) -> bool:
    return (await user.get("/orgs/acme/")).status_code == 200


async def test_form_of_the_session_is_processed(dashboard: Dashboard) -> None:
    user = await dashboard.sign_in(MIA)
    answer = await user.client.post(OUT, data={"form_token": user.form_token()})
    assert answer.status_code == 303
    assert not await is_signed_in(user)


async def test_form_of_another_session_is_rejected(dashboard: Dashboard) -> None:
    user, other = await dashboard.sign_in(OLIVIA), await dashboard.sign_in(ADAM)
    for form_token in ("", "0" * 64, other.form_token()):
        answer = await user.client.post(OUT, data={"form_token": form_token})
        assert answer.status_code == 403
        assert "This form is invalid" in answer.text
    assert await is_signed_in(user)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_form_from_another_site_is_rejected(dashboard: Dashboard, site: str) -> None:
    user = await dashboard.sign_in(OLIVIA)
    form = {"form_token": user.form_token()}
    answer = await user.client.post(OUT, data=form, headers={"sec-fetch-site": site})
    assert answer.status_code == 403
    assert await is_signed_in(user)


@pytest.mark.parametrize(
    "kind", ["application/json", "text/plain", "multipart/form-data; boundary=x", ""]
)
async def test_form_of_another_content_type_is_rejected(dashboard: Dashboard, kind: str) -> None:
    user = await dashboard.sign_in(OLIVIA)
    content = f"form_token={user.form_token()}".encode()
    answer = await user.client.post(OUT, content=content, headers={"content-type": kind})
    assert answer.status_code == 400
    assert await is_signed_in(user)


async def test_oversized_form_is_rejected(dashboard: Dashboard) -> None:
    user = await dashboard.sign_in(OLIVIA)
    form = {"form_token": user.form_token(), "more": "x" * 100_000}
    assert (await user.client.post(OUT, data=form)).status_code == 413


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            "/orgs/acme/settings/transfer",
            {"userId": "adam\0", "ownerEmail": "a@acme.example", "name": "Acme Inc."},
        ),
        ("/orgs/acme/settings/members/new", {"userId": "a\0", "role": "nobody"}),
        ("/orgs/acme/settings/api-keys/new", {"replaces": "\0", "access": "scoped"}),
        ("/orgs/acme/projects/new", {"name": "\0"}),
    ],
)
async def test_nul_in_a_form_is_ignored(
    dashboard: Dashboard, path: str, fields: dict[str, str]
) -> None:
    user = await dashboard.sign_in(OLIVIA)
    assert (await user.force(path, **fields)).status == 422


NEW: Final = "/orgs/acme/projects/new"
FROM_HERE: Final = {"sec-fetch-site": "same-origin"}
TYPED: Final = {
    "name": 'Shop "<b>1</b>"',
    "description": "One\r\ntwo",
    "once": "o" * 22,
    "form_token": "of-a-session-before",
}
AS_TYPED: Final = {name: [text] for name, text in TYPED.items() if name != "form_token"}


def typed_in(page: Page) -> dict[str, list[str]]:
    """Return what the form of a page sends, without its token."""
    fields = dict(page.form().fields)
    fields.pop("form_token")
    return fields


@pytest.fixture
async def signed_out(dashboard: Dashboard) -> Person:
    """A user whose session has ended."""
    person = await dashboard.sign_in(OLIVIA)
    person.client.cookies.clear()
    return person


async def test_form_without_a_session_is_rejected_with_an_explanation(signed_out: Person) -> None:
    answer = await signed_out.client.post(NEW, data=TYPED)
    assert answer.status_code == 401
    assert "Nothing was saved." in answer.text


@pytest.mark.parametrize("user", [OLIVIA, ADAM], ids=["same person", "another person"])
async def test_form_of_an_ended_session_asks_whoever_signs_in_next(
    dashboard: Dashboard, signed_out: Person, user: DemoUser
) -> None:
    signed_out.client.headers.update(FROM_HERE)
    response = Page(await signed_out.client.post(NEW, data=TYPED))
    assert response.status == 401
    assert "Nothing was saved yet. This page keeps your input" in response.text
    assert "Sign in in a new tab" in response.text
    assert typed_in(response) == AS_TYPED
    assert "b" not in response.tags
    again = await signed_out.send(response)
    assert typed_in(again) == AS_TYPED, again.text  # still signed out

    await signed_out.client.get(dashboard.start_of(user), follow_redirects=True)
    asked = await signed_out.send(response)
    assert (asked.status, asked.heading()) == (403, "Submit this form?")
    assert f"You are now signed in as {user.name}." in asked.text
    assert (await dashboard.call("GET", "/projects"))["data"] == []
    made = await signed_out.send(asked)
    assert (made.status, "One two" in made.text) == (200, True)


async def test_form_of_another_session_returns_filled_in(dashboard: Dashboard) -> None:
    user = await dashboard.sign_in(OLIVIA)
    user.client.headers.update(FROM_HERE)
    asked = Page(await user.client.post(NEW, data=TYPED))
    assert (asked.status, asked.path) == (403, NEW)
    assert "opened in another session. You are now signed in as Olivia Owner." in asked.text
    assert "session has ended" not in asked.text
    assert "Name Shop" in asked.text
    assert typed_in(asked) == AS_TYPED
    assert (await user.send(asked)).status == 200


@pytest.mark.parametrize(
    ("user", "status", "why"),
    [(OLIVIA, 404, "Page not found"), (MIA, 403, "Your role")],
    ids=["object removed", "right removed"],
)
async def test_form_about_something_removed_keeps_the_text(
    dashboard: Dashboard, user: DemoUser, status: int, why: str
) -> None:
    project = (await dashboard.call("POST", "/projects", {"name": "Short-lived"}))["id"]
    path = f"/orgs/acme/projects/{project}/edit"
    if user is MIA:
        path = "/orgs/acme/settings/general"
    else:
        await dashboard.call("DELETE", f"/projects/{project}")
    person = await dashboard.sign_in(user)
    fields = {"form_token": person.form_token(), "name": "Much thought", "description": "x"}
    answer = Page(await person.client.post(path, data=fields, headers=FROM_HERE))
    assert answer.status == status
    assert why in answer.text
    assert "Nothing was saved." in answer.text
    assert "Much thought" in answer.text
    elsewhere = await person.client.post(path, data={**fields, "form_token": "x"})
    assert "Much thought" not in elsewhere.text


@pytest.mark.parametrize(
    "headers", [{}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}]
)
async def test_form_from_elsewhere_is_not_offered_for_resubmission(
    dashboard: Dashboard, signed_out: Person, headers: dict[str, str]
) -> None:
    for person in (signed_out, await dashboard.sign_in(OLIVIA)):
        answer = await person.client.post(NEW, data=TYPED, headers=headers)
        assert answer.status_code in (401, 403)
        assert "Shop" not in answer.text


@pytest.mark.parametrize("content", [b"x" * 100_000, b"\xff=%ff&=&==", b""])
async def test_malformed_form_gets_an_error_page(signed_out: Person, content: bytes) -> None:
    headers = {**FROM_HERE, "content-type": "application/x-www-form-urlencoded"}
    assert (await signed_out.client.post(NEW, content=content, headers=headers)).status_code == 401


async def test_signing_out_twice_succeeds(signed_out: Person) -> None:
    for headers in ({}, FROM_HERE, {"sec-fetch-site": "cross-site"}):
        answer = await signed_out.client.post(OUT, data={"form_token": "x"}, headers=headers)
        assert (answer.status_code, answer.headers["location"]) == (303, "/signed-out")
        # else another site could delete the session's cookie
        assert "set-cookie" not in answer.headers


PAGES: Final = (
    "/sign-in",
    "/signed-out",
    "/orgs/acme/",
    "/orgs/acme/settings/api-keys",
    "/orgs/nowhere/",
)


@pytest.mark.parametrize("path", PAGES)
async def test_pages_cannot_load_foreign_content_or_be_framed(
    dashboard: Dashboard, path: str
) -> None:
    user = await dashboard.sign_in(OLIVIA)
    answer = await user.get(path)
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == {
        "'self'"
    }
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert not re.search(r"<script(?![^>]+src=)|<style|\sstyle=|\son[a-z]+=", answer.text)
    assert len(answer.content) < 50_000


async def test_assets_are_cached_under_an_address_with_their_digest(dashboard: Dashboard) -> None:
    page = (await dashboard.api.get("/sign-in")).text
    addresses = re.findall(r'(?:href|src)="(/assets/[^"]+)"', page)
    assert len(addresses) >= 3
    sizes = {}
    for address in addresses:
        answer = await dashboard.api.get(address)
        assert "immutable" in answer.headers["cache-control"]
        sizes[address.rpartition("/")[2]] = len(answer.content)
    assert sum(sizes.values()) < 68_000, "of 100 kB for a first load, pages need some"
    for digest in ("of-another-release", addresses[0].split("/")[2][1:]):
        other = await dashboard.api.get(f"/assets/{digest}/base.css")
        assert (other.status_code, other.headers["cache-control"]) == (200, "no-store")
    assert (
        await dashboard.api.get(addresses[0].rpartition("/")[0] + "/nothing.css")
    ).status_code == 404


FIELD: Final = re.compile(r"<(?:input|textarea|select)\b[^>]*>")
TAG: Final = re.compile(r'<form\b[^>]*method="post"[^>]*>.*?</form>', re.DOTALL)


async def test_every_form_tells_required_fields_and_their_faults_in_one_way(
    dashboard: Dashboard,
) -> None:
    owner = await dashboard.sign_in(OLIVIA)
    member = await dashboard.add_member("mia")
    project = (await dashboard.call("POST", "/projects", {"name": "One"}))["id"]
    key = (
        await dashboard.call(
            "POST", "/api-keys", {"orgId": "acme", "name": "CI", "scopes": ["projects:read"]}
        )
    )["id"]
    own = await dashboard.page_of("olivia")
    paths = [
        "/orgs/acme/projects/new",
        f"/orgs/acme/projects/{project}",
        f"/orgs/acme/projects/{project}/edit",
        "/orgs/acme/settings/api-keys/new",
        f"/orgs/acme/settings/api-keys/{key}",
        f"/orgs/acme/settings/api-keys/{key}/edit",
        f"/orgs/acme/settings/api-keys/{key}/revoke",
        f"/orgs/acme/settings/api-keys/{key}/rotate",
        "/orgs/acme/settings/members/new",
        "/orgs/acme/settings/members/new?userId=olivia",
        member,
        own,
        "/orgs/acme/settings/transfer",
    ]
    pages = [await owner.open(path) for path in paths]
    pages.append(
        await (await dashboard.sign_in(MIA)).open(
            f"/account/memberships/{member.rpartition('/')[2]}/leave"
        )
    )
    seen = set()
    for page in pages:
        path = page.path
        for form in TAG.findall(page.html):
            fields = [
                field
                for field in FIELD.findall(form)
                if not re.search('type="(?:hidden|radio)"', field)
            ]
            assert not fields or "novalidate" in form.partition(">")[0], (path, form[:200])
            for field in fields:
                [name] = re.findall(r'\bid="([^"]+)"', field)
                [label] = re.findall(
                    rf'<label for="{re.escape(name)}">(.*?)</label>', form, re.DOTALL
                )
                is_optional = "(optional)" in label
                is_choice = field.startswith("<select") or name.startswith(("scope-", "enabled"))
                seen.add(name)
                assert is_choice or (" required" in field) != is_optional, (path, field)
    assert {
        "name",
        "description",
        "own",
        "until",
        "sure",
        "word",
        "userId",
        "ownerEmail",
        "leaving",
        "role",
    } <= seen
