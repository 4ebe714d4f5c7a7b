"""Finding the tenants of parked refunds and disputes: by what the ledger knows of their charges by
now, else by the provider's answer.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tenantry.billing import reversals_store as store
from tenantry.billing.ledger_store import lock_names, tenants_of_customers
from tenantry.billing.locked_ledger import LedgerTransaction
from tenantry.billing.locked_tenants import lock_tenant
from tenantry.billing.provider_refusals import ProviderRefusals
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import KnownTenants, NameLock, ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.integrations.stripe.client import ProviderApi
from tenantry.integrations.stripe.payments import PaymentOwner

_ASKED_FOR: Final = timedelta(days=1)
"""How long the provider is asked about a payment that it does not know."""
_MOST_AT_ONCE: Final = 200
_NO_CUSTOMER: Final = "The payment has no customer at the provider."

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReversalPlacer:
    """Applies parked refunds and disputes once their tenant can be known. Without a ``provider``
    the ledger alone says it.
    """

    database: Database
    provider: ProviderApi | None
    policy: BillingPolicy
    outbox: Outbox
    clock: Clock

    async def place_parked(self) -> int:
        """Apply the parked refunds and disputes whose tenant is known by now; return their number.

        An answer of the provider that names a customer is kept, so it is asked once. Raises
        `DatabaseUnavailableError`.
        """
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            waiting = await store.read_waiting(connection, _MOST_AT_ONCE)
        placed, can_ask = 0, self.provider is not None
        for parked in reversed(waiting):
            if can_ask and self._is_to_ask(parked) and not await self._tenant_of(parked.event):
                can_ask = await self._ask(parked.event)
            placed += await self._place(parked.event.id)
        return placed

    def _is_to_ask(self, parked: ReceivedEvent) -> bool:
        """Whether nothing of an event says whose it is. Another account's payment is unknown to
        ours.
        """
        event = parked.event
        is_recent = self.clock() - parked.received_at < _ASKED_FOR
        return event.customer_id is None and event.account is None and is_recent

    async def _tenant_of(self, event: BillingEvent) -> str | None:
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await self._known_tenant(connection, event)

    async def _known_tenant(self, connection: Connection, event: BillingEvent) -> str | None:
        """Return the tenant of an event, by the ledger, else by its customer's link."""
        payments = await store.tenants_of_payments(
            connection, [event], by_invoice=self.policy.is_each
        )
        customers = await tenants_of_customers(connection, [event])
        return KnownTenants(customers, {}, tenant_of_payment=payments).of_reversal(event)

    async def _ask(self, event: BillingEvent) -> bool:
        """Ask the provider whose a payment is, and keep the answer; return False if it cannot be
        asked about others now either.
        """
        try:
            owner = await self._owner_of(event.payments[0])
        except (ProviderRefusedError, ProviderUnavailableError) as error:
            logger.warning(
                "the provider did not say whose a refund or dispute is: %s", error.detail
            )
            return isinstance(error, ProviderRefusedError) and not error.of_key
        if owner is not None:
            await self._keep(event, owner)
        return True

    async def _owner_of(self, payment_id: str) -> PaymentOwner | None:
        assert self.provider is not None  # noqa: S101  # the caller checks it
        refusals = ProviderRefusals(self.database, self.clock)
        async with refusals.kept("payment lookup"):
            return await self.provider.payment_owner(payment_id, by_invoice=self.policy.is_each)

    async def _keep(self, event: BillingEvent, owner: PaymentOwner) -> None:
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            if owner.customer_id is None:
                await store.ignore(connection, event.id, _NO_CUSTOMER)
                return
            # as an event does that is parked for a customer: its link then finds the entry
            await lock_names(connection, [NameLock(f"customer {owner.customer_id}", claimed=False)])
            await store.name_customer(connection, event.id, owner.customer_id, owner.invoice_id)

    async def _place(self, event_id: str) -> int:
        """Apply an event if it is still parked and its tenant is known; return 1 then."""
        async with self._transaction() as transaction:
            connection = transaction.connection
            found = await store.find_parked(connection, event_id)
            tenant_id = await self._known_tenant(connection, found.event) if found else None
            if tenant_id is None:
                return 0
            async with lock_tenant(transaction, tenant_id) as ledger:
                # another transaction may have placed it while this waited for the tenant
                parked = await store.find_parked(connection, event_id)
                if ledger.account is None or parked is None:
                    return 0
                await ledger.apply_parked([parked])
        return 1

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[LedgerTransaction]:
        async with self.database.change(ACROSS_TENANTS) as connection:
            yield LedgerTransaction(connection, self.policy, self.clock(), self.outbox)
