"""The requests that the payment provider refused: a row for each operation and message."""

from datetime import datetime
from typing import Final, NamedTuple

from tenantry.db.connection import Connection

KEEP: Final = """
INSERT INTO provider_refusals (operation, code, message, number, first_at, last_at, last_tenant)
SELECT %(operation)s, %(code)s, %(message)s, 1, %(now)s, %(now)s,
       coalesce(%(tenant)s, (SELECT tenant_id FROM customers WHERE id = %(customer)s))
    ON CONFLICT (operation, code, message) DO UPDATE
       SET number = provider_refusals.number + 1, last_at = excluded.last_at, last_tenant = excluded.last_tenant
"""
RECENT: Final = """
SELECT operation, code, message, number, first_at, last_at, last_tenant
  FROM provider_refusals
 WHERE last_at > %(since)s
 ORDER BY last_at DESC, operation, code, message
 LIMIT %(most)s
"""


class RefusalToKeep(NamedTuple):
    """A refused request; its tenant, or else its customer, is known."""

    operation: str
    code: str
    message: str
    tenant_id: str | None
    customer_id: str | None


class RefusalCount(NamedTuple):
    """How often the provider refused an operation with a message, and for which tenant last."""

    operation: str
    code: str
    message: str
    number: int
    first_at: datetime
    last_at: datetime
    last_tenant: str | None


async def keep(connection: Connection, refusal: RefusalToKeep, now: datetime) -> None:
    values = {
        "operation": refusal.operation,
        "code": refusal.code,
        "message": refusal.message,
        "tenant": refusal.tenant_id,
        "customer": refusal.customer_id,
        "now": now,
    }
    await connection.execute(KEEP, values)


async def recent(connection: Connection, since: datetime, most: int) -> list[RefusalCount]:
    """Return those after ``since``, the newest first."""
    rows = await connection.fetch(RECENT, {"since": since, "most": most})
    return [RefusalCount(*row) for row in rows]
