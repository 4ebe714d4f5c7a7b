"""The list of API keys, a key's page, and changing and revoking keys, without JavaScript."""

from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest

from tests.integration.dashboard.keys import KEYS, NEW, add_key, create, record
from tests.integration.dashboard.signing_in import USER, Browser
from tests.support.dashboard import (
    ACME,
    ADAM,
    AT_ACME,
    MIA,
    OLIVIA,
    Dashboard,
    Fields,
)
from tests.support.dashboard_page import Page

HOSTILE = "<script>alert(1)</script>\"'&amp;"


async def test_empty_list_explains_keys(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    page = await olivia.open(KEYS)
    assert "Create your first API key" in page.text
    assert NEW in page.links


async def test_list_distinguishes_keys(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    _, secret = await add_key(
        dashboard, "Nightly export", mode="test", scopes=["projects:read", "reports:read"]
    )
    page = await olivia.open(KEYS)
    for text in (
        "Nightly export",
        f"{secret[:13]}…{secret[-4:]}",
        "test",
        "projects:read",
        "reports:read",
    ):
        assert text in page.text
    assert "never" in page.text


async def test_revoked_key_stays_in_the_list_and_the_filter_finds_it(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard, "Old one")
    await add_key(dashboard, "New one")
    await revoke(dashboard, key_id)
    everything, revoked, active, expired = [
        (await olivia.open(f"{KEYS}?status={status}")).text
        for status in ("", "revoked", "active", "expired")
    ]
    assert "Old one" in everything
    assert "New one" in everything
    assert "Old one" in revoked
    assert "New one" not in revoked
    assert "Old one" not in active
    assert "No key matches" in expired


async def test_keys_are_found_by_a_part_of_their_name_and_by_mode(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    await add_key(dashboard, "Shop & more, 100 %")
    await add_key(dashboard, "Shop in test", mode="test")
    await add_key(dashboard, "Reports")
    found = (await olivia.open(f"{KEYS}?search=sHOP")).text
    assert "Shop & more, 100 %" in found
    assert "Shop in test" in found
    assert "Reports" not in found
    found = (await olivia.open(f"{KEYS}?search=sHOP&mode=test&status=active")).text
    assert "Shop & more, 100 %" not in found
    assert "Shop in test" in found
    assert "Shop & more, 100 %" in (await olivia.open(f"{KEYS}?search=%25")).text
    assert "No key matches" in (await olivia.open(f"{KEYS}?search=Sho_")).text


async def test_keys_are_found_by_the_parts_that_logs_show(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, secret = await add_key(dashboard, "Wanted")
    await add_key(dashboard, "Another")
    start, last4 = secret[:13], secret[-4:]
    _, owner = await add_key(dashboard, "Looks", accessLevel="OWNER")
    for fragment in (
        start,
        start[9:],
        last4,
        f"{start}...{last4}",
        f"{start}…{last4}",
        f"{start[9:]}...{last4}",
        key_id,
        key_id[4:20],
        key_id.upper(),
        "wanTED",
    ):
        found = (await olivia.open(f"{KEYS}?search={quote(fragment)}")).text
        assert "Wanted" in found, fragment
        assert "Another" not in found, fragment
        answer = await dashboard.request("GET", f"/api-keys?search={quote(fragment)}", owner)
        assert [key["name"] for key in answer.json()["data"]] == ["Wanted"], fragment
    assert "No key matches" in (await olivia.open(f"{KEYS}?search={secret[13:30]}")).text
    assert (await dashboard.request("GET", "/api-keys?search=a%00b", owner)).status_code == 422


async def test_chips_count_the_keys_of_each_status_that_a_search_finds(
    dashboard: Dashboard,
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard, "Shop")
    await add_key(dashboard, "Shop in test", mode="test")
    await add_key(dashboard, "Reports")
    await revoke(dashboard, key_id)
    for query, shown in (
        ("", "All 3 Active 2 Revoked 1 "),
        ("?search=shop", "All 2 Active 1 Revoked 1 "),
        ("?search=shop&mode=test&status=active", "All 1 Active 1 "),
        ("?search=reports&status=expired", "All 1 Active 1 Expired 0 "),
    ):
        assert shown in (await olivia.open(KEYS + query)).text, query
    found = await olivia.open(f"{KEYS}?search=shop")
    assert f"{KEYS}?status=revoked&search=shop" in found.links


async def test_long_list_is_read_in_both_directions_and_by_number(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    await dashboard.execute(
        "INSERT INTO api_keys (id, org_id, digest, name, scopes, access_level, mode, start, last4, "
        "created_at, created_by, revoked_at, pepper_id) "
        "SELECT 'key_' || n, %s, convert_to(n::text, 'UTF8'), 'Key number ' || n || '.', '{}', 'SCOPED', "
        "'live', '', '', now() + n * interval '1 ms', 'x', now(), 'x' FROM generate_series(0, 26) AS n",
        (ACME,),
    )
    first = await olivia.open(f"{KEYS}?status=revoked&search=key+number")
    [older] = [link for link in first.links if "cursor=" in link]
    rest = await olivia.open(older)
    assert "1\u201325 of 27 keys" in first.text
    assert "26\u201327 of 27 keys" in rest.text
    assert "Key number 26." in first.text
    assert "Key number 1." not in first.text
    assert "Key number 1." in rest.text
    [newer] = [link for link in rest.links if "before=" in link]
    assert "Key number 26." in (await olivia.open(newer)).text
    last = await olivia.open(f"{KEYS}?status=revoked&search=key+number&page=last")
    assert "3\u201327 of 27 keys" in last.text
    assert "Key number 0." in (await olivia.open(f"{KEYS}?page=2")).text
    assert len(first.html) < 50_000


async def test_pages_that_no_list_has_are_its_first_or_last(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    await add_key(dashboard, "Only one")
    for page in ("0", "-1", "2", "9" * 30, "x", "last", "%00"):
        assert "Only one" in (await olivia.open(f"{KEYS}?page={page}")).text, page
    assert (await olivia.open(f"{KEYS}?before=x")).status == 400


async def test_hostile_name_is_text_everywhere(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard, HOSTILE)
    for path in (
        KEYS,
        *(f"{KEYS}/{key_id}{page}" for page in ("", "/edit", "/rotate", "/revoke", "/first-use")),
    ):
        page = await olivia.open(path)
        assert "<script>alert" not in page.html
        assert (HOSTILE in page.text) or (HOSTILE in page.form().fields["name"])


async def test_key_page_shows_all_details(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, secret = await create(olivia, scope=["billing:read"], own="reports:* *:read")
    page = await olivia.open(f"{KEYS}/{key_id}")
    for text in ("CI", f"{secret[:13]}…{secret[-4:]}", key_id, "Live", "active", "never", "by you"):
        assert text in page.text
    assert "See billing events" in page.text
    assert "See everything" in page.text
    assert "reports:*" in page.text


@pytest.mark.parametrize(
    ("path", "status"),
    [("/%FF", 404), ("?cursor=x", 400), ("?status=x", 200), ("?status=%00", 200)],
)
async def test_unknown_key_id_gets_a_page(dashboard: Dashboard, path: str, status: int) -> None:
    page = await (await dashboard.sign_in(OLIVIA)).open(KEYS + path)
    assert page.status == status
    assert page.html.startswith("<!doctype html>")


async def test_rotated_key_may_expire_earlier_but_not_later(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard)
    await olivia.send(
        await olivia.open(f"{KEYS}/{key_id}/rotate"), f"{KEYS}/{key_id}/rotate", overlap="604800"
    )
    page = await olivia.open(f"{KEYS}/{key_id}/edit")
    later = await olivia.send(page, expiry="30")
    assert later.status == 422
    assert "it can only end earlier" in later.text
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    assert (await olivia.send(page, expiry="date", until=tomorrow.isoformat())).status == 200


async def test_edit_changes_only_the_edited_fields(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, secret = await add_key(dashboard, scopes=["projects:read", "reports:read"])
    before = await record(dashboard, key_id)
    page = await olivia.open(f"{KEYS}/{key_id}/edit")
    changed = await olivia.send(page, name="CI of the shop", scope=["tenants:read"])
    assert (changed.status, changed.path) == (200, f"{KEYS}/{key_id}")
    assert "Key saved." in changed.text
    answer = await dashboard.request("GET", "/auth/whoami", secret)
    assert sorted(answer.json()["scopes"]) == ["reports:read", "tenants:read"]
    after = await record(dashboard, key_id)
    assert (after["name"], after["expiresAt"]) == ("CI of the shop", before["expiresAt"])


async def test_outdated_form_does_not_restore_removed_scopes(dashboard: Dashboard) -> None:
    olivia, adam = await dashboard.sign_in(OLIVIA), await dashboard.sign_in(ADAM)
    key_id, _ = await add_key(dashboard, scopes=["projects:read", "billing:read"])
    page = await olivia.open(f"{KEYS}/{key_id}/edit")
    await adam.send(await adam.open(f"{KEYS}/{key_id}/edit"), scope=["projects:read"])
    assert (await olivia.send(page, name="CI of the shop")).path == f"{KEYS}/{key_id}"
    found = await record(dashboard, key_id)
    assert (found["name"], found["scopes"]) == ("CI of the shop", ["projects:read"])


async def test_concurrent_scope_changes_need_confirmation(dashboard: Dashboard) -> None:
    olivia, adam = await dashboard.sign_in(OLIVIA), await dashboard.sign_in(ADAM)
    key_id, _ = await add_key(dashboard, scopes=["projects:read", "billing:read"])
    page = await olivia.open(f"{KEYS}/{key_id}/edit")
    await adam.send(
        await adam.open(f"{KEYS}/{key_id}/edit"), name="Adam's", scope=["projects:read"]
    )
    asked = await olivia.send(page, scope=["projects:read", "billing:read", "tenants:read"])
    assert asked.status == 422
    assert "This was changed after you opened the form. It is now: projects:read." in asked.text
    assert asked.form().fields["name"] == ["Adam's"]
    assert (await olivia.send(asked)).path == f"{KEYS}/{key_id}"
    found = await record(dashboard, key_id)
    assert (found["name"], len(found["scopes"])) == ("Adam's", 3)


async def test_rename_keeps_scopes_that_the_user_does_not_hold(browser: Browser) -> None:
    token = browser.issuer.mint(
        claims={"sub": USER, "org_id": "acme", "org_role": "owner", **browser.times()}
    )
    answer = await browser.client.post(
        "/api/v1/api-keys",
        json={"orgId": "acme", "name": "CI", "scopes": ["projects:read", "billing:read"]},
        headers={"Authorization": f"Bearer {token}"},
    )
    one = f"{KEYS}/{answer.json()['id']}"
    await browser.start()
    browser.give(access={"scope": "api-keys:read api-keys:write projects:read"})
    await browser.open_callback()
    page = Page(await browser.client.get(f"{one}/edit"))
    fields = {**page.form().fields, "name": ["CI of the shop"]}
    assert (await browser.client.post(f"{one}/edit", data=fields)).headers["location"] == one
    shown = Page(await browser.client.get(one)).text
    assert "CI of the shop" in shown
    assert "billing:read" in shown


async def test_pages_show_the_last_day_as_chosen(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    day = datetime.now(UTC).date() + timedelta(days=20)
    key_id, _ = await create(olivia, expiry="date", until=day.isoformat())
    end = day + timedelta(days=1)
    assert f"{end.day} {end:%b %Y}, 00:00 UTC" in (await olivia.open(f"{KEYS}/{key_id}")).text
    assert "in 20 days" in (await olivia.open(KEYS)).text


async def test_expiry_can_be_removed_and_set(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard)
    page = await olivia.open(f"{KEYS}/{key_id}/edit")
    await olivia.send(page, expiry="never")
    assert (await record(dashboard, key_id))["expiresAt"] is None
    await olivia.send(await olivia.open(f"{KEYS}/{key_id}/edit"), expiry="30")
    ends = datetime.fromisoformat((await record(dashboard, key_id))["expiresAt"])
    assert abs(ends - datetime.now(UTC) - timedelta(days=30)) < timedelta(hours=1)


async def test_invalid_edit_changes_nothing(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard)
    page = await olivia.open(f"{KEYS}/{key_id}/edit")
    answer = await olivia.send(page, name="x" * 201, scope=[])
    assert answer.status == 422
    assert "Use at most 200 characters" in answer.text
    assert "Choose at least one scope" in answer.text
    assert (await record(dashboard, key_id))["name"] == "CI"


async def test_key_becomes_an_owner_key_only_with_the_box_checked(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard)
    page = await olivia.open(f"{KEYS}/{key_id}/edit")
    assert (await olivia.send(page, access="owner")).status == 422
    assert (await olivia.send(page, access="owner", sure="1")).status == 200
    assert (await record(dashboard, key_id))["accessLevel"] == "OWNER"


async def test_owner_key_is_renamed_without_the_box(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard, accessLevel="OWNER")
    page = await olivia.open(f"{KEYS}/{key_id}/edit")
    assert (await olivia.send(page, name="Another")).status == 200
    found = await record(dashboard, key_id)
    assert (found["name"], found["accessLevel"]) == ("Another", "OWNER")


async def test_revoked_key_is_rejected_on_the_next_request(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, secret = await add_key(dashboard, "Nightly  export")
    page = await olivia.open(f"{KEYS}/{key_id}/revoke")
    wrong = await olivia.send(page, f"{KEYS}/{key_id}/revoke", word="nightly export")
    assert wrong.status == 422
    assert "The name does not match." in wrong.text
    assert wrong.focused == ["word"]
    assert (await dashboard.request("GET", "/projects", secret)).status_code == 200
    done = await olivia.send(page, f"{KEYS}/{key_id}/revoke", word=" Nightly export ")
    assert (done.status, done.path) == (200, f"{KEYS}/{key_id}")
    assert "Revoked" in done.text
    refused = await dashboard.request("GET", "/projects", secret)
    assert (refused.status_code, refused.json()["code"]) == (401, "api_key_revoked")


async def test_revoked_key_cannot_be_changed(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard)
    forms = {page: await olivia.open(f"{KEYS}/{key_id}/{page}") for page in ("edit", "rotate")}
    await revoke(dashboard, key_id)
    page = await olivia.open(f"{KEYS}/{key_id}")
    assert not [link for link in page.links if link.startswith(f"{KEYS}/{key_id}/")]
    for answer in (
        await olivia.send(forms["edit"], name="x"),
        await olivia.send(forms["rotate"], f"{KEYS}/{key_id}/rotate"),
        await olivia.open(f"{KEYS}/{key_id}/edit"),
    ):
        assert (answer.status, answer.heading()) == (409, "This key can't be changed")
        assert "The key is revoked." in answer.text
        assert ("Open the key", f"{KEYS}/{key_id}") in answer.anchors


async def test_first_steps_stay_on_the_page_of_a_key_until_it_was_used(
    dashboard: Dashboard,
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, secret = await add_key(dashboard)
    unused = await olivia.open(f"{KEYS}/{key_id}")
    assert "Send the first request" in unused.text
    assert "$TENANTRY_API_KEY" in unused.text
    assert "within seconds" not in unused.text  # only the script checks
    await dashboard.use_key(key_id, secret)
    assert "Send the first request" not in (await olivia.open(f"{KEYS}/{key_id}")).text


async def test_page_of_a_key_that_is_switched_off_asks_for_no_request(
    dashboard: Dashboard,
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard, enabled=False)
    page = await olivia.open(f"{KEYS}/{key_id}")
    assert "This key is switched off: requests with it are rejected." in page.text
    assert "Send the first request" not in page.text


async def test_key_with_an_invisible_name_is_confirmed_by_its_last_characters(
    dashboard: Dashboard,
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, secret = await add_key(dashboard, "\u200b\u2060")
    page = await olivia.open(f"{KEYS}/{key_id}/revoke")
    assert f"To confirm, type {secret[-4:]}" in page.text
    for path in (KEYS, AT_ACME):
        assert (
            f'<a href="{KEYS}/{key_id}"><bdi>{key_id}</bdi></a>' in (await olivia.open(path)).html
        )
    assert (
        await olivia.send(page, f"{KEYS}/{key_id}/revoke", word=secret[-4:])
    ).path == f"{KEYS}/{key_id}"


async def test_last_owner_key_needs_a_second_confirmation(dashboard: Dashboard) -> None:
    await dashboard.forget_members()
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, secret = await add_key(dashboard, accessLevel="OWNER")
    action = f"{KEYS}/{key_id}/revoke"
    page = await olivia.open(action)
    assert "force" not in page.html
    refused = await olivia.send(page, action, word="CI")
    assert refused.status == 409
    assert (
        "Create another OWNER key, rotate this one, or make a member the owner first."
        in refused.text
    )
    assert "Revoke the last OWNER key anyway" in refused.text
    assert refused.form(action).fields["word"] == ["CI"]
    assert len(refused.focused) == 1
    other = await olivia.send(refused, action, word="CJ", force="1")
    fields = other.form(action).fields
    assert (other.status, fields["word"], fields["force"]) == (422, ["CJ"], ["1"])
    assert (await dashboard.request("GET", "/projects", secret)).status_code == 200
    assert refused.form(action).fields["word"] == ["CI"]
    assert (await olivia.send(refused, action)).status == 409
    wrong = await olivia.send(refused, action, word="Cl", force="1")
    assert wrong.form(action).fields["force"] == ["1"]
    assert (await olivia.send(wrong, action, word="CI")).status == 200
    assert (await dashboard.request("GET", "/projects", secret)).status_code == 401


async def test_last_owner_key_cannot_be_downgraded(dashboard: Dashboard) -> None:
    await dashboard.forget_members()
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard, accessLevel="OWNER")
    page = await olivia.open(f"{KEYS}/{key_id}/edit")
    answer = await olivia.send(page, access="scoped", scope=["projects:read"])
    assert answer.status == 409
    assert "Create another OWNER key" in answer.text


async def test_first_use_page_shows_that_the_key_works(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, secret = await add_key(dashboard)
    before = await olivia.open(f"{KEYS}/{key_id}/first-use")
    assert "Waiting for the first request with this key." in before.text
    assert "data-done" not in before.html
    await dashboard.use_key(key_id, secret)
    after = await olivia.open(f"{KEYS}/{key_id}/first-use")
    assert "The key works." in after.text
    assert "192.0.2.7" in after.text
    assert "data-done" in after.html


async def test_member_sees_no_link_to_keys(dashboard: Dashboard) -> None:
    home = await (await dashboard.sign_in(MIA)).open(AT_ACME)
    assert not [link for link in home.links if "api-keys" in link]


async def test_admin_can_read_but_not_change_an_owner_key(dashboard: Dashboard) -> None:
    adam = await dashboard.sign_in(ADAM)
    key_id, secret = await add_key(dashboard, accessLevel="OWNER")
    one = f"{KEYS}/{key_id}"
    page = await adam.open(one)
    assert page.status == 200
    assert not [link for link in page.links if link.startswith(f"{one}/")]
    assert (
        "Only an owner of the organization can change, rotate or revoke an OWNER key." in page.text
    )
    answers = [await adam.open(f"{one}/{page}") for page in ("edit", "rotate", "revoke")]
    forms: dict[str, Fields] = {
        f"{one}/edit": {
            "name": "mine",
            "access": "scoped",
            "scope": ["projects:read"],
            "expiry": "never",
        },
        f"{one}/rotate": {"overlap": "0", "once": "x" * 32},
        f"{one}/revoke": {"word": "CI", "force": "1"},
    }
    for path, fields in forms.items():
        answers.append(await adam.force(path, **fields))
    assert {answer.status for answer in answers} == {403}
    for answer in answers:
        assert "Only an OWNER can create, change or revoke OWNER keys." in answer.text
    assert (await dashboard.request("GET", "/projects", secret)).status_code == 200


async def test_admin_creates_and_revokes_a_key(dashboard: Dashboard) -> None:
    adam = await dashboard.sign_in(ADAM)
    key_id, secret = await create(adam)
    await adam.send(
        await adam.open(f"{KEYS}/{key_id}/revoke"), f"{KEYS}/{key_id}/revoke", word="CI"
    )
    assert (await dashboard.request("GET", "/projects", secret)).status_code == 401


async def revoke(dashboard: Dashboard, key_id: str) -> None:
    """Revoke a key as another user."""
    await dashboard.call("DELETE", f"/api-keys/{key_id}", user=ADAM)


async def test_key_not_used_since_its_import_is_marked_and_found(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    await add_key(dashboard)
    key = {"digest": "ab" * 32, "name": "Old key", "scopes": ["projects:read"]}
    path = f"/tenants/{ACME}/api-keys/import"
    imported = await dashboard.operate("POST", path, {"algorithm": "sha256", "keys": [key]})
    [result] = imported["data"]
    assert (await olivia.open(KEYS)).text.count("imported, not used yet") == 1
    page = await olivia.open(f"{KEYS}/{result['id']}")
    assert "Old key active imported, not used yet" in page.text
    found = (await olivia.open(f"{KEYS}?status=imported")).text
    assert ("Old key" in found, "CI" in found) == (True, False)


async def test_imported_key_without_shown_characters_says_so(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    keys = [
        {"digest": "cd" * 32, "name": "Hidden", "scopes": ["projects:read"]},
        {"digest": "ef" * 32, "name": "Shown", "scopes": ["projects:read"], "start": "old_4f"},
    ]
    path = f"/tenants/{ACME}/api-keys/import"
    results = await dashboard.operate("POST", path, {"algorithm": "sha256", "keys": keys})
    pages = [await olivia.open(f"{KEYS}/{result['id']}") for result in results["data"]]
    assert ["Key not known" in page.text for page in pages] == [True, False]
    assert ["old_4f…" in page.text for page in pages] == [False, True]
    revoke_page = await olivia.open(f"{KEYS}/{results['data'][0]['id']}/revoke")
    assert "The very next request with this key is rejected." in revoke_page.text
