"""Seats that follow members: the quantity at the provider is the number of active members."""

import hashlib
import logging
from dataclasses import dataclass
from typing import Final

import msgspec

from tenantry.audit.trail import RecordedChange
from tenantry.billing import seats_store as store
from tenantry.billing.provider_refusals import ProviderRefusals
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS, of_tenant
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.db.tenants_store import find_tenant
from tenantry.domain.audit import Action, ActorKind, Author
from tenantry.domain.billing.customer_account import BilledItem
from tenantry.domain.billing.seats import item_to_set, seats_wanted
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.issuers import Issuers
from tenantry.integrations.stripe.client import ProviderApi

_BY_SYSTEM: Final = Author(ActorKind.SYSTEM)
_MOST_DRIFTED: Final = 1000
_HOUR: Final = 3600

logger = logging.getLogger(__name__)


class _Seats(msgspec.Struct, frozen=True):
    """The quantity of a subscription's plan in the audit trail."""

    quantity: int | None


@dataclass(frozen=True)
class SeatService:
    """Sets the quantity of plans whose seats follow the members, users of the ``issuers``.

    It holds no database connection during a request to the provider. The provider decides what the
    change costs (proration).
    """

    database: Database
    provider: ProviderApi
    policy: BillingPolicy
    outbox: Outbox
    clock: Clock
    issuers: Issuers | None = None

    async def follow(self, org_id: str, job_id: int) -> None:
        """Set the quantity of a tenant's subscriptions to the number of its active members now.

        Do nothing for a tenant that has ended. Only one job of a tenant may run at a time, so that
        the last number wins. Repeating a job is safe: it sets a number, and reads the current item
        and its quantity first. Raises the errors of `ProviderApi`.
        """
        async with self.database.transaction(of_tenant(org_id)) as connection:
            # A change of the members holds this lock until it is committed.
            tenant = await find_tenant(connection, org_id, lock=True)
            if tenant is None or tenant.deleted:
                return
            number = await store.count_active_members(connection, org_id, self.issuers)
            subscriptions = await store.seat_subscriptions(connection, org_id, self._plans)
        refusals = ProviderRefusals(self.database, self.clock)
        async with refusals.kept("change of seats", tenant_id=org_id):
            for subscription_id in subscriptions:
                await self._set(org_id, subscription_id, seats_wanted(number), job_id)

    async def defer_drifted(self) -> int:
        """Defer a job for each tenant whose seats are not the number of its active members; return
        how many they are.

        That finds what a change of the members cannot tell: a member who joined during the
        checkout, a cancellation that was revoked, a quantity that was changed at the provider.
        """
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            tenants = await store.drifted(connection, self._plans, self.issuers, _MOST_DRIFTED)
            await self.outbox.defer_seats(connection, tenants)
        return len(tenants)

    @property
    def _plans(self) -> list[str]:
        return [plan.id for plan in self.policy.catalog.plans if plan.seats_follow_members]

    async def _set(self, org_id: str, subscription_id: str, wanted: int, job_id: int) -> None:
        subscription = await self.provider.billed_by(subscription_id)
        if subscription is None:
            return
        item = item_to_set(subscription, org_id, wanted, self.policy)
        if item is None:
            return
        key = self._idempotency_key(job_id, item, wanted)
        await self.provider.set_quantity(subscription_id, item.id, wanted, key)
        now = self.clock()
        async with self.database.transaction(of_tenant(org_id)) as connection:
            change = RecordedChange(connection, _BY_SYSTEM, org_id, now)
            await change.record(
                Action.BILLING_SEATS,
                subscription_id,
                before=_Seats(item.quantity),
                after=_Seats(wanted),
            )
        logger.info(
            "subscription %s of tenant %s has %d seats now, as many as active members",
            subscription_id,
            org_id,
            wanted,
        )

    def _idempotency_key(self, job_id: int, item: BilledItem, wanted: int) -> str:
        """Return the same key for a repetition of the same change by the same job, for an hour.

        The provider repeats also its internal errors for a day, so that a key for longer would keep
        the change from succeeding (https://docs.stripe.com/api/idempotent_requests).
        """
        hour = int(self.clock().timestamp()) // _HOUR
        change = f"{job_id}\x1f{item.id}\x1f{item.quantity}\x1f{wanted}\x1f{hour}"
        return "tenantry-seats-" + hashlib.sha256(change.encode()).hexdigest()
