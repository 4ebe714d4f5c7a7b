"""Members of tenants. Every statement names the tenant, and most the issuer whose users are meant; None means all."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.pagination import MOST_RECORDS_LOOKED_AT, Listing
from tenantry.domain.access import Role
from tenantry.domain.members import Member, Membership, MembershipBound, MemberStatus, Writer

_STATUS: Final = "CASE WHEN removed_at IS NOT NULL THEN 'removed' WHEN invited THEN 'invited' ELSE 'active' END"
_COLUMNS: Final = (
    f"id, tenant_id, subject, role, {_STATUS}, created_at, coalesce(updated_at, removed_at, created_at), removed_at"
)
_CURRENT: Final = "removed_at IS NULL"
BINDS_OWNER: Final = "NOT coalesce({row}.written_as = 'SCOPED' AND {row}.written_at = {row}.updated_at, false)"
"""A condition: the membership lowers or refuses a claimed owner. Rows of earlier releases do, as they always did."""
_SELECT: Final = (
    f"SELECT {_COLUMNS} FROM memberships "  # noqa: S608  # our own columns
    "WHERE tenant_id = %(org)s AND (%(issuer)s::text IS NULL OR issuer = %(issuer)s)"
)

_LISTING: Final = Listing(_COLUMNS, "memberships", "created_at", most=MOST_RECORDS_LOOKED_AT)


class Filter(msgspec.Struct, frozen=True):
    """Which members; None means all. ``current`` leaves out those who were removed."""

    user_id: str | None = None
    role: Role | None = None
    status: MemberStatus | None = None
    current: bool = False


def _member(row: Sequence[Any]) -> Member:
    member_id, org_id, user_id, role, status, created_at, updated_at, removed_at = row
    return Member(member_id, org_id, user_id, Role(role), MemberStatus(status), created_at, updated_at, removed_at)


async def read_page(
    connection: Connection,
    org_id: str,
    issuer: str | None,
    wanted: Filter,
    *,
    limit: int,
    after: tuple[datetime | None, str | None],
) -> list[Member]:
    """A tenant's members after a position, newest first, and one more than ``limit`` if there are more."""
    condition, filtered, values = _asked(org_id, issuer, wanted, after)
    return [_member(row) for row in await _LISTING.read(connection, condition, filtered, values, limit)]


async def seek_page(
    connection: Connection,
    org_id: str,
    issuer: str | None,
    wanted: Filter,
    *,
    limit: int,
    after: tuple[datetime | None, str | None],
) -> tuple[list[Member], tuple[datetime, str] | None]:
    """The same, of the next `MOST_RECORDS_LOOKED_AT` members; and where the last of these is, if there are older ones.

    A user is found among all.
    """
    condition, filtered, values = _asked(org_id, issuer, wanted, after)
    rows, end = await _LISTING.seek(connection, condition, filtered, values, limit)
    return [_member(row) for row in rows], end


def _asked(
    org_id: str, issuer: str | None, wanted: Filter, after: tuple[datetime | None, str | None]
) -> tuple[str, str, dict[str, object]]:
    """What there are indexes for, what else is asked, and the values of both."""
    condition = (
        "tenant_id = %(org)s "
        "AND (created_at, id) < (coalesce(%(after_at)s::timestamptz, 'infinity'), coalesce(%(after_id)s::text, ''))"
    )
    if wanted.user_id is not None:
        condition += " AND subject = %(user)s" + (" AND issuer = %(issuer)s" if issuer is not None else "")
    filtered = (
        "(%(issuer)s::text IS NULL OR issuer = %(issuer)s) AND (%(role)s::text IS NULL OR role = %(role)s)"
        f" AND (%(status)s::text IS NULL OR {_STATUS} = %(status)s) AND (NOT %(current)s OR {_CURRENT})"
    )
    values: dict[str, object] = {
        "org": org_id,
        "issuer": issuer,
        "user": wanted.user_id,
        "role": wanted.role,
        "status": wanted.status,
        "current": wanted.current,
        "after_at": after[0],
        "after_id": after[1],
    }
    return condition, filtered, values


async def find(connection: Connection, org_id: str, issuer: str | None, member_id: str) -> Member | None:
    """One member of a tenant, a removed one too."""
    parameters = {"org": org_id, "issuer": issuer, "id": member_id}
    cursor = await connection.execute(_SELECT + " AND id = %(id)s", parameters)
    row = await cursor.fetchone()
    return _member(row) if row else None


async def find_user(connection: Connection, org_id: str, issuer: str, user_id: str) -> Member | None:
    """A user's membership in a tenant, a removed one too."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM memberships WHERE issuer = %s AND subject = %s AND tenant_id = %s",  # noqa: S608
        (issuer, user_id, org_id),
    )
    row = await cursor.fetchone()
    return _member(row) if row else None


async def find_bound(connection: Connection, org_id: str, issuer: str, user_id: str) -> MembershipBound | None:
    """What a user's membership in a tenant allows, where there is one, be it a removed one."""
    cursor = await connection.execute(
        f"SELECT role, {_STATUS}, {BINDS_OWNER.format(row='memberships')} FROM memberships "  # noqa: S608  # our own
        "WHERE issuer = %s AND subject = %s AND tenant_id = %s",
        (issuer, user_id, org_id),
    )
    row = await cursor.fetchone()
    return MembershipBound(Role(row[0]), MemberStatus(row[1]), row[2]) if row else None


async def binds_owner(connection: Connection, org_id: str, member_id: str) -> bool:
    """Whether a membership lowers or refuses a claimed owner."""
    cursor = await connection.execute(
        f"SELECT {BINDS_OWNER.format(row='memberships')} FROM memberships WHERE tenant_id = %s AND id = %s",  # noqa: S608
        (org_id, member_id),
    )
    row = await cursor.fetchone()
    return row is not None and bool(row[0])


async def count_current(connection: Connection, org_id: str, issuer: str, most: int) -> int:
    """How many members and invitations a tenant has; no more than ``most`` are counted."""
    cursor = await connection.execute(
        f"SELECT count(*) FROM (SELECT FROM memberships WHERE tenant_id = %s AND issuer = %s AND {_CURRENT} "  # noqa: S608
        "LIMIT %s) counted",
        (org_id, issuer, most),
    )
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def count_owners(connection: Connection, org_id: str, issuer: str | None, *, beside: str) -> int:
    """How many active members of a tenant are owners, beside the one with the id ``beside``."""
    cursor = await connection.execute(
        "SELECT count(*) FROM memberships WHERE tenant_id = %(org)s AND (%(issuer)s::text IS NULL OR issuer = "
        "%(issuer)s) AND role = 'owner' AND removed_at IS NULL AND NOT invited AND id <> %(beside)s",
        {"org": org_id, "issuer": issuer, "beside": beside},
    )
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def insert(
    connection: Connection, issuer: str, member: Member, written: Writer, *, is_founder: bool = False
) -> None:
    """Store a new member. ``is_founder``: the user has just created the tenant."""
    await connection.execute(
        "INSERT INTO memberships (id, tenant_id, issuer, subject, role, invited, founded, created_at, updated_at, "
        "written_by, written_as, written_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            member.id,
            member.org_id,
            issuer,
            member.user_id,
            member.role,
            member.status is MemberStatus.INVITED,
            is_founder,
            member.created_at,
            member.updated_at,
            written.name,
            written.access,
            member.updated_at,
        ),
    )


_UPDATE: Final = f"""
UPDATE memberships
   SET role = %(role)s, invited = %(invited)s, updated_at = %(now)s, removed_at = %(removed_at)s,
       written_by = CASE WHEN keeps THEN written_by ELSE coalesce(%(by)s, written_by) END,
       written_as = CASE WHEN keeps THEN written_as ELSE %(access)s END,
       written_at = CASE WHEN keeps THEN written_at ELSE %(now)s END
  FROM (SELECT id AS found, %(access)s = 'SCOPED' AND {BINDS_OWNER.format(row="memberships")} AS keeps
          FROM memberships WHERE tenant_id = %(org)s AND id = %(id)s) before
 WHERE tenant_id = %(org)s AND id = found
"""  # noqa: S608  # our own


async def update(connection: Connection, member: Member, written: Writer) -> None:
    """Write back what may change of a member. What an OWNER or the operator wrote stays binding on claimed owners."""
    await connection.execute(
        _UPDATE,
        {
            "org": member.org_id,
            "id": member.id,
            "role": member.role,
            "invited": member.status is MemberStatus.INVITED,
            "now": member.updated_at,
            "removed_at": member.removed_at,
            "by": written.name,
            "access": written.access,
        },
    )


async def read_all(connection: Connection, org_id: str) -> list[dict[str, Any]]:
    """The members of a tenant, removed ones and those of every issuer included, for its export."""
    cursor = await connection.execute(
        f"SELECT id, issuer, subject, role, {_STATUS}, created_at, "  # noqa: S608  # our own
        "coalesce(updated_at, removed_at, created_at), removed_at "
        "FROM memberships WHERE tenant_id = %s ORDER BY created_at, id",
        (org_id,),
    )
    names = ("id", "issuer", "subject", "role", "status", "createdAt", "updatedAt", "removedAt")
    return [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]


# A user's own memberships, across tenants. Every statement names the user, by issuer and subject


_INVITATIONS_COUNTED: Final = 100


class User(NamedTuple):
    """A user of an identity provider."""

    issuer: str
    subject: str


async def read_own_page(
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
