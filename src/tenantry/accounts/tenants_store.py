"""Tenants: their pages, changes, owner addresses, customers and failed invoices."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import UNSET, UnsetType

from tenantry.db.connection import Connection
from tenantry.db.pagination import MAX_SCANNED_ROWS, Listing, Page, Window
from tenantry.db.tenants_store import TENANT_COLUMNS, TenantRow
from tenantry.domain.billing.subscription_overview import FailedInvoice
from tenantry.domain.members import User
from tenantry.domain.owner_mails import OwnerAddress
from tenantry.domain.plans import OVER, Catalog
from tenantry.domain.tenants import Tenant, TenantRecord, to_tenant

_LISTING: Final = Listing(TENANT_COLUMNS, "tenants", "created_at")
HAS_TENANTS_WITHOUT_CUSTOMER: Final = """
SELECT EXISTS (SELECT FROM tenants)
   AND NOT EXISTS (SELECT FROM customers WHERE id = %(customer)s AND tenant_id = %(tenant)s)
"""
# Whether the provider will charge a tenant again: a subscription that has not ended, and whose end
# is not scheduled. With SUBSCRIPTIONS=any the view has one row, of the newest state.
HAS_RENEWAL: Final = """
SELECT EXISTS (
       SELECT FROM subscriptions
        WHERE tenant_id = %(tenant)s
          AND status <> 'none'
          AND status <> ALL (%(over)s)
          AND coalesce(provider_status <> ALL (%(over)s), true)
          AND cancel_at IS NULL
          AND NOT cancel_at_period_end)
"""
# Of each invoice the newest failure.
FAILED_INVOICES: Final = """
SELECT DISTINCT ON (coalesce(document->>'invoice_id', id))
       id, created, invoice_url,
       coalesce(document->>'amount_remaining', document->>'amount_due')::bigint,
       document->>'currency', (document->'details'->>'next_attempt')::bigint,
       document->>'invoice_id', subscription_id, arrival
  FROM (SELECT *
          FROM billing_events
         WHERE tenant_id = %(tenant_id)s
         ORDER BY created DESC, arrival DESC
         LIMIT %(most)s) AS newest
 WHERE type = 'invoice.payment_failed' AND outcome IN ('applied', 'late', 'no_change')
 ORDER BY coalesce(document->>'invoice_id', id), created DESC, arrival DESC
"""


async def read_of_user(
    connection: Connection,
    user: User,
    claimed: str | None,
    window: Window,
    catalog: Catalog,
    now: datetime,
) -> Page[Tenant]:
    """Read a page of the current tenants of a user and of the token's claim, newest first, as of
    ``now``.
    """

    def row_of(row: Sequence[Any]) -> Tenant:
        return to_tenant(TenantRecord(*row), catalog, now)

    condition = (
        "deleted_at IS NULL AND (id = %(claimed)s OR id IN (SELECT tenant_id FROM memberships "
        "WHERE issuer = %(issuer)s AND subject = %(subject)s AND removed_at IS NULL AND NOT invited))"
    )
    return await _LISTING.page(
        connection,
        condition,
        {**user._asdict(), "claimed": claimed},
        window,
        row_of,
    )


async def insert(
    connection: Connection,
    tenant_id: str,
    name: str,
    owner_id: str,
    owner: OwnerAddress,
    now: datetime,
) -> bool:
    """Store a new tenant; return False if the id is taken."""
    cursor = await connection.execute(
        "INSERT INTO tenants (id, name, owner_id, owner_email, verified_email, created_at, "
        "updated_at) VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO NOTHING",
        (tenant_id, name, owner_id, owner.email, owner.verified_email, now, now),
    )
    return cursor.rowcount == 1


async def update(
    connection: Connection,
    tenant: TenantRow,
    owner_address: OwnerAddress,
    now: datetime,
    *,
    name: str | None = None,
    owner_id: str | None = None,
    suspension: str | UnsetType | None = UNSET,
    owner_email_follows: bool = False,
    time_zone: str | UnsetType | None = UNSET,
    leaves_key_mails: bool | None = None,
) -> None:
    """Store changes of a tenant; None leaves a field unchanged, and UNSET the time zone and the
    suspension.
    """
    suspended_for = tenant.suspension if suspension is UNSET else suspension
    await connection.execute(
        "UPDATE tenants SET name = %s, owner_email = %s, verified_email = %s, owner_email_follows = %s, owner_id = %s, "
        "updated_at = %s, suspended_at = CASE WHEN %s THEN coalesce(suspended_at, %s) END, suspension = %s, "
        "time_zone = %s, leaves_key_mails = %s "
        "WHERE id = %s",
        (
            tenant.record.name if name is None else name,
            owner_address.email,
            owner_address.verified_email,
            owner_email_follows,
            owner_id or tenant.record.owner_id,
            now,
            suspended_for is not None,
            now,
            suspended_for,
            tenant.record.time_zone if time_zone is UNSET else time_zone,
            tenant.leaves_key_mails if leaves_key_mails is None else leaves_key_mails,
            tenant.record.id,
        ),
    )


SET_SUSPENSION: Final = """
UPDATE tenants
   SET suspended_at = CASE WHEN %(is_suspended)s THEN coalesce(suspended_at, %(now)s) END,
       suspension = %(suspension)s,
       updated_at = %(now)s
 WHERE id = %(id)s
"""


async def set_suspension(
    connection: Connection, tenant_id: str, suspension: str | None, now: datetime
) -> None:
    """Suspend a tenant for a reason, which may be empty, or with None end its suspension."""
    values = {
        "id": tenant_id,
        "is_suspended": suspension is not None,
        "suspension": suspension,
        "now": now,
    }
    await connection.execute(SET_SUSPENSION, values)


async def let_owner_email_follow(
    connection: Connection, tenant_id: str, token_issued: datetime
) -> None:
    """Let the owner's address follow the identity provider's from now on."""
    query = (
        "UPDATE tenants SET owner_email_follows = true, owner_email_token_issued = %s WHERE id = %s"
    )
    await connection.execute(query, (token_issued, tenant_id))


async def move_owner_email(
    connection: Connection, tenant_id: str, email: str, token_issued: datetime, now: datetime
) -> bool:
    """Set the owner's address to a verified one; return False if a token that was issued later has
    set it.
    """
    cursor = await connection.execute(
        "UPDATE tenants SET owner_email = %s, verified_email = %s, owner_email_token_issued = %s, updated_at = %s "
        "WHERE id = %s AND NOT (owner_email_follows AND coalesce(owner_email_token_issued > %s, false))",
        (email, email, token_issued, now, tenant_id, token_issued),
    )
    return cursor.rowcount == 1


async def mark_deleted(connection: Connection, tenant_id: str, now: datetime) -> None:
    """End a tenant; its data stays until retention removes it."""
    query = (
        "UPDATE tenants SET deleted_at = %s, updated_at = %s WHERE id = %s AND deleted_at IS NULL"
    )
    await connection.execute(query, (now, now, tenant_id))


async def has_renewal(connection: Connection, tenant_id: str) -> bool:
    """Whether a tenant has a subscription that will renew."""
    values = {"tenant": tenant_id, "over": sorted(OVER)}
    return bool(await connection.fetch_value(HAS_RENEWAL, values))


async def has_tenants_without_customer(
    connection: Connection, tenant_id: str, customer_id: str
) -> bool:
    """Whether there are tenants, but none with this id that was ever linked to this customer;
    across tenants.
    """
    values = {"tenant": tenant_id, "customer": customer_id}
    return bool(await connection.fetch_value(HAS_TENANTS_WITHOUT_CUSTOMER, values))


async def failed_invoices(connection: Connection, tenant_id: str) -> list[FailedInvoice]:
    """Find the invoices of failed payments among a tenant's newest `MAX_SCANNED_ROWS` events,
    newest failure first.
    """
    rows = await connection.fetch(
        FAILED_INVOICES, {"tenant_id": tenant_id, "most": MAX_SCANNED_ROWS}
    )
    newest_first = sorted(rows, key=lambda row: (row[1], row[8]), reverse=True)
    return [FailedInvoice(*row[:8]) for row in newest_first]
