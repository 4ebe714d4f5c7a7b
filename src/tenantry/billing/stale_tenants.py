"""Tenants that should have had news: their paid period is over, and nothing has come since."""

import logging
from datetime import timedelta
from typing import Final

from tenantry.billing import reconcile_store as store
from tenantry.common.clock import Clock
from tenantry.db.database import Database
from tenantry.db.scope import ACROSS_TENANTS

SILENT_TENANTS: Final = "silent_tenants"
"""The finding's name."""

_MOST_NAMED: Final = 20

logger = logging.getLogger(__name__)


class SilenceWatch:
    """Looks for tenants whose period ended longer than ``patience`` ago without news: a lost event, a dead endpoint."""

    def __init__(self, database: Database, patience: timedelta, clock: Clock) -> None:
        self._database = database
        self._patience = patience
        self._clock = clock

    async def look(self) -> int:
        """Count them for the metrics, and name them in the log. Raises `DatabaseUnavailableError`."""
        now = self._clock()
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            silent, number = await store.silent_tenants(
                connection, int((now - self._patience).timestamp()), _MOST_NAMED
            )
            await store.record_finding(connection, SILENT_TENANTS, number, now)
        if silent:
            logger.warning(
                "tenants whose period ended more than %d h ago without news: %d (%s)",
                self._patience // timedelta(hours=1), number, ", ".join(tenant.id for tenant in silent),
            )  # fmt: skip
        return number
