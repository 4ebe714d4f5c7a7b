"""Tenants."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.tenants_store import TENANT_COLUMNS, to_tenant
from tenantry.domain.owner_mails import OwnerAddress
from tenantry.domain.tenants import Tenant


class OwnerSeen(msgspec.Struct, frozen=True):
    """A tenant's owner with the address that a token vouches for, and when that token ends."""

    org_id: str
    user_id: str
    email: str
    token_issued: datetime


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
        f"SELECT {TENANT_COLUMNS} FROM tenants t "  # noqa: S608  # our own columns
        "WHERE deleted_at IS NULL "
        "AND (created_at, id) < (coalesce(%(after_at)s::timestamptz, 'infinity'), coalesce(%(after_id)s::text, '')) "
        "AND (id IN (SELECT tenant_id FROM memberships WHERE issuer = %(issuer)s AND subject = %(subject)s "
        "            AND removed_at IS NULL AND NOT invited) OR id = %(claimed)s) "
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
    return [to_tenant(row) for row in await cursor.fetchall()]


async def insert(
    connection: Connection,
    *,
    tenant_id: str,
    name: str,
    owner_id: str,
    owner_email: str,
    plan: str,
    now: datetime,
    owner_email_verified: bool = True,
) -> bool:
    """Store a new tenant; False if the id is taken."""
    cursor = await connection.execute(
        "INSERT INTO tenants (id, name, owner_id, owner_email, verified_email, base_plan, plan, created_at, "
        "updated_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO NOTHING",
        (tenant_id, name, owner_id, owner_email, owner_email if owner_email_verified else "", plan, plan, now, now),
    )
    return cursor.rowcount == 1


async def update(
    connection: Connection,
    tenant_id: str,
    *,
    name: str,
    owner_address: OwnerAddress,
    owner_id: str,
    suspended: bool,
    now: datetime,
    owner_email_follows: bool = False,
) -> None:
    """Write back what may change of a tenant; an address that somebody has set follows nothing."""
    await connection.execute(
        "UPDATE tenants SET name = %s, owner_email = %s, verified_email = %s, owner_email_follows = %s, owner_id = %s, "
        "updated_at = %s, suspended_at = CASE WHEN %s THEN coalesce(suspended_at, %s) END WHERE id = %s",
        (
            name,
            owner_address.email,
            owner_address.verified_email,
            owner_email_follows,
            owner_id,
            now,
            suspended,
            now,
            tenant_id,
        ),
    )


async def let_owner_email_follow(connection: Connection, tenant_id: str, token_issued: datetime) -> None:
    """The tenant's address is the one that a token, or the identity provider for it, vouches for; let it stay so."""
    await connection.execute(
        "UPDATE tenants SET owner_email_follows = true, owner_email_token_issued = %s WHERE id = %s",
        (token_issued, tenant_id),
    )


# Locked in the order of their ids, as everywhere.
ARE_WITHOUT: Final = """
SELECT EXISTS (SELECT FROM tenants)
   AND NOT EXISTS (SELECT FROM customers WHERE id = %(customer)s AND tenant_id = %(tenant)s)
"""
_SAME: Final = (
    "(left({one}, -length(split_part({one}, '@', -1))), lower(split_part({one}, '@', -1))) "
    "= (left({other}, -length(split_part({other}, '@', -1))), lower(split_part({other}, '@', -1)))"
)
"""As `same_address` has it: only the domain's case does not matter."""
MOVE_OWNER_EMAILS: Final = f"""
WITH moved AS (
    SELECT t.id, t.owner_email AS was, t.verified_email AS former, s.email, s.token_issued
      FROM unnest(%s::text[], %s::text[], %s::text[], %s::timestamptz[]) AS s (org_id, user_id, email, token_issued)
      JOIN tenants t ON t.id = s.org_id
     WHERE t.owner_id = s.user_id AND t.deleted_at IS NULL
       AND (({_SAME.format(one="t.owner_email", other="s.email")}
             AND NOT {_SAME.format(one="t.verified_email", other="s.email")})
            OR (t.owner_email_follows AND t.owner_email <> s.email
                AND (t.owner_email_token_issued IS NULL OR t.owner_email_token_issued <= s.token_issued)))
     ORDER BY t.id
       FOR NO KEY UPDATE OF t)
UPDATE tenants t
   SET owner_email = moved.email, verified_email = moved.email, owner_email_token_issued = moved.token_issued,
       updated_at = %s
  FROM moved
 WHERE t.id = moved.id
RETURNING t.id, moved.was, moved.former
"""  # noqa: S608  # our own columns


async def move_owner_emails(
    connection: Connection, seen: Sequence[OwnerSeen], now: datetime
) -> list[tuple[OwnerSeen, OwnerAddress]]:
    """Let the addresses of tenants follow their owners', one a tenant; returns the changes with the address before.

    An address that is not verified, and is the one that the owner's token vouches for, is verified from now on.
    """
    by_tenant = {one.org_id: one for one in seen}
    cursor = await connection.execute(
        MOVE_OWNER_EMAILS,
        (
            list(by_tenant),
            [one.user_id for one in by_tenant.values()],
            [one.email for one in by_tenant.values()],
            [one.token_issued for one in by_tenant.values()],
            now,
        ),
    )
    changes = [(by_tenant[row[0]], OwnerAddress(row[1], row[2])) for row in await cursor.fetchall()]
    return sorted(changes, key=lambda change: change[0].org_id)


async def set_verified_email(connection: Connection, tenant_id: str, email: str, now: datetime) -> None:
    """Record that an address of the owner is verified."""
    await connection.execute(
        "UPDATE tenants SET verified_email = %s, updated_at = %s WHERE id = %s", (email, now, tenant_id)
    )


async def link_customer(
    connection: Connection, tenant_id: str, customer_id: str, linked_by: str, now: datetime
) -> bool:
    """Tie a provider's customer to a tenant; False if another tenant has it."""
    await connection.execute(
        "INSERT INTO customers (id, tenant_id, linked_by, linked_at) VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (id) DO NOTHING",
        (customer_id, tenant_id, linked_by, now),
    )
    cursor = await connection.execute(
        "SELECT 1 FROM customers WHERE id = %s AND tenant_id = %s", (customer_id, tenant_id)
    )
    is_tied = await cursor.fetchone() is not None
    if is_tied:
        await connection.execute(
            "UPDATE tenants SET stripe_customer_id = %s, updated_at = %s "
            "WHERE id = %s AND stripe_customer_id IS DISTINCT FROM %s",
            (customer_id, now, tenant_id, customer_id),
        )
    return is_tied


async def mark_deleted(connection: Connection, tenant_id: str, now: datetime) -> None:
    """End a tenant; its data stays until retention removes it."""
    await connection.execute(
        "UPDATE tenants SET deleted_at = %s, updated_at = %s WHERE id = %s AND deleted_at IS NULL",
        (now, now, tenant_id),
    )


async def are_without(connection: Connection, tenant_id: str, customer_id: str) -> bool:
    """Whether there are tenants, and none of this id that this customer was ever linked to; across tenants."""
    cursor = await connection.execute(ARE_WITHOUT, {"tenant": tenant_id, "customer": customer_id})
    row = await cursor.fetchone()
    return bool(row and row[0])
