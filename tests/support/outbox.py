"""Notifications in the database, for tests of their delivery."""

from datetime import UTC, datetime
from typing import Final
from uuid import UUID, uuid4

import psycopg

from tenantry.db.connection import Connection, of_tenant
from tenantry.domain.owner_mails import PAYMENT_FAILED, NewMail, PaymentFailedData
from tenantry.notifications.mails_store import insert_mails
from tests.support.guarded_events import written_by_test

NOW: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OWNER: Final = "owner@acme.example"
INVOICE_URL: Final = "https://pay.example/invoice/1?a=1&b=2"


async def add_notification(
    connection: Connection, tenant_id: str = "acme", *, owner_email: str = OWNER
) -> UUID:
    """A queued notification of a tenant, made if need be, whose payment of 12.50 EUR failed."""
    event_id = f"evt_{uuid4().hex}"
    async with connection.within(of_tenant(tenant_id)):
        await connection.execute("SET LOCAL synchronous_commit = local")  # as `Database.change`
        await written_by_test(connection)
        await connection.execute(
            "INSERT INTO tenants (id, name, owner_id, owner_email) VALUES (%s, %s, 'user_1', %s) "
            "ON CONFLICT DO NOTHING",
            (tenant_id, f"{tenant_id.title()} & Söhne", owner_email),
        )
    await connection.execute(
        "INSERT INTO billing_events (id, arrival, type, created, received_at, tenant_id, outcome, document) "
        "VALUES (%s, 1, 'invoice.payment_failed', 1, %s, %s, 'applied', "
        """'{"amount_due": 1250, "currency": "eur"}')""",
        (event_id, NOW, tenant_id),
    )
    mail = NewMail(PAYMENT_FAILED, tenant_id, PaymentFailedData(INVOICE_URL), event_id)
    [mail_id] = await insert_mails(connection, [mail], NOW)
    return mail_id


async def delivery_of(conninfo: str, mail_id: UUID) -> tuple[str, str | None]:
    """A mail's status, and its last error."""
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        cursor = await connection.execute(
            "SELECT status, last_error FROM mails WHERE id = %s", (mail_id,)
        )
        row = await cursor.fetchone()
    assert row is not None
    return row[0], row[1]
