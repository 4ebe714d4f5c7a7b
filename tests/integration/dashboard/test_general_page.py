"""Creating an organization, its general settings, and its end."""

from pathlib import Path
from typing import Final

import pytest

from tenantry_devkit.identity_tokens import DemoUser
from tests.support.dashboard import (
    ACME,
    ADAM,
    AT_ACME,
    MIA,
    NOA,
    OLIVIA,
    Dashboard,
    running_dashboard,
)
from tests.support.events import updated

GENERAL: Final = f"{AT_ACME}/settings/general"
BILLING: Final = f"{GENERAL}/billing-address"
DELETE: Final = f"{GENERAL}/delete"
NEW: Final = "/account/new-organization"


@pytest.mark.parametrize("user", [OLIVIA, ADAM], ids=["owner", "admin"])
async def test_name_and_time_zone_are_changed(dashboard: Dashboard, user: DemoUser) -> None:
    person = await dashboard.sign_in(user)
    page = await person.open(GENERAL)
    assert '<html lang="en">' in page.html
    saved = await person.send(page, GENERAL, name="Acme Ltd", timeZone="Asia/Tokyo")
    assert "Organization saved." in saved.text
    assert '<html lang="en" data-zone="Asia/Tokyo">' in saved.html
    record = await dashboard.call("GET", f"/tenants/{ACME}")
    assert (record["name"], record["timeZone"]) == ("Acme Ltd", "Asia/Tokyo")
    await person.send(saved, GENERAL, timeZone="")
    record = await dashboard.call("GET", f"/tenants/{ACME}")
    assert (record["name"], record.get("timeZone")) == ("Acme Ltd", None)


async def test_faults_are_shown_beside_their_fields(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in()
    page = await olivia.open(GENERAL)
    nameless = await olivia.send(page, GENERAL, name=" ")
    assert (nameless.status, nameless.focused) == (422, ["name"])
    nowhere = await olivia.send(page, GENERAL, timeZone="Mars/Olympus")
    assert (nowhere.status, nowhere.focused) == (422, ["timeZone"])
    assert "such as Europe/Berlin." in nowhere.text


async def test_change_of_another_user_is_not_overwritten(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in()
    page = await olivia.open(GENERAL)
    await dashboard.call("PATCH", f"/tenants/{ACME}", {"name": "Theirs"})
    kept = await olivia.send(page, GENERAL, timeZone="Asia/Tokyo")
    assert kept.status == 200
    refused = await olivia.send(page, GENERAL, name="Mine")
    assert "It is now: Theirs." in refused.text
    record = await dashboard.call("GET", f"/tenants/{ACME}")
    assert (record["name"], record["timeZone"]) == ("Theirs", "Asia/Tokyo")


async def test_billing_address_is_changed_and_confirmed(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in()
    page = await olivia.open(GENERAL)
    saved = await olivia.send(page, BILLING, ownerEmail="bills@acme.example")
    assert "To confirm it, open the link in the mail to it." in saved.text
    assert "Not verified" in saved.text
    assert "Resend confirmation" in saved.text
    own = await olivia.send(saved, BILLING, ownerEmail=OLIVIA.email or "")
    assert "Billing address saved." in own.text
    assert "Not verified" not in own.text
    faulty = await olivia.send(own, BILLING, ownerEmail="nowhere")
    assert (faulty.status, faulty.focused) == (422, ["ownerEmail"])


async def test_member_reads_but_changes_nothing(dashboard: Dashboard) -> None:
    mia = await dashboard.sign_in(MIA)
    page = await mia.open(GENERAL)
    assert "Organization id acme" in page.text
    for absent in ("Billing address", "Transfer ownership", "Delete organization"):
        assert absent not in page.text
    for path in (GENERAL, BILLING, DELETE):
        assert (await mia.force(path, name="Acme")).status == 403
    adam = await dashboard.sign_in(ADAM)
    assert "Delete organization" not in (await adam.open(GENERAL)).text
    assert (await adam.force(DELETE, name="Acme")).status == 403


async def test_owner_deletes_after_typing_the_name(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in()
    assert DELETE in (await olivia.open(GENERAL)).links
    asked = await olivia.open(DELETE)
    unsure = await olivia.send(asked, name="acme?")
    assert (unsure.status, "The name does not match." in unsure.text) == (422, True)
    done = await olivia.send(asked, name="Acme")
    assert done.path == "/account"
    assert "Organization deleted." in done.text
    assert (await olivia.open(AT_ACME)).status == 404
    export = await dashboard.operate("GET", f"/tenants/{ACME}/export")
    [end] = [one for one in export["auditEvents"] if one["action"] == "tenant.ended"]
    assert end["actorId"] == OLIVIA.sub


async def test_organization_whose_subscription_renews_is_not_deleted(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in()
    await dashboard.deliver(updated())
    refused = await olivia.send(await olivia.open(DELETE), name="Acme")
    assert refused.status == 409
    assert "Cancel it under Billing first" in refused.text
    assert (await olivia.open(GENERAL)).status == 200


async def test_user_without_an_organization_creates_one(dashboard: Dashboard) -> None:
    noa = await dashboard.sign_in(NOA)
    assert NEW in (await noa.open("/")).links
    form = await noa.open(NEW)
    faulty = await noa.send(form, name="", ownerEmail="noa")
    assert (faulty.status, "2 fields need a change" in faulty.text) == (422, True)
    made = await noa.send(form, name="Novel", ownerEmail="noa@novel.example")
    assert "Organization created. You are its owner." in made.text
    assert "<title>Overview · Novel · tenantry</title>" in made.html
    again = await noa.send(form, name="Novel", ownerEmail="noa@novel.example")
    assert again.path == made.path


async def test_limit_of_organizations_is_said(conninfo: str, people: Path) -> None:
    async with running_dashboard(conninfo, people, TENANTS_PER_USER="1") as dashboard:
        noa = await dashboard.sign_in(NOA)
        await noa.send(await noa.open(NEW), name="One", ownerEmail="noa@novel.example")
        refused = await noa.send(await noa.open(NEW), name="Two", ownerEmail="noa@novel.example")
        assert refused.status == 403
        assert "A user may create 1 organizations." in refused.text


async def test_nobody_creates_organizations_where_the_limit_is_zero(
    conninfo: str, people: Path
) -> None:
    async with running_dashboard(conninfo, people, TENANTS_PER_USER="0") as dashboard:
        noa = await dashboard.sign_in(NOA)
        for path in ("/", "/account"):
            assert NEW not in (await noa.open(path)).links


async def test_user_of_a_claimed_organization_creates_no_other(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in()
    assert NEW not in (await olivia.open("/account")).links
    refused = await olivia.send(
        await olivia.open(NEW), name="Two", ownerEmail="olivia@acme.example"
    )
    assert refused.status == 409
    assert "Your identity provider decides to which organization you belong." in refused.text


async def test_mail_about_keys_is_turned_off_and_on(conninfo: str, people: Path) -> None:
    mail = {"SMTP_URL": "smtp://127.0.0.1:9", "MAIL_FROM": "mail@example.com"}
    async with running_dashboard(conninfo, people, **mail, KEY_EXPIRY_MAILS="true") as dashboard:
        adam = await dashboard.sign_in(ADAM)
        off = await adam.fill((await adam.open(GENERAL)).form_of("Turn off"))
        assert "Mail about API keys Off" in off.text
        [entry] = (await dashboard.call("GET", "/audit-events?limit=1"))["data"]
        assert (entry["action"], entry["after"]["keyMails"]) == ("tenant.updated", False)
        saved = await adam.send(off, GENERAL, name="Acme Ltd")
        assert "Mail about API keys Off" in saved.text
        on = await adam.fill(saved.form_of("Turn on"))
        assert "Mail about API keys On" in on.text
        mia = await dashboard.sign_in(MIA)
        assert "Mail about API keys" not in (await mia.open(GENERAL)).text


async def test_mail_about_keys_is_no_setting_where_there_is_none(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in()
    assert "Mail about API keys" not in (await olivia.open(GENERAL)).text
