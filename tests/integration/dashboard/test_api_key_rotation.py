"""Rotating an API key in the dashboard, without JavaScript."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.dashboard.keys import KEYS, SECRET, add_key, create, secret_in
from tests.support.dashboard import AT_ACME, OLIVIA, Dashboard


@pytest.mark.parametrize(
    ("overlap", "status"), [("0", 401), ("3600", 200), ("86400", 200), ("604800", 200)]
)
async def test_rotation_gives_a_new_secret_and_keeps_the_overlap(
    dashboard: Dashboard, overlap: str, status: int
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, old = await add_key(dashboard)
    page = await olivia.open(f"{KEYS}/{key_id}/rotate")
    new = secret_in(await olivia.send(page, f"{KEYS}/{key_id}/rotate", overlap=overlap))
    assert (await dashboard.request("GET", "/projects", new)).status_code == 200
    assert (await dashboard.request("GET", "/projects", old)).status_code == status
    assert new != old


async def test_resubmitted_rotation_creates_no_third_key(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard)
    page = await olivia.open(f"{KEYS}/{key_id}/rotate")
    await olivia.send(page, f"{KEYS}/{key_id}/rotate")
    again = await olivia.send(page, f"{KEYS}/{key_id}/rotate")
    assert "You submitted this form before." in again.text
    assert not SECRET.search(again.html)
    assert (
        len(set(re.findall(r"/settings/api-keys/(key_\w+)", (await olivia.open(KEYS)).html))) == 2
    )


async def test_pages_show_the_last_use_of_a_rotated_key(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, old = await add_key(dashboard)
    rotated = await olivia.send(
        await olivia.open(f"{KEYS}/{key_id}/rotate"), f"{KEYS}/{key_id}/rotate"
    )
    [new_id] = {
        link.rpartition("/")[2] for link in rotated.links if re.fullmatch(rf"{KEYS}/key_\w+", link)
    } - {key_id}
    assert "It was never used." in (await olivia.open(f"{KEYS}/{new_id}")).text
    await dashboard.use_key(key_id, old)
    page = await olivia.open(f"{KEYS}/{new_id}")
    assert "It was last used" in page.text
    assert f"{KEYS}/{key_id}/revoke" in page.links
    replaced = await olivia.open(f"{KEYS}/{key_id}")
    assert "This key was replaced by a new key" in replaced.text
    assert f"{KEYS}/{new_id}" in replaced.links
    assert not [link for link in replaced.links if link.endswith("/rotate")]


async def test_form_of_a_replaced_key_offers_only_earlier_ends(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard, expiresAt=None)
    await olivia.send(
        await olivia.open(f"{KEYS}/{key_id}/rotate"), f"{KEYS}/{key_id}/rotate", overlap="604800"
    )
    form = await olivia.open(f"{KEYS}/{key_id}/edit")
    assert re.findall(r'name="expiry" value="([^"]+)"', form.html) == ["as-it-is", "date"]
    assert "This key was replaced, so it can only end earlier." in form.text
    [latest] = re.findall(r'max="(\d{4}-\d\d-\d\d)"', form.html)
    today = datetime.now(UTC).date()
    assert latest == (today + timedelta(days=6)).isoformat()
    for later in (
        {"expiry": "30"},
        {"expiry": "never"},
        {"expiry": "date", "until": f"{today.year + 1}-12-31"},
    ):
        refused = await olivia.send(form, **later)
        assert (
            refused.status,
            "This key was replaced, so it can only end earlier. " in refused.text,
        ) == (422, True)
    saved = await olivia.send(form, expiry="date", until=latest)
    assert "Key saved." in saved.text


async def test_overlap_ends_at_the_expiry_of_the_old_key(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    today = datetime.now(UTC).date()
    key_id, _ = await create(olivia, expiry="date", until=today.isoformat())
    page = await olivia.open(f"{KEYS}/{key_id}/rotate")
    rotated = await olivia.send(page, f"{KEYS}/{key_id}/rotate", overlap="604800")
    midnight = today + timedelta(days=1)
    assert f"keeps working until {midnight.day} {midnight:%b %Y}, 00:00 UTC" in rotated.text


async def test_rotated_key_cannot_be_rotated_again(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard)
    page = await olivia.open(f"{KEYS}/{key_id}/rotate")
    await olivia.send(page, f"{KEYS}/{key_id}/rotate")
    answer = await olivia.send(page, f"{KEYS}/{key_id}/rotate", once="x" * 32)
    assert answer.status == 409
    assert "The key has been rotated before" in answer.text


async def test_unknown_overlap_is_rejected(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, secret = await add_key(dashboard)
    page = await olivia.open(f"{KEYS}/{key_id}/rotate")
    answer = await olivia.send(page, f"{KEYS}/{key_id}/rotate", overlap="31536000")
    assert answer.status == 422
    assert "Choose how long the old key keeps working." in answer.text
    assert (await dashboard.request("GET", "/projects", secret)).status_code == 200


async def test_counts_agree_during_the_overlap(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard)
    await add_key(dashboard, "Other")
    await olivia.send(
        await olivia.open(f"{KEYS}/{key_id}/rotate"), f"{KEYS}/{key_id}/rotate", overlap="3600"
    )
    beside = "1 replaced key keeps working and does not count"
    overview = await olivia.open(f"{AT_ACME}/")
    assert "Active keys 2 " in overview.text
    assert f"Active keys 2 of 10 ({beside})" in (await olivia.open(f"{AT_ACME}/billing")).text
    listed = await olivia.open(KEYS)
    assert f"2 of 10 active keys of the plan Free. {beside}." in listed.text
    for state, number in (("active", 2), ("replaced", 1), ("", 3)):
        page = await olivia.open(f"{KEYS}?status={state}")
        assert page.html.count('<th scope="row">') == number, state
