"""Creating an API key in the dashboard, without JavaScript."""

import asyncio
import logging
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from tenantry.api.guards import Credential
from tenantry.dashboard.labels import labels
from tenantry.domain.scopes import OWN_SCOPES
from tests.integration.dashboard.keys import (
    CI,
    KEYS,
    NEW,
    SECRET,
    add_key,
    create,
    names,
    record,
    secret_in,
)
from tests.integration.dashboard.signing_in import Browser
from tests.support.dashboard import ADAM, OLIVIA, Dashboard, running_dashboard
from tests.support.dashboard_page import Page
from tests.support.routes import scopes_needed


async def test_new_key_works_with_its_scopes(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    _, secret = await create(
        olivia, scope=["projects:read", "tenants:read"], own="reports:read, exports:*"
    )
    answer = await dashboard.request("GET", "/auth/whoami", secret)
    assert sorted(answer.json()["scopes"]) == [
        "exports:*",
        "projects:read",
        "reports:read",
        "tenants:read",
    ]
    assert answer.json()["mode"] == "live"


async def test_only_the_page_after_the_form_shows_the_secret(
    dashboard: Dashboard, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    olivia = await dashboard.sign_in(OLIVIA)
    shown = await olivia.send(await olivia.open(NEW), **CI)
    secret = secret_in(shown)
    key_id = next(link for link in shown.links if link.startswith(f"{KEYS}/key_")).rpartition("/")[
        2
    ]
    pages = ("", "/created", "/edit", "/rotate", "/revoke", "/first-use")
    for path in (KEYS, NEW, *(f"{KEYS}/{key_id}{page}" for page in pages)):
        assert (await olivia.open(path)).status == 200
    assert [page for page in olivia.pages if secret in page.html] == [shown]
    assert not any(secret in str(page.answer.url) for page in olivia.pages)
    assert not any(secret in link for link in shown.links)
    assert secret not in caplog.text
    assert shown.answer.headers["cache-control"] == "no-store"


async def test_sample_requests_hold_the_address_and_a_variable_for_the_secret(
    dashboard: Dashboard,
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    shown = await olivia.send(await olivia.open(NEW), **CI)
    address = f"{dashboard.url}/api/v1/auth/whoami"
    assert shown.html.count(secret_in(shown)) == 1
    assert f'curl -H "Authorization: Bearer $TENANTRY_API_KEY" {address}' in shown.text
    assert f"export TENANTRY_BASE_URL={dashboard.url} tenantry whoami" in shown.text
    assert f'with Tenantry(base_url="{dashboard.url}") as tenantry:' in shown.text


async def test_resubmitted_form_creates_no_second_key_and_shows_no_secret(
    dashboard: Dashboard,
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(NEW)
    _, owner = await create(olivia, name="owner", scope=[], access="owner", sure="1")
    await olivia.send(page, **CI)
    again = await olivia.send(page, **CI)
    assert "You submitted this form before. It created this key, and no second one." in again.text
    assert not SECRET.search(again.html)
    assert await names(dashboard, owner) == ["CI", "owner"]
    [rotation] = [link for link in again.links if link.endswith("/rotate")]
    assert (await olivia.open(rotation)).status == 200


async def test_changed_and_resubmitted_form_creates_another_key(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(NEW)
    secrets = {
        secret_in(await olivia.send(page, **{**CI, "name": name})) for name in ("One", "Another")
    }
    assert len(secrets) == 2


async def test_double_submission_creates_one_key(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(NEW)
    answers = await asyncio.gather(*(olivia.send(page, **CI) for _ in range(5)))
    assert len({answer.path for answer in answers}) == 1
    assert len([answer for answer in answers if SECRET.search(answer.html)]) == 1
    assert (await olivia.open(KEYS)).text.count("projects:read") == 1


async def test_form_without_its_token_is_rejected(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    answer = await olivia.send(await olivia.open(NEW), **{**CI, "once": "1"})
    assert (answer.status, answer.heading()) == (400, "This form is incomplete")
    assert "CI" not in (await olivia.open(KEYS)).text


ONE_FAULT: Final[tuple[tuple[dict[str, str | list[str]], str, str], ...]] = (
    ({"name": ""}, "Fill in this field.", "name"),
    ({"name": "x" * 201}, "Use at most 200 characters.", "name"),
    ({"name": "a\x07b"}, "Must not contain control characters", "name"),
    ({"name": "a\u202eb"}, "Must not contain control characters", "name"),
    ({"scope": [], "own": ""}, "Choose at least one scope", "scope-projects:read"),
    ({"own": "Reports"}, "Use the form resource:action in lowercase. Invalid: Reports", "own"),
    ({"own": "OWNER"}, "Use the form resource:action in lowercase. Invalid: OWNER", "own"),
    (
        {"own": " ".join(f"r{number}:read" for number in range(64))},
        "Choose at most 64 scopes.",
        "own",
    ),
    ({"access": "owner"}, "Check this box to create an OWNER key", "sure"),
    ({"mode": "both"}, "Choose live or test.", "mode-live"),
    ({"expiry": "date", "until": "soon"}, "Enter a day, such as 2027-01-31.", "until"),
    (
        {"expiry": "date", "until": "10000-01-01"},
        "This day is too far ahead. Enter an earlier one.",
        "until",
    ),
    (
        {"expiry": "date", "until": "9999-12-31"},
        "This day is too far ahead. Enter an earlier one.",
        "until",
    ),
    (
        {"expiry": "date", "until": "2020-01-01"},
        "This day is over. Enter today or a later day.",
        "until",
    ),
    ({"expiry": ""}, "Choose when the key expires.", ""),
)
"""Fields of the form, the message, and the field that gets the focus."""


async def test_error_is_shown_beside_its_field_and_input_is_kept(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    form = await olivia.open(NEW)
    for fields, message, focused in ONE_FAULT:
        answer = await olivia.send(form, **{**CI, "own": "kept:read", **fields})
        assert answer.status == 422, fields
        assert message in answer.text
        assert answer.focused == ([focused] if focused else []), fields
        assert not SECRET.search(answer.html), fields
        assert answer.form().fields["own"] == [fields.get("own", "kept:read")], fields
    assert "CI" not in (await olivia.open(KEYS)).text


async def test_all_errors_are_shown_together(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    wrong = {
        "name": "",
        "own": "Reports *:*",
        "mode": "both",
        "expiry": "date",
        "until": "2020-01-01",
    }
    answer = await olivia.send(await olivia.open(NEW), **{**CI, **wrong})
    faults = (
        "Fill in this field.",
        "Check this box to give",
        "Use the form resource:action",
        "Choose live or test.",
        "This day is over.",
    )
    for find in (answer.text.index, answer.text.rindex):  # above the form, and beside the fields
        places = [find(fault) for fault in faults]
        assert places == sorted(places)
    assert "5 fields need a change" in answer.text


@pytest.mark.parametrize("scope", ["*:*", "*:write"])
async def test_scope_for_changing_everything_needs_its_box(
    dashboard: Dashboard, scope: str
) -> None:
    adam = await dashboard.sign_in(ADAM)
    unsure = await adam.send(await adam.open(NEW), **{**CI, "own": scope})
    assert (unsure.status, unsure.focused) == (422, ["everything"])
    assert "Anyone who gets the key controls all of it." in unsure.text
    assert not SECRET.search(unsure.html)
    made = await adam.send(unsure, everything="1")
    assert (made.status, len(SECRET.findall(made.html)) > 0) == (200, True)


@pytest.mark.parametrize(
    ("access", "scopes"),
    [
        ({}, ["*:read"]),
        ({"access": "ci"}, ["projects:read", "projects:write"]),
        ({"access": "everything", "everything": "1"}, ["*:*"]),
    ],
    ids=["read-only, unless chosen otherwise", "CI", "everything"],
)
async def test_preset_gives_its_scopes_and_no_others(
    dashboard: Dashboard, access: dict[str, str], scopes: list[str]
) -> None:
    adam = await dashboard.sign_in(ADAM)
    page = await adam.send(await adam.open(NEW), name="A", scope=["members:write"], **access)
    answer = await dashboard.request("GET", "/auth/whoami", secret_in(page))
    assert (answer.json()["accessLevel"], answer.json()["scopes"]) == ("SCOPED", scopes)


async def test_everything_needs_its_box(dashboard: Dashboard) -> None:
    adam = await dashboard.sign_in(ADAM)
    unsure = await adam.send(await adam.open(NEW), name="A", access="everything")
    assert (unsure.status, unsure.focused) == (422, ["everything"])
    assert not SECRET.search(unsure.html)


async def test_form_offers_presets_that_the_user_holds(browser: Browser) -> None:
    await browser.start()
    browser.give(access={"scope": "api-keys:read api-keys:write projects:read projects:write"})
    await browser.open_callback()
    page = Page(await browser.client.get(NEW))
    assert [name in page.html for name in ('id="access-ci"', 'id="access-read-only"')] == [
        True,
        False,
    ]
    assert page.form().fields["access"] == ["ci"]


async def test_further_fields_are_folded_until_one_matters(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(NEW)
    folded, unfolded = '<details class="further">', '<details class="further" open>'
    assert folded in page.html
    assert folded in (await olivia.send(page, name="")).html
    assert unfolded in (await olivia.send(page, name="", expiry="never")).html
    assert unfolded in (await olivia.send(page, name="A", metadata="=")).html


async def test_owner_box_does_not_confirm_a_scope_for_changing_everything(
    dashboard: Dashboard,
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.send(await olivia.open(NEW), **{**CI, "own": "*:*", "sure": "1"})
    assert (page.status, page.focused) == (422, ["everything"])


async def test_form_of_a_key_that_changes_everything_asks_only_for_a_new_such_scope(
    dashboard: Dashboard,
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await create(olivia, own="*:*", everything="1")
    form = await olivia.open(f"{KEYS}/{key_id}/edit")
    assert "Key saved." in (await olivia.send(form, name="Renamed")).text
    plain_id, _ = await create(olivia)
    unsure = await olivia.send(await olivia.open(f"{KEYS}/{plain_id}/edit"), own="*:*")
    assert (unsure.status, unsure.focused) == (422, ["everything"])


async def test_owner_key_needs_its_box_and_has_no_other_scopes(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    _, secret = await create(olivia, access="owner", sure="1")
    answer = await dashboard.request("GET", "/auth/whoami", secret)
    assert (answer.json()["accessLevel"], answer.json()["scopes"]) == ("OWNER", ["*:*"])


async def test_admin_cannot_create_an_owner_key(dashboard: Dashboard) -> None:
    adam = await dashboard.sign_in(ADAM)
    page = await adam.open(NEW)
    assert "OWNER" not in page.text
    answer = await adam.send(page, **{**CI, "access": "owner", "sure": "1"})
    assert answer.status == 403
    assert "Only an OWNER can create, change or revoke OWNER keys" in answer.text
    assert not SECRET.search(answer.html)


@pytest.mark.parametrize(("expiry", "days"), [("30", 30), ("90", 90), ("365", 365)])
async def test_key_expires_after_the_chosen_number_of_days(
    dashboard: Dashboard, expiry: str, days: int
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await create(olivia, expiry=expiry)
    found = await record(dashboard, key_id)
    made, ends = (datetime.fromisoformat(found[name]) for name in ("createdAt", "expiresAt"))
    assert abs(ends - made - timedelta(days=days)) < timedelta(minutes=1)


async def test_key_works_through_the_chosen_day(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    today = datetime.now(UTC).date()
    key_id, secret = await create(
        olivia, expiry="date", until=(today + timedelta(days=9)).isoformat()
    )
    found = await record(dashboard, key_id)
    assert datetime.fromisoformat(found["expiresAt"]).date() == today + timedelta(days=10)
    assert found["expiresAt"].endswith("T00:00:00Z")
    assert (await dashboard.request("GET", "/auth/whoami", secret)).status_code == 200


async def test_test_key_without_expiry(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, secret = await create(olivia, expiry="never", mode="test")
    found = await record(dashboard, key_id)
    assert (found["expiresAt"], found["mode"]) == (None, "test")
    assert secret.startswith("svc_test_")


async def test_form_and_new_key_have_the_prefix_of_the_deployment(
    conninfo: str, people: Path
) -> None:
    async with running_dashboard(conninfo, people, KEY_PREFIX="acme") as dashboard:
        olivia = await dashboard.sign_in(OLIVIA)
        form = await olivia.open(NEW)
        key_id, secret = await create(olivia, mode="test", expiry="never")
        page = await olivia.open(f"{KEYS}/{key_id}")
        answer = await dashboard.request("GET", "/auth/whoami", secret)
        found = await olivia.open(f"{KEYS}?search={secret[:14]}")
    assert {"acme_live_", "acme_test_"} <= set(re.findall(r"\w+_(?:live|test)_", form.text))
    assert "svc_" not in form.text
    assert secret.startswith("acme_test_")
    assert secret[:14] in page.text
    assert key_id in found.html
    assert answer.status_code == 200


async def test_plan_limit_is_explained_and_input_is_kept(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    form = await olivia.open(NEW)
    for number in range(10):
        await add_key(dashboard, f"Key {number}")
    answer = await olivia.send(form, **CI)
    assert answer.status == 409
    assert "The plan Free allows" in answer.text
    assert answer.form().fields["name"] == ["CI"]
    full = await olivia.open(KEYS)
    assert "This organization has 10 active keys, and the plan Free allows 10." in full.text
    assert NEW not in full.links
    assert "<title>Error: Create key" in answer.html
    assert 'tabindex="-1" autofocus role="alert"' in answer.html


def test_form_offers_exactly_the_scopes_that_routes_need() -> None:
    assert set(labels().scopes) == scopes_needed(Credential.CALLER) == OWN_SCOPES


async def test_scopes_that_the_user_does_not_hold_are_reported_with_the_other_faults(
    browser: Browser,
) -> None:
    await browser.start()
    browser.give(access={"scope": "api-keys:read api-keys:write"})
    await browser.open_callback()
    form = Page(await browser.client.get(NEW)).form()
    wrong = {**form.fields, "name": "", "own": "projects:read", "expiry": "never"}
    page = Page(await browser.client.post(NEW, data=wrong))
    assert page.status == 422
    assert "Fill in this field." in page.text
    assert "You don't hold these scopes: projects:read. Remove them." in page.text
