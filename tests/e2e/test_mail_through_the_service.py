"""From a signed event to a mail that a real SMTP server has received."""

import asyncio
from datetime import UTC, datetime

import httpx2
import psycopg
import pytest

from tests.support import events
from tests.support.app import OPERATOR_TOKEN, running_app
from tests.support.signing import deliver
from tests.support.smtp import LOOPBACK, MailServer, running

OPERATOR = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
WORKS = {"RUN_JOBS": "true", "MAIL_FROM": "Acme Billing <billing@acme.example>"}


def clock() -> datetime:
    return datetime.fromtimestamp(events.NOW, UTC)


def smtp(server: MailServer) -> dict[str, str]:
    """The settings of a service that sends its mails to this server."""
    return {"SMTP_URL": f"smtp://{LOOPBACK}:{server.port}"}


async def put_tenant(client: httpx2.AsyncClient) -> None:
    tenant = {
        "name": "Müller & Söhne",
        "ownerEmail": "owner@acme.example",
        "stripeCustomerId": "cus_1",
    }
    answer = await client.put("/api/v1/tenants/acme", json=tenant, headers=OPERATOR)
    assert answer.status_code == 201


async def test_failed_payment_sent_fifty_times_at_once_changes_once_and_mails_once(
    conninfo: str,
) -> None:
    event = events.failed(customer="cus_1", event_id="evt_failed")
    async with (
        running(MailServer()) as mail_server,
        running_app(conninfo, clock=clock, **WORKS, **smtp(mail_server)) as client,
    ):
        await put_tenant(client)
        answers = await asyncio.gather(*(deliver(client, event) for _ in range(50)))
        # a second failure: its mail comes after all those that the fifty could have caused
        last = await deliver(
            client, events.failed(customer="cus_1", event_id="evt_last", created=events.NOW)
        )
        await mail_server.wait_for(lambda server: len(server.received) >= 2)
        export = (await client.get("/api/v1/tenants/acme/export", headers=OPERATOR)).json()
    assert {(answer.status_code, answer.text) for answer in answers} == {(200, "OK")}
    assert last.status_code == 200
    assert export["tenant"]["subscriptionStatus"] == "past_due"
    assert sorted(entry["id"] for entry in export["billingEvents"]) == ["evt_failed", "evt_last"]
    assert len(mail_server.received) == 2
    assert {tuple(mail.recipients) for mail in mail_server.received} == {("owner@acme.example",)}
    assert all('"Müller & Söhne"' in mail.part("plain") for mail in mail_server.received)


@pytest.mark.parametrize(
    ("remaining", "shown"),
    [(7000, "70.00 EUR of 100.00 EUR"), (10_000, "100.00 EUR"), (None, "100.00 EUR")],
)
async def test_mail_shows_what_remains_to_be_paid(
    conninfo: str, remaining: int | None, shown: str
) -> None:
    event = events.failed(customer="cus_1", event_id="evt_failed", amount=10_000)
    event["data"]["object"]["amount_remaining"] = remaining
    async with (
        running(MailServer()) as mail_server,
        running_app(conninfo, clock=clock, **WORKS, **smtp(mail_server)) as client,
    ):
        await put_tenant(client)
        assert (await deliver(client, event)).text == "OK"
        await mail_server.wait_for(lambda server: len(server.received) >= 1)
    amounts = [line for line in mail_server.received[0].part("plain").splitlines() if "EUR" in line]
    assert amounts == [f"Remaining to be paid: {shown}"]


async def test_notification_has_the_fields_of_the_specification_and_is_stored_with_the_state(
    conninfo: str,
) -> None:
    async with running_app(conninfo, clock=clock) as client:
        await put_tenant(client)
        assert (
            await deliver(client, events.failed(customer="cus_1", event_id="evt_failed"))
        ).text == "OK"
        tenant = (await client.get("/api/v1/tenants/acme/export", headers=OPERATOR)).json()[
            "tenant"
        ]
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        cursor = await connection.execute(
            "SELECT type, recipient_id, tenant_id, channels, data, cause FROM notifications"
        )
        rows = await cursor.fetchall()
    assert len(rows) == 1
    kind, recipient, tenant_id, channels, data, cause = rows[0]
    assert (kind, recipient, tenant_id, channels) == (
        "billing.payment_failed",
        tenant["ownerId"],
        "acme",
        ["email"],
    )
    assert list(data) == ["invoiceUrl"]
    assert data["invoiceUrl"].startswith("https://")
    assert cause == "evt_failed"


async def test_unreachable_mail_server_does_not_affect_the_webhook(conninfo: str) -> None:
    away = MailServer()
    async with running(away):
        pass
    async with running_app(conninfo, clock=clock, **WORKS, **smtp(away)) as client:
        await put_tenant(client)
        answer = await deliver(client, events.failed(customer="cus_1", event_id="evt_failed"))
        metrics = (await client.get("/metrics")).text
    assert (answer.status_code, answer.text) == (200, "OK")
    assert "tenantry_notifications_queued 1" in metrics
