"""Warning about an unverified owner's address, and resending the confirmation."""

from pathlib import Path
from typing import Final

import psycopg
import pytest

from tenantry_devkit.identity_tokens import DemoUser
from tests.support.dashboard import ACME, ADAM, AT_ACME, MIA, OLIVIA, Dashboard, running_dashboard

OVERVIEW: Final = f"{AT_ACME}/"
SEND_AGAIN: Final = f"{AT_ACME}/settings/owner-address/send-confirmation"
NEW: Final = "billing@elsewhere.example"


async def change_address(dashboard: Dashboard) -> None:
    await dashboard.call("PATCH", f"/tenants/{ACME}", {"name": "Acme", "ownerEmail": NEW})


async def confirmations(dashboard: Dashboard) -> int:
    async with await psycopg.AsyncConnection.connect(dashboard.conninfo) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM mails WHERE type = 'owner_address.confirmation' AND recipient = %s",
            (NEW,),
        )
        [number] = await cursor.fetchone() or [0]
    return int(number)


async def test_verified_address_needs_no_attention(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in()
    assert "not verified" not in (await olivia.open(OVERVIEW)).text


async def test_verified_address_is_taken_from_the_sign_in(conninfo: str, people: Path) -> None:
    async with running_dashboard(conninfo, people) as dashboard:
        await dashboard.execute("UPDATE tenants SET verified_email = ''")
        await (await dashboard.sign_in()).get(f"{AT_ACME}/")
    # at the latest when it stops, the service has written it
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        cursor = await connection.execute(
            "SELECT verified_email FROM tenants WHERE id = %s", (ACME,)
        )
        assert await cursor.fetchone() == (OLIVIA.email,)


@pytest.mark.parametrize("user", [OLIVIA, ADAM], ids=["owner", "admin"])
async def test_owner_and_admin_can_resend_the_confirmation(
    dashboard: Dashboard, user: DemoUser
) -> None:
    await change_address(dashboard)
    person = await dashboard.sign_in(user)
    page = await person.open(OVERVIEW)
    assert (
        f"The owner's email address is not verified. {NEW}: until it is verified, "
        "security notices go to the previous address." in page.text
    )
    done = await person.send(page, SEND_AGAIN)
    assert "Confirmation sent to the owner's address." in done.text
    assert await confirmations(dashboard) == 2


async def test_fourth_confirmation_of_an_hour_is_not_sent(dashboard: Dashboard) -> None:
    await change_address(dashboard)
    olivia = await dashboard.sign_in()
    for _ in range(2):
        await olivia.send(await olivia.open(OVERVIEW), SEND_AGAIN)
    refused = await olivia.send(await olivia.open(OVERVIEW), SEND_AGAIN)
    assert "Not sent: this address was sent several confirmations already." in refused.text
    assert await confirmations(dashboard) == 3


async def test_verified_address_gets_no_confirmation(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in()
    done = await olivia.force(SEND_AGAIN)
    assert "The owner's address is already verified." in done.text


async def test_member_sees_neither_the_address_nor_the_button(dashboard: Dashboard) -> None:
    await change_address(dashboard)
    mia = await dashboard.sign_in(MIA)
    page = await mia.open(OVERVIEW)
    assert "The owner's email address is not verified." in page.text
    assert NEW not in page.text
    assert "Resend confirmation" not in page.text
    assert (await mia.force(SEND_AGAIN)).status == 403
    assert await confirmations(dashboard) == 1
