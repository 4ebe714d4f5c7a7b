"""Notifications in the database, for tests of their delivery."""

from datetime import UTC, datetime
from typing import Final
from uuid import UUID, uuid4

import psycopg

from tenantry.db.connection import Connection, of_tenant
from tenantry.domain.billing.ledger import FailedPayment
from tenantry.notifications import mail_delivery_store as mails
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
    [added] = await mails.insert_notifications(
        connection, [FailedPayment(tenant_id, "user_1", event_id, INVOICE_URL)], NOW
    )
    return added


async def delivery_of(conninfo: str, notification_id: UUID) -> tuple[str, int, str | None]:
    """A notification's status, how often it was tried, and the last error."""
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        cursor = await connection.execute(
            "SELECT status, attempts, last_error FROM notifications WHERE id = %s",
            (notification_id,),
        )
        row = await cursor.fetchone()
    assert row is not None
    return row[0], row[1], row[2]
