"""A user's own memberships, across tenants. Every statement names the user, by issuer and subject."""

from datetime import datetime
from typing import Final, NamedTuple

from tenantry.db.connection import Connection
from tenantry.domain.access import Role
from tenantry.domain.members import Membership, MemberStatus

_INVITATIONS_COUNTED: Final = 100


class User(NamedTuple):
    """A user of an identity provider."""

    issuer: str
    subject: str


async def read_page(
    connection: Connection,
    user: User,
    status: MemberStatus | None,
    *,
    limit: int,
    after: tuple[datetime | None, str | None],
) -> list[tuple[Membership, datetime]]:
    """A user's memberships and invitations with the time of each, newest first, one more than ``limit`` if there are.

    Removed members have none, and neither have members of a tenant that has ended.
    """
    cursor = await connection.execute(
        "SELECT m.id, m.tenant_id, t.name, m.role, m.invited, m.created_at "
        "FROM memberships m JOIN tenants t ON t.id = m.tenant_id "
        "WHERE m.issuer = %(issuer)s AND m.subject = %(subject)s AND m.removed_at IS NULL AND t.deleted_at IS NULL "
        "AND (m.created_at, m.id) < (coalesce(%(after_at)s::timestamptz, 'infinity'), coalesce(%(after_id)s, '')) "
        "AND (%(invited)s::boolean IS NULL OR m.invited = %(invited)s) "
        "ORDER BY m.created_at DESC, m.id DESC LIMIT %(most)s",
        {
            **user._asdict(),
            "after_at": after[0],
            "after_id": after[1],
            "invited": None if status is None else status is MemberStatus.INVITED,
            "most": limit + 1,
        },
    )
    return [
        (Membership(found, org_id, name, Role(role), _status(invited=invited)), created_at)
        for found, org_id, name, role, invited, created_at in await cursor.fetchall()
    ]


async def find_tenant(connection: Connection, user: User, membership_id: str) -> str | None:
    """The id of the tenant that a membership of the user, be it a removed one, is in."""
    cursor = await connection.execute(
        "SELECT tenant_id FROM memberships WHERE id = %s AND issuer = %s AND subject = %s", (membership_id, *user)
    )
    row = await cursor.fetchone()
    return row[0] if row else None


async def count_invitations(connection: Connection, user: User) -> int:
    """How many invitations wait for a user, up to a hundred."""
    cursor = await connection.execute(
        "SELECT count(*) FROM (SELECT FROM memberships m JOIN tenants t ON t.id = m.tenant_id "
        "WHERE m.issuer = %s AND m.subject = %s AND m.invited AND m.removed_at IS NULL AND t.deleted_at IS NULL "
        "LIMIT %s) counted",
        (*user, _INVITATIONS_COUNTED),
    )
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def hold_creations(connection: Connection, user: User) -> None:
    """Let no other transaction of this user create a tenant until this one ends."""
    name = f"tenants of\x1f{user.issuer}\x1f{user.subject}"
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))


async def has_created(connection: Connection, user: User, number: int) -> bool:
    """Whether a user has created at least so many tenants that have not ended."""
    cursor = await connection.execute(
        "SELECT count(*) FROM (SELECT FROM memberships m JOIN tenants t ON t.id = m.tenant_id "
        "WHERE m.issuer = %s AND m.subject = %s AND m.founded AND t.deleted_at IS NULL LIMIT %s) counted",
        (*user, number),
    )
    row = await cursor.fetchone()
    return row is not None and row[0] >= number


def _status(*, invited: bool) -> MemberStatus:
    return MemberStatus.INVITED if invited else MemberStatus.ACTIVE
