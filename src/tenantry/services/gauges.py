"""What only the database knows of the service's health, for the metrics."""

from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.store import billing, notices


async def read_gauges(database: Database) -> dict[str, float] | None:
    """Gauges by name, or None while the database is out of reach."""
    try:
        async with database.transaction() as connection:
            counts = await notices.count_by_status(connection)
            oldest = await notices.oldest_queued_seconds(connection)
            parked = await billing.count_parked(connection)
    except DatabaseUnavailableError:
        return None
    return {
        "tenantry_notifications_queued": counts.get("queued", 0),
        "tenantry_notifications_failed": counts.get("failed", 0),
        "tenantry_notifications_oldest_queued_seconds": oldest,
        "tenantry_billing_events_parked": parked,
    }
