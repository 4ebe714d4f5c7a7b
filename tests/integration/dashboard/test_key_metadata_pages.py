"""External ids and metadata of keys on the dashboard, without JavaScript."""

from typing import Final

import pytest

from tests.integration.dashboard.keys import CI, KEYS, NEW, add_key, create, record
from tests.support.dashboard import AT_ACME, OLIVIA, Dashboard

LINES: Final = "team=growth\r\nquery = a=b\r\n\r\n"


async def test_new_key_has_what_the_form_says(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, secret = await create(olivia, externalId="cus_4711", metadata=LINES)
    whoami = (await dashboard.request("GET", "/auth/whoami", secret)).json()
    assert whoami["externalId"] == "cus_4711"
    assert whoami["metadata"] == {"team": "growth", "query": "a=b"}
    shown = await olivia.open(f"{KEYS}/{key_id}")
    assert "External id cus_4711" in shown.text
    assert "team growth query a=b" in shown.text
    assert "cus_4711" in (await olivia.open(KEYS)).text
    assert "cus_4711" in (await olivia.open(f"{KEYS}?search=CUS_47")).text


async def test_edit_changes_only_the_edited_one(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await create(olivia, externalId="cus_4711", metadata=LINES)
    edit = f"{KEYS}/{key_id}/edit"
    await olivia.send(await olivia.open(edit), externalId="cus_4712")
    found = await record(dashboard, key_id)
    assert (found["externalId"], len(found["metadata"])) == ("cus_4712", 2)
    await olivia.send(await olivia.open(edit), metadata="tier=gold")
    found = await record(dashboard, key_id)
    assert (found["externalId"], found["metadata"]) == ("cus_4712", {"tier": "gold"})
    await olivia.send(await olivia.open(edit), externalId="", metadata="")
    found = await record(dashboard, key_id)
    assert (found["externalId"], found["metadata"]) == (None, {})


async def test_key_is_limited_to_the_addresses_that_the_form_says(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, secret = await create(olivia, allowedAddresses="192.0.2.0/24\r\n2001:db8::7")
    whoami = await dashboard.request("GET", "/auth/whoami", secret)
    assert (whoami.status_code, whoami.json()["code"]) == (403, "address_not_allowed")
    shown = await olivia.open(f"{KEYS}/{key_id}")
    assert "Allowed addresses 192.0.2.0/24 2001:db8::7" in shown.text
    edit = await olivia.open(f"{KEYS}/{key_id}/edit")
    assert edit.form().fields["allowedAddresses"] == ["192.0.2.0/24\n2001:db8::7"]
    await olivia.send(edit, allowedAddresses="")
    assert (await dashboard.request("GET", "/auth/whoami", secret)).status_code == 200


async def test_key_has_the_limit_that_the_form_says(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await create(olivia, requestsPerMinute="120")
    assert (await record(dashboard, key_id))["requestsPerMinute"] == 120
    assert "Requests a minute 120" in (await olivia.open(f"{KEYS}/{key_id}")).text
    edit = await olivia.open(f"{KEYS}/{key_id}/edit")
    await olivia.send(edit, requestsPerMinute="")
    assert (await record(dashboard, key_id))["requestsPerMinute"] is None


async def test_last_owner_key_is_not_switched_off(dashboard: Dashboard) -> None:
    await dashboard.forget_members()
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard, accessLevel="OWNER")
    path = f"{KEYS}/{key_id}"
    refused = await olivia.send(await olivia.open(path), f"{path}/flags")
    assert refused.status == 409
    assert "This is the last OWNER key." in refused.text
    assert (await record(dashboard, key_id))["enabled"] is True


async def test_key_is_switched_off_and_on(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, secret = await create(olivia)
    path = f"{KEYS}/{key_id}"
    off = await olivia.send(await olivia.open(path), f"{path}/flags")
    assert "This key is switched off: requests with it are rejected." in off.text
    whoami = await dashboard.request("GET", "/auth/whoami", secret)
    assert (whoami.status_code, whoami.json()["code"]) == (401, "api_key_disabled")
    assert "CI switched off" in (await olivia.open(f"{KEYS}?search={key_id}")).text
    on = await olivia.send(off, f"{path}/flags")
    assert "switched off" not in on.text.partition("Latest changes")[0]
    assert (await dashboard.request("GET", "/auth/whoami", secret)).status_code == 200
    edit = await olivia.open(f"{path}/edit")
    await olivia.send(edit, enabled="switched off")
    assert (await record(dashboard, key_id))["enabled"] is False


async def test_edit_keeps_metadata_that_lines_cannot_hold(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await create(olivia, metadata='{"a=b": " c ", "d": ""}')
    edit = await olivia.open(f"{KEYS}/{key_id}/edit")
    assert edit.form().fields["metadata"] == ['{"a=b":" c ","d":""}']
    await olivia.send(edit, name="renamed")
    assert (await record(dashboard, key_id))["metadata"] == {"a=b": " c ", "d": ""}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("externalId", "a b", "Must be 1 to 255 visible ASCII characters without spaces."),
        ("metadata", "team", "Use one line for each, such as team=growth."),
        ("metadata", "a=1\na=2", "Use one line for each, such as team=growth."),
        ("metadata", "{", "Use a JSON object of strings."),
        ("metadata", "a=" + "b" * 2048, "Must have at most 2,048 bytes as JSON; it has 2,056."),
        ("metadata", "=a", "Must not have empty names"),
        ("requestsPerMinute", "many", "Enter a whole number, such as 120."),
        ("requestsPerMinute", "9" * 9, "Must be from 1 to 1,000,000."),
        ("requestsPerMinute", "9" * 5000, "Enter a whole number, such as 120."),
        ("allowedAddresses", "192.0.2.7/24", "192.0.2.7/24 has bits behind the network"),
    ],
)
async def test_fault_is_said_at_its_field(
    dashboard: Dashboard, field: str, value: str, message: str
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    refused = await olivia.send(await olivia.open(NEW), **{**CI, field: value, "name": ""})
    assert refused.status == 422
    assert "Fill in this field." in refused.text
    assert message in refused.text


async def test_faults_of_all_fields_are_said_at_once(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    faulty = {"requestsPerMinute": "many", "metadata": "team", "allowedAddresses": "here"}
    refused = await olivia.send(await olivia.open(NEW), **{**CI, **faulty})
    assert "Enter a whole number, such as 120." in refused.text
    assert "Use one line for each, such as team=growth." in refused.text
    assert "Here is no IPv4 or IPv6 address or network." in refused.text


async def test_new_key_that_is_switched_off_waits_for_no_request(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    made = await olivia.send(await olivia.open(NEW), **CI, enabled="switched off")
    assert "It can't be shown again" in made.text
    assert "Send the first request" not in made.text


async def test_audit_trail_shows_metadata_in_words(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await create(olivia, metadata="team=growth")
    await olivia.send(await olivia.open(f"{KEYS}/{key_id}/edit"), metadata="a=1\nb=2")
    shown = await olivia.open(f"{AT_ACME}/settings/audit?targetId={key_id}")
    assert "Metadata team=growth a=1, b=2" in shown.text
