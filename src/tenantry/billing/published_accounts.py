"""Writing changed accounts of tenants, and publishing what changed of them."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from tenantry.billing.accounts_store import update_accounts
from tenantry.db.statements import BoundStatement
from tenantry.domain.billing.ledger import AccountChange, BillingAccount
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.grants import HeldGrant, grant_of
from tenantry.domain.outbound_events import EventType, NewEvent
from tenantry.domain.plans import Catalog
from tenantry.domain.tenants import ManagedTenant, TenantRecord, to_managed_tenant
from tenantry.outbound.publishing import publication


def write_accounts(
    changes: Sequence[AccountChange], policy: BillingPolicy, now: datetime
) -> list[BoundStatement]:
    """Write back the accounts of locked tenants, and publish what changed: the access, or another
    field of the record. Changes of ended tenants are not published.
    """
    published = _events(changes, policy.catalog, now)
    return [*update_accounts(changes, policy, now), *publication(published, now)]


def write_repair(
    change: AccountChange, policy: BillingPolicy, now: datetime
) -> list[BoundStatement]:
    """As `write_accounts`, for what a replay repaired of a tenant: its account, and its grants."""
    grants = [] if change.account.deleted else _repaired_grants(change, now)
    return [*write_accounts([change], policy, now), *publication(grants, now)]


def _events(changes: Sequence[AccountChange], catalog: Catalog, now: datetime) -> list[NewEvent]:
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
    return to_managed_tenant(record, profile.owner_email, catalog, now, suspended=profile.suspended)


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
