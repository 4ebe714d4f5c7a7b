"""What only the database knows of the service's health, for the metrics."""

from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.services.silence import SILENT_TENANTS
from tenantry.store import billing, checkup, notices, reconcile


async def read_gauges(database: Database) -> dict[str, float] | None:
    """Gauges by name, or None while the database is out of reach."""
    try:
        async with database.transaction() as connection:
            counts = await notices.count_by_status(connection)
            oldest = await notices.oldest_queued_seconds(connection)
            parked = await billing.count_parked(connection)
            drifted, undecided = await checkup.drifts_and_ties_of_the_day(connection)
            findings = await reconcile.read_findings(connection)
    except DatabaseUnavailableError:
        return None
    return {
        "tenantry_notifications_queued": counts.get("queued", 0),
        "tenantry_notifications_failed": counts.get("failed", 0),
        "tenantry_notifications_oldest_queued_seconds": oldest,
        "tenantry_billing_events_parked": parked,
        "tenantry_silent_tenants": findings.get(SILENT_TENANTS, 0),
        "tenantry_tenants_drifted": drifted,
        "tenantry_ties_undecided": undecided,
    }
