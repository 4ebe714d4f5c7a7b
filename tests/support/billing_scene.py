"""The part of the service that handles events, without HTTP: deliver events, link customers, read
what tenants have, and fold their ledgers again.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from tenantry.accounts.tenants import TenantService
from tenantry.billing.customer_links import CustomerLinks
from tenantry.billing.ingest import WebhookService
from tenantry.billing.replay import ReplayService, Selection
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import LedgerEntry, ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.tenants import TenantInput
from tests.support.billing import add_tenants, rows
from tests.support.patience import patient_database


class Scene:
    """The services that change tenants' billing state, on one database, at one moment."""

    def __init__(
        self,
        conninfo: str,
        database: Database,
        policy: BillingPolicy,
        now: datetime,
        outbox: Outbox,
    ) -> None:
        self.conninfo = conninfo
        self.database = database
        self.policy = policy
        self.now = now
        self.webhooks = WebhookService([database.lane()], policy, outbox, lambda: now)
        self.links = CustomerLinks(database, policy, outbox, lambda: now)
        self.tenants = TenantService(database, policy, Outbox(), lambda: now)

    async def create(self, *tenants: str, **customers: str) -> None:
        """Create these tenants, and some with a customer, in one statement."""
        await add_tenants(self.conninfo, {**dict.fromkeys(tenants), **customers})

    async def put(self, tenant: str, customer: str | None = None) -> None:
        """Create a tenant as the operator does, so that it gets what waits for it."""
        given = TenantInput(tenant, "owner@x.example", f"usr_{tenant}", customer)
        await self.tenants.put(BY_OPERATOR, tenant, given)

    async def deliver(self, *batch: BillingEvent) -> list[str | None]:
        """Deliver events in one transaction; return the tenant of each."""
        entries = await self.webhooks.apply([ReceivedEvent(event, self.now) for event in batch])
        assert not [entry for entry in entries if not isinstance(entry, LedgerEntry)], entries
        return [entry.tenant_id for entry in entries if isinstance(entry, LedgerEntry)]

    async def states(self) -> dict[str, tuple[str, str]]:
        """The plan and subscription status of each tenant."""
        found = await rows(self.conninfo, "SELECT id, plan, subscription_status FROM tenants")
        return {each["id"]: (each["plan"], each["subscription_status"]) for each in found}

    async def plans(self) -> dict[str, str]:
        """The plan of each tenant."""
        return {tenant: plan for tenant, (plan, _) in (await self.states()).items()}

    async def statuses(self) -> dict[str, str]:
        """The subscription status of each tenant."""
        return {tenant: status for tenant, (_, status) in (await self.states()).items()}

    async def mailed(self) -> dict[str, str]:
        """The tenants whose owners are mailed of failed payments, by event."""
        found = await rows(self.conninfo, "SELECT cause, tenant_id FROM notifications")
        return {each["cause"]: each["tenant_id"] for each in found}

    async def rebuild(self, tenants: Sequence[str] | None = None, *, dry_run: bool) -> list[str]:
        """Fold ledgers again, all or those of these tenants; return the tenants whose state
        differs.
        """
        replay = ReplayService(self.database, self.policy, lambda: self.now)
        chunks = replay.run(Selection(None if tenants is None else tuple(tenants)), dry_run=dry_run)
        return [
            each.tenant_id async for chunk in chunks for each in chunk.checked if not each.is_right
        ]


@asynccontextmanager
async def running_scene(
    conninfo: str, policy: BillingPolicy, now: datetime, outbox: Outbox | None = None
) -> AsyncIterator[Scene]:
    """A scene on this database."""
    database = patient_database(conninfo, pool_size=2)
    await database.open()
    scene = Scene(conninfo, database, policy, now, outbox or Outbox())
    try:
        yield scene
    finally:
        await scene.webhooks.close()
        await database.close()
