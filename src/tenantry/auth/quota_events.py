"""Publishing quotas that are used up."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tenantry.auth import entitlements_store as store
from tenantry.db.connection import Connection
from tenantry.domain.entitlements import Entitlement, entitlement_of
from tenantry.domain.outbound_events import EventType, NewEvent
from tenantry.domain.plans import Catalog
from tenantry.domain.quota_notices import UseChange
from tenantry.outbound.publishing import publish


@dataclass(frozen=True)
class QuotaEvents:
    """Publishes used quotas in the transaction that reaches the limit."""

    catalog: Catalog

    async def publish(
        self, connection: Connection, changes: Sequence[UseChange], now: datetime
    ) -> None:
        """Publish each change that reaches a limit for the first time in its period.

        The changes are of live mode, and the transaction has locked the counters.
        """
        reached = {change.use: change for change in changes if change.reaches_limit}
        if not reached:
            return
        periods = {use: change.after.period for use, change in reached.items()}
        first = await store.mark_reached(connection, periods, now)
        events = [
            NewEvent(EventType.QUOTA_REACHED, use.org_id, now, self._entitlement(reached[use]))
            for use in sorted(first)
        ]
        await publish(connection, events, now)

    def _entitlement(self, change: UseChange) -> Entitlement:
        feature = self.catalog.features[change.use.feature]
        return entitlement_of(feature, change.phase, self.catalog, change.after)
