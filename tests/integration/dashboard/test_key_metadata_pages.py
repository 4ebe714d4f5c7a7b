"""External ids and metadata of keys on the dashboard, without JavaScript."""

from typing import Final

import pytest

from tests.integration.dashboard.keys import CI, KEYS, NEW, create, record
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


async def test_audit_trail_shows_metadata_in_words(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await create(olivia, metadata="team=growth")
    await olivia.send(await olivia.open(f"{KEYS}/{key_id}/edit"), metadata="a=1\nb=2")
    shown = await olivia.open(f"{AT_ACME}/settings/audit?targetId={key_id}")
    assert "Metadata team=growth a=1, b=2" in shown.text
