"""What applications beside the service learn of a change of a tenant's billing account."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from tenantry.domain.billing.ledger import AccountChange, BillingAccount
from tenantry.domain.grants import HeldGrant, grant_of
from tenantry.domain.outbound_events import EventType, NewEvent
from tenantry.domain.plans import Catalog
from tenantry.domain.tenants import ManagedTenant, TenantRecord, to_managed_tenant


def published_changes(
    changes: Sequence[AccountChange], catalog: Catalog, now: datetime
) -> list[NewEvent]:
    """Return the events of changed access, or of another field of the record. Changes of ended
    tenants are not published.
    """
    return [
        NewEvent(
            _type_of(change), change.account.tenant_id, now, _shown(change.account, catalog, now)
        )
        for change in changes
        if change.is_published and not change.account.deleted
    ]


def _shown(account: BillingAccount, catalog: Catalog, now: datetime) -> ManagedTenant:
    """Return a tenant as the operator sees it after a change of its record at ``now``."""
    profile, billing = account.profile, account.record
    record = TenantRecord(
        id=account.tenant_id,
        name=profile.name,
        plan=billing.plan,
        subscription_status=billing.subscription_status,
        current_period_end=billing.current_period_end,
        cancel_at_period_end=billing.cancel_at_period_end,
        cancel_at=billing.cancel_at,
        ends_at=billing.ends_at,
        seats=billing.seats,
        access=msgspec.json.encode(billing.access).decode() if billing.access else None,
        stripe_customer_id=account.customer_id,
        owner_id=account.owner_id,
        created_at=profile.created_at,
        updated_at=now,
        time_zone=profile.time_zone,
    )
    return to_managed_tenant(
        record, profile.owner_email, catalog, now, suspension=profile.suspension
    )


def repaired_grants(change: AccountChange, now: datetime) -> list[NewEvent]:
    """Return the events of the grants that a replay repaired; none of an ended tenant."""
    if change.account.deleted:
        return []
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
