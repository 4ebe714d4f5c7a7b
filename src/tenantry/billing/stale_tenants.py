"""Tenants whose period ended without a newer event: a lost event, or a dead webhook endpoint."""

import logging
from datetime import timedelta
from typing import Final

from tenantry.billing import reconcile_store as store
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database

STALE_TENANTS: Final = "stale_tenants"
"""The name of the finding in the database."""
_MOST_NAMED: Final = 20

logger = logging.getLogger(__name__)


async def count_stale_tenants(
    database: Database,
    grace: timedelta,
    clock: Clock,
) -> int:
    """Count the tenants whose period ended more than ``grace`` ago without a newer event, and log
    their ids.

    Stores the number for the metrics.
    """
    now = clock()
    ended_until = int((now - grace).timestamp())
    async with database.transaction(ACROSS_TENANTS) as connection:
        stale, number = await store.stale_tenants(connection, ended_until, _MOST_NAMED)
        await store.record_finding(
            connection,
            STALE_TENANTS,
            number,
            now,
        )
    if stale:
        logger.warning(
            "tenants whose period ended more than %d h ago without an event since: %d (%s)",
            grace // timedelta(hours=1),
            number,
            ", ".join(stale),
        )
    return number
