"""Requests that the payment provider refused, kept for the operator."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from tenantry.billing import provider_refusals_store as store
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.errors import ProviderRefusedError

ProviderOperation = Literal[
    "checkout", "portal session", "change of seats", "customer lookup", "payment lookup"
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProviderRefusals:
    """Keeps the refusals of requests to the provider with its own messages, for `doctor`."""

    database: Database
    clock: Clock

    @asynccontextmanager
    async def kept(
        self,
        operation: ProviderOperation,
        *,
        tenant_id: str | None = None,
        customer_id: str | None = None,
    ) -> AsyncIterator[None]:
        """Keep the refusal that the block raises, and raise it again, also if it cannot be kept.

        Without a ``tenant_id`` the tenant is that of the customer.
        """
        try:
            yield
        except ProviderRefusedError as refusal:
            kept = store.RefusalToKeep(
                operation, refusal.provider_code, refusal.said or "", tenant_id, customer_id
            )
            await self._keep(kept)
            raise

    async def _keep(self, refusal: store.RefusalToKeep) -> None:
        try:
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                await store.keep(connection, refusal, self.clock())
        except Exception:
            logger.exception("a refusal of the payment provider could not be kept for doctor")
