"""Data retention: remove expired data (idempotency keys, parked events, deleted tenants, raw
bodies, names).
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.idempotency_store import KEPT as IDEMPOTENCY_KEPT
from tenantry.domain.rejections import KEPT as REJECTIONS_KEPT
from tenantry.domain.sessions import ABSOLUTE as SESSION_LENGTH
from tenantry.domain.usage import UsageInterval
from tenantry.jobs import retention_store as store
from tenantry.outbound.feed import EVENTS_KEPT

JOBS_KEPT_HOURS: Final = 24 * 30
"""How long the job queue keeps ended jobs, whatever their outcome."""
_MOST_ROUNDS: Final = 500
# Each event has a body: a run, six times an hour, removes those of over 3,000 events a second.
_MOST_ROUNDS_OF_BODIES: Final = 2000

logger = logging.getLogger(__name__)


class RetentionRule(NamedTuple):
    """How long data of a kind is kept, and the statement that removes it then."""

    kind: str
    kept: timedelta
    statement: str


UNUSED_KEPT: Final = timedelta(days=1)
"""How long the rows of a webhook are kept that is no longer in the plan catalog. While servers are
replaced, some have it and some do not.
"""
RULES: Final = (
    RetentionRule("idempotency keys", IDEMPOTENCY_KEPT, store.DELETE_IDEMPOTENCY_KEYS),
    RetentionRule("consumption keys", IDEMPOTENCY_KEPT, store.DELETE_CONSUMPTION_KEYS),
    RetentionRule("parked events", timedelta(days=30), store.IGNORE_PARKED),
    RetentionRule("request counts", timedelta(hours=1), store.DELETE_COUNTS),
    RetentionRule("usage counters", timedelta(days=400), store.DELETE_USAGE),
    RetentionRule("hours of usage", UsageInterval.HOUR.kept, store.DELETE_USAGE_HOURS),
    RetentionRule("days of usage", UsageInterval.DAY.kept, store.DELETE_USAGE_DAYS),
    RetentionRule("rejections", REJECTIONS_KEPT, store.DELETE_REJECTIONS),
    RetentionRule("ended processes", timedelta(days=1), store.DELETE_USAGE_WRITERS),
    RetentionRule("user profiles", timedelta(days=365), store.DELETE_PROFILES),
    RetentionRule("runs of tenants", timedelta(days=30), store.DELETE_LEDGER_RUNS),
    RetentionRule("operator acts", timedelta(days=1096), store.DELETE_OPERATOR_ACTS),
    RetentionRule("sessions", SESSION_LENGTH, store.DELETE_SESSIONS),
    RetentionRule("mails", timedelta(days=30), store.DELETE_MAILS),
    RetentionRule("refusals", timedelta(days=30), store.DELETE_PROVIDER_REFUSALS),
    RetentionRule("outbound events", EVENTS_KEPT, store.DELETE_OUTBOUND_EVENTS),
    RetentionRule("undelivered webhooks", EVENTS_KEPT, store.DELETE_UNDELIVERED_WEBHOOKS),
    RetentionRule("delivered webhooks", EVENTS_KEPT, store.DELETE_DELIVERED_WEBHOOKS),
    RetentionRule("webhooks of removed endpoints", UNUSED_KEPT, store.DELETE_WEBHOOKS_OF_REMOVED),
    RetentionRule("removed endpoints", UNUSED_KEPT, store.DELETE_REMOVED_ENDPOINTS),
    RetentionRule("invitations", timedelta(days=30), store.DELETE_INVITATIONS),
)


@dataclass(frozen=True)
class RetentionService:
    """Removes expired data in many short transactions; each run is limited, and the next one
    continues.

    ``endpoints`` are the names of the webhooks that the plan catalog has.
    """

    database: Database
    bodies_kept: timedelta
    clock: Clock
    endpoints: Sequence[str] = ()

    async def run(self) -> Counter[str]:
        """Remove expired data, and count it by kind. Several processes may run it at the same time.

        Raises `DatabaseUnavailableError`.
        """
        now = self.clock()
        removed = Counter[str]()
        for rule in RULES:
            removed[rule.kind] = await self._repeat(rule.statement, now - rule.kept, _MOST_ROUNDS)
        removed["deleted tenants"] = await self._purge_tenants(now)
        removed["raw bodies"] = await self._repeat(
            store.DELETE_BODIES, now - self.bodies_kept, _MOST_ROUNDS_OF_BODIES
        )
        removed += Counter()  # drop the zeros
        if removed:
            logger.info(
                "removed: %s", ", ".join(f"{number} {kind}" for kind, number in removed.items())
            )
        return removed

    async def _repeat(self, statement: str, until: datetime, most_rounds: int) -> int:
        total = 0
        for _ in range(most_rounds):
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                done = await store.remove_until(connection, statement, until, self.endpoints)
            total += done
            if done < store.ROWS_PER_STATEMENT:
                break
        return total

    async def _purge_tenants(self, now: datetime) -> int:
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            tenants = await store.purgeable_tenants(connection, now)
        return sum([await self._purge(tenant_id, now) for tenant_id in tenants])

    async def _purge(self, tenant_id: str, now: datetime) -> bool:
        for _ in range(_MOST_ROUNDS):
            async with self.database.change(ACROSS_TENANTS) as connection:
                if not await store.lock_deleted_tenant(connection, tenant_id, now):
                    return False
                if await store.purge_rows(connection, tenant_id) == 0:
                    await store.delete_tenant(connection, tenant_id)
                    return True
        return False
