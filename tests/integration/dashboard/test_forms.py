"""Forms that another site, another session or no page at all has made are not carried out; headers of every page."""

import re
from typing import Final

import pytest

from tests.support.dashboard import ADAM, MIA, OLIVIA, Dashboard, Person
from tests.support.dashboard_page import Page

OUT: Final = "/sign-out"


async def is_signed_in(visitor: Person) -> bool:
    return (await visitor.get("/orgs/acme/")).status_code == 200


async def test_form_of_the_session_is_carried_out(dashboard: Dashboard) -> None:
    visitor = await dashboard.sign_in(MIA)
    answer = await visitor.client.post(OUT, data={"form_token": await visitor.form_token()})
    assert answer.status_code == 303
    assert not await is_signed_in(visitor)


async def test_form_of_another_session_is_not(dashboard: Dashboard) -> None:
    visitor, other = await dashboard.sign_in(OLIVIA), await dashboard.sign_in(ADAM)
    for form_token in ("", "0" * 64, await other.form_token()):
        answer = await visitor.client.post(OUT, data={"form_token": form_token})
        assert answer.status_code == 403
        assert "This form is invalid" in answer.text
    assert await is_signed_in(visitor)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_form_that_another_site_sends_is_not(dashboard: Dashboard, site: str) -> None:
    visitor = await dashboard.sign_in(OLIVIA)
    form = {"form_token": await visitor.form_token()}
    answer = await visitor.client.post(OUT, data=form, headers={"sec-fetch-site": site})
    assert answer.status_code == 403
    assert await is_signed_in(visitor)


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data; boundary=x", ""])
async def test_form_of_another_kind_is_not(dashboard: Dashboard, kind: str) -> None:
    visitor = await dashboard.sign_in(OLIVIA)
    content = f"form_token={await visitor.form_token()}".encode()
    answer = await visitor.client.post(OUT, content=content, headers={"content-type": kind})
    assert answer.status_code == 400
    assert await is_signed_in(visitor)


async def test_form_that_is_huge_is_not(dashboard: Dashboard) -> None:
    visitor = await dashboard.sign_in(OLIVIA)
    form = {"form_token": await visitor.form_token(), "more": "x" * 100_000}
    assert (await visitor.client.post(OUT, data=form)).status_code == 400


NEW: Final = "/orgs/acme/projects/new"
FROM_HERE: Final = {"sec-fetch-site": "same-origin"}
TYPED: Final = {
    "name": 'Shop "<b>1</b>"',
    "description": "One\r\ntwo",
    "once": "o" * 22,
    "form_token": "of-a-session-before",
}


@pytest.fixture
async def nobody(dashboard: Dashboard) -> Person:
    """Somebody whose session has ended."""
    person = await dashboard.sign_in(OLIVIA)
    person.client.cookies.clear()
    return person


async def test_form_without_a_session_says_that_nothing_was_carried_out(nobody: Person) -> None:
    answer = await nobody.client.post(NEW, data=TYPED)
    assert answer.status_code == 401
    assert "Nothing was saved." in answer.text


async def test_form_of_a_session_that_has_ended_is_kept_to_be_sent_again(dashboard: Dashboard, nobody: Person) -> None:
    nobody.client.headers.update(FROM_HERE)
    kept = Page(await nobody.client.post(NEW, data=TYPED))
    assert kept.status == 401
    assert "Nothing was saved yet. This page keeps your input" in kept.text
    assert "Sign in in a new tab" in kept.text
    typed = {name: [text] for name, text in TYPED.items() if name != "form_token"}
    assert kept.form().fields == typed
    assert (await nobody.send(kept)).form().fields == typed  # still nobody

    await nobody.client.get(dashboard.start_of(OLIVIA), follow_redirects=True)
    asked = await nobody.send(kept)
    assert (asked.status, asked.path) == (403, NEW)
    assert "You are now signed in as Olivia Owner." in asked.text
    assert "Name Shop" in asked.text
    assert "b" not in asked.tags
    made = await nobody.send(asked)
    assert (made.status, "One two" in made.text) == (200, True)


@pytest.mark.parametrize("headers", [{}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}])
async def test_form_that_no_page_of_ours_sent_is_offered_to_nobody(
    dashboard: Dashboard, nobody: Person, headers: dict[str, str]
) -> None:
    for person in (nobody, await dashboard.sign_in(OLIVIA)):
        answer = await person.client.post(NEW, data=TYPED, headers=headers)
        assert answer.status_code in (401, 403)
        assert "Shop" not in answer.text


@pytest.mark.parametrize("content", [b"x" * 100_000, b"\xff=%ff&=&==", b""])
async def test_form_that_is_none_ends_in_words_too(nobody: Person, content: bytes) -> None:
    headers = {**FROM_HERE, "content-type": "application/x-www-form-urlencoded"}
    assert (await nobody.client.post(NEW, content=content, headers=headers)).status_code == 401


async def test_who_is_out_already_signs_out_without_a_refusal(nobody: Person) -> None:
    for headers in ({}, FROM_HERE, {"sec-fetch-site": "cross-site"}):
        answer = await nobody.client.post(OUT, data={"form_token": "x"}, headers=headers)
        assert (answer.status_code, answer.headers["location"]) == (303, "/signed-out")
        assert "set-cookie" not in answer.headers  # another site could take a session's cookie away by it


PAGES: Final = ("/sign-in", "/signed-out", "/orgs/acme/", "/orgs/acme/settings/api-keys", "/orgs/nowhere/")


@pytest.mark.parametrize("path", PAGES)
async def test_page_may_load_nothing_from_elsewhere_and_be_framed_by_nobody(dashboard: Dashboard, path: str) -> None:
    visitor = await dashboard.sign_in(OLIVIA)
    answer = await visitor.get(path)
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == {"'self'"}
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert not re.search(r"<script(?![^>]+src=)|<style|\sstyle=|\son[a-z]+=", answer.text)
    assert len(answer.content) < 50_000


async def test_assets_are_kept_under_an_address_that_changes_with_them(dashboard: Dashboard) -> None:
    page = (await dashboard.api.get("/sign-in")).text
    addresses = re.findall(r'(?:href|src)="(/assets/[^"]+)"', page)
    assert len(addresses) >= 3
    sizes = {}
    for address in addresses:
        answer = await dashboard.api.get(address)
        assert "immutable" in answer.headers["cache-control"]
        sizes[address.rpartition("/")[2]] = len(answer.content)
    assert sizes["dashboard.js"] < 11 * 1024
    for digest in ("of-another-release", addresses[0].split("/")[2][1:]):
        other = await dashboard.api.get(f"/assets/{digest}/base.css")
        assert (other.status_code, other.headers["cache-control"]) == (200, "no-store")
    assert (await dashboard.api.get(addresses[0].rpartition("/")[0] + "/nothing.css")).status_code == 404
