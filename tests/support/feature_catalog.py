"""A plan catalog with features, and tenants of its plans."""

from typing import Any, Final

import psycopg

from tests.support.service import Organization, Service

CATALOG: Final = """
[[features]]
id = "sso"
type = "boolean"

[[features]]
id = "audit-log"
type = "boolean"

[[features]]
id = "seats"
type = "limit"

[[features]]
id = "exports"
type = "metered"

[[plans]]
id = "free"

[[plans]]
id = "basic"
[plans.features]
audit-log = true
exports = 10

[[plans]]
id = "pro"
[plans.features]
sso = true
seats = 5
exports = true
"""


async def tenant_of(service: Service, plan: str) -> Organization:
    """A new tenant with an active subscription of this plan."""
    org = await service.organization()
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        query: Any = "UPDATE tenants SET plan = %s, subscription_status = 'active' WHERE id = %s"
        await connection.execute(query, (plan, org.id))
    return org
