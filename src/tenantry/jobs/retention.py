"""Letting go of data that is past its time (idempotency keys, parked events, deleted tenants, raw bodies, names)."""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.jobs import retention_store as retention

_MOST_ROUNDS: Final = 500
# There is one for every event: what a run lets go of, six times an hour, is over 3,000 a second.
_MOST_ROUNDS_OF_BODIES: Final = 2000

logger = logging.getLogger(__name__)


class Removed(msgspec.Struct, frozen=True):
    """What a run removed."""

    idempotency_keys: int
    parked_events: int
    tenants: int
    bodies: int
    request_counts: int = 0
    names: int = 0
    sessions: int = 0
    owner_mails: int = 0


class RetentionService:
    """Removes in many short transactions; what a run does not get to is left to the next one."""

    def __init__(self, database: Database, bodies_kept: timedelta, clock: Clock) -> None:
        self._database = database
        self._bodies_kept = bodies_kept
        self._clock = clock

    async def run(self) -> Removed:
        """Remove what is past its time. Safe to call at any time, also from several processes at once.

        Raises `DatabaseUnavailableError`.
        """
        now = self._clock()
        removed = Removed(
            idempotency_keys=await self._repeat(retention.delete_idempotency_keys, now),
            parked_events=await self._repeat(retention.expire_parked, now),
            tenants=await self._purge_tenants(now),
            request_counts=await self._repeat(retention.delete_request_counts, now),
            names=await self._repeat(retention.delete_names, now),
            sessions=await self._repeat(retention.delete_sessions, now),
            owner_mails=await self._repeat(retention.delete_owner_mails, now),
            bodies=await self._repeat(retention.delete_bodies, now - self._bodies_kept, _MOST_ROUNDS_OF_BODIES),
        )
        if any(msgspec.structs.astuple(removed)):
            logger.info(
                "removed: %d idempotency keys, %d parked events, %d deleted tenants, %d raw bodies of events, "
                "%d counts of requests, %d names of people, %d sessions, %d sent mails",
                *msgspec.structs.astuple(removed),
            )
        return removed

    async def _repeat(
        self, step: Callable[[Connection, datetime], Awaitable[int]], now: datetime, most_rounds: int = _MOST_ROUNDS
    ) -> int:
        total = 0
        for _ in range(most_rounds):
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                done = await step(connection, now)
            total += done
            if done < retention.ROWS_PER_STATEMENT:
                break
        return total

    async def _purge_tenants(self, now: datetime) -> int:
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            tenants = await retention.purgeable_tenants(connection, now)
        purged = [tenant_id for tenant_id in tenants if await self._purge(tenant_id, now)]
        return len(purged)

    async def _purge(self, tenant_id: str, now: datetime) -> bool:
        for _ in range(_MOST_ROUNDS):
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                if not await retention.lock_deleted_tenant(connection, tenant_id, now):
                    return False
                if await retention.purge_rows(connection, tenant_id) == 0:
                    await retention.delete_tenant(connection, tenant_id)
                    return True
        return False
