"""Tenants and their members."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.db.database import Connection
from tenantry.domain.access import Role
from tenantry.domain.tenants import Tenant
from tenantry.kit.clock import from_epoch

_COLUMNS: Final = (
    "id, name, plan, subscription_status, current_period_end, cancel_at_period_end, stripe_customer_id, owner_id, "
    "created_at, updated_at"
)


class TenantRow(msgspec.Struct, frozen=True):
    """A tenant with what its public record leaves out."""

    record: Tenant
    owner_email: str
    suspended: bool
    deleted: bool


def _row(row: Sequence[Any]) -> TenantRow:
    (tenant_id, name, plan, status, period_end, cancel, customer, owner_id, created_at, updated_at,
     owner_email, suspended, deleted) = row  # fmt: skip
    record = Tenant(
        id=tenant_id,
        name=name,
        plan=plan,
        subscription_status=status,
        current_period_end=from_epoch(period_end),
        cancel_at_period_end=cancel,
        stripe_customer_id=customer,
        owner_id=owner_id,
        created_at=created_at,
        updated_at=updated_at,
    )
    return TenantRow(record, owner_email, suspended, deleted)


async def find(connection: Connection, tenant_id: str, *, lock: bool = False) -> TenantRow | None:
    """One tenant, ended ones included."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS}, owner_email, suspended_at IS NOT NULL, deleted_at IS NOT NULL "  # noqa: S608  # our own
        "FROM tenants WHERE id = %s" + (" FOR NO KEY UPDATE" if lock else ""),
        (tenant_id,),
    )
    row = await cursor.fetchone()
    return _row(row) if row else None


async def read_of_user(
    connection: Connection,
    issuer: str,
    subject: str,
    claimed: str | None,
    limit: int,
    after: tuple[datetime | None, str | None],
) -> list[Tenant]:
    """The living tenants that a user belongs to or that the token claims, newest first, one more than ``limit``."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS}, owner_email, false, false FROM tenants t "  # noqa: S608  # our own columns
        "WHERE deleted_at IS NULL "
        "AND (created_at, id) < (coalesce(%(after_at)s::timestamptz, 'infinity'), coalesce(%(after_id)s::text, '')) "
        "AND (id IN (SELECT tenant_id FROM memberships WHERE issuer = %(issuer)s AND subject = %(subject)s "
        "            AND removed_at IS NULL) OR id = %(claimed)s) "
        "ORDER BY created_at DESC, id DESC LIMIT %(most)s",
        {
            "issuer": issuer,
            "subject": subject,
            "claimed": claimed,
            "after_at": after[0],
            "after_id": after[1],
            "most": limit + 1,
        },
    )
    return [_row(row).record for row in await cursor.fetchall()]


async def insert(
    connection: Connection,
    *,
    tenant_id: str,
    name: str,
    owner_id: str,
    owner_email: str,
    plan: str,
    now: datetime,
) -> bool:
    """Store a new tenant; False if the id is taken."""
    cursor = await connection.execute(
        "INSERT INTO tenants (id, name, owner_id, owner_email, base_plan, plan, created_at, updated_at) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO NOTHING",
        (tenant_id, name, owner_id, owner_email, plan, plan, now, now),
    )
    return cursor.rowcount == 1


async def update(
    connection: Connection,
    tenant_id: str,
    *,
    name: str,
    owner_email: str,
    owner_id: str,
    suspended: bool,
    now: datetime,
) -> None:
    """Write back what may change of a tenant."""
    await connection.execute(
        "UPDATE tenants SET name = %s, owner_email = %s, owner_id = %s, updated_at = %s, "
        "suspended_at = CASE WHEN %s THEN coalesce(suspended_at, %s) END WHERE id = %s",
        (name, owner_email, owner_id, now, suspended, now, tenant_id),
    )


async def link_customer(connection: Connection, tenant_id: str, customer_id: str, linked_by: str, now: datetime) -> str:
    """Tie a provider's customer to a tenant unless it is tied already; returns the tenant that has it."""
    await connection.execute(
        "INSERT INTO customers (id, tenant_id, linked_by, linked_at) VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (id) DO NOTHING",
        (customer_id, tenant_id, linked_by, now),
    )
    cursor = await connection.execute("SELECT tenant_id FROM customers WHERE id = %s", (customer_id,))
    row = await cursor.fetchone()
    holder = str(row[0]) if row else tenant_id
    if holder == tenant_id:
        await connection.execute(
            "UPDATE tenants SET stripe_customer_id = %s, updated_at = %s "
            "WHERE id = %s AND stripe_customer_id IS DISTINCT FROM %s",
            (customer_id, now, tenant_id, customer_id),
        )
    return holder


async def mark_deleted(connection: Connection, tenant_id: str, now: datetime) -> None:
    """End a tenant; its data stays until retention removes it."""
    await connection.execute(
        "UPDATE tenants SET deleted_at = %s, updated_at = %s WHERE id = %s AND deleted_at IS NULL",
        (now, now, tenant_id),
    )


async def put_member(
    connection: Connection, tenant_id: str, issuer: str, subject: str, role: Role, now: datetime
) -> None:
    """Make a user a member with this role."""
    await connection.execute(
        "INSERT INTO memberships (tenant_id, issuer, subject, role, created_at) VALUES (%s, %s, %s, %s, %s) "
        "ON CONFLICT (issuer, subject, tenant_id) DO UPDATE SET role = excluded.role, removed_at = NULL",
        (tenant_id, issuer, subject, role, now),
    )


async def read_members(connection: Connection, tenant_id: str) -> list[dict[str, Any]]:
    """The memberships of a tenant, removed ones included, for its export."""
    cursor = await connection.execute(
        "SELECT issuer, subject, role, created_at, removed_at FROM memberships WHERE tenant_id = %s "
        "ORDER BY created_at, subject",
        (tenant_id,),
    )
    names = ("issuer", "subject", "role", "createdAt", "removedAt")
    return [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]
