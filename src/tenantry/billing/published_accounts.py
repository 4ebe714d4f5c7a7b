"""Publishing what billing changes of tenants, in the transaction of the change."""

from collections.abc import Sequence
from datetime import datetime

from tenantry.db.connection import Connection
from tenantry.db.tenants_store import find_tenants
from tenantry.domain.billing.ledger import AccountChange
from tenantry.domain.grants import HeldGrant, grant_of
from tenantry.domain.outbound_events import EventType, NewEvent
from tenantry.domain.plans import Catalog
from tenantry.outbound.publishing import publish


async def publish_accounts(
    connection: Connection, changes: Sequence[AccountChange], catalog: Catalog, now: datetime
) -> None:
    """Publish changed accounts, whose tenants are locked and written: a changed access, or another
    change of the record. Ended tenants are left out.
    """
    types = {
        change.account.tenant_id: _type_of(change) for change in changes if change.is_published
    }
    if not types:
        return
    tenants = await find_tenants(connection, list(types))
    events = [
        NewEvent(types[tenant_id], tenant_id, now, tenant.managed(catalog, now))
        for tenant_id, tenant in tenants.items()
    ]
    await publish(connection, events, now)


async def publish_repair(
    connection: Connection, change: AccountChange, catalog: Catalog, now: datetime
) -> None:
    """Publish what a replay repaired of a tenant, which is locked and written: its account, and its
    grants.
    """
    await publish_accounts(connection, [change], catalog, now)
    if not change.account.deleted:
        await publish(connection, _repaired_grants(change, now), now)


def _repaired_grants(change: AccountChange, now: datetime) -> list[NewEvent]:
    before = change.before.held_grants
    return [
        NewEvent(_type_of_grant(held), change.account.tenant_id, now, grant_of(held))
        for name, held in change.account.held_grants.items()
        if held != before.get(name)
    ]


def _type_of_grant(held: HeldGrant) -> EventType:
    return EventType.GRANT_SET if held.ended_at is None else EventType.GRANT_ENDED


def _type_of(change: AccountChange) -> EventType:
    return EventType.ACCESS_CHANGED if change.is_read_by_checks else EventType.TENANT_UPDATED
