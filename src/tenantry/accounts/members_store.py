"""Members of tenants. Most statements name the tenant and the issuers of its users.

Without an identity provider (None) they read the users of every issuer.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from tenantry.auth.authentication_store import MEMBER_STATUS
from tenantry.db.connection import Connection
from tenantry.db.pagination import Listing, Page, Window
from tenantry.db.tenants_store import TenantUsers
from tenantry.domain.errors import NotFoundError
from tenantry.domain.issuers import Issuers
from tenantry.domain.members import Member, Membership, MemberStatus, User

_TIMES: Final = "created_at, coalesce(updated_at, removed_at, created_at), removed_at"
_COLUMNS: Final = f"id, tenant_id, subject, role, {MEMBER_STATUS}, {_TIMES}"
OF_ISSUERS: Final = (
    "(%(issuers)s::text[] IS NULL OR issuer = ANY(%(issuers)s) OR issuer LIKE %(pattern)s)"
)
"""The condition for users of the trusted issuers; of every issuer, if there are none."""
_FIND: Final = """
SELECT id, tenant_id, subject, role,
       CASE WHEN removed_at IS NOT NULL THEN 'removed' WHEN invited THEN 'invited' ELSE 'active' END,
       created_at, coalesce(updated_at, removed_at, created_at), removed_at
  FROM memberships
 WHERE tenant_id = %(org)s
   AND (%(issuers)s::text[] IS NULL OR issuer = ANY (%(issuers)s) OR issuer LIKE %(pattern)s)
   AND id = %(id)s
"""
# An active owner first, then a user of the named issuer.
_FIND_OWNER: Final = """
SELECT id, tenant_id, subject, role,
       CASE WHEN removed_at IS NOT NULL THEN 'removed' WHEN invited THEN 'invited' ELSE 'active' END,
       created_at, coalesce(updated_at, removed_at, created_at), removed_at
  FROM memberships
 WHERE tenant_id = %(org)s
   AND (%(issuers)s::text[] IS NULL OR issuer = ANY (%(issuers)s) OR issuer LIKE %(pattern)s)
   AND subject = %(subject)s
 ORDER BY role <> 'owner' OR invited OR removed_at IS NOT NULL, issuer <> %(issuer)s, created_at
 LIMIT 1
"""
_FIND_USER: Final = """
SELECT id, tenant_id, subject, role,
       CASE WHEN removed_at IS NOT NULL THEN 'removed' WHEN invited THEN 'invited' ELSE 'active' END,
       created_at, coalesce(updated_at, removed_at, created_at), removed_at
  FROM memberships
 WHERE tenant_id = %(org)s AND issuer = %(issuer)s AND subject = %(subject)s
"""
_FIND_KNOWN: Final = """
SELECT issuer, subject
  FROM (SELECT issuer, subject FROM memberships WHERE tenant_id = %(org)s AND subject = ANY(%(subjects)s)
         UNION
        SELECT issuer, subject FROM user_profiles WHERE org_id = %(org)s AND subject = ANY(%(subjects)s)) known
 WHERE %(issuers)s::text[] IS NULL OR issuer = ANY (%(issuers)s) OR issuer LIKE %(pattern)s
"""
_READ_ALL: Final = """
SELECT id, issuer, subject, role,
       CASE WHEN removed_at IS NOT NULL THEN 'removed' WHEN invited THEN 'invited' ELSE 'active' END,
       created_at, coalesce(updated_at, removed_at, created_at), removed_at
  FROM memberships
 WHERE tenant_id = %s
 ORDER BY created_at, id
"""
_COUNT_CURRENT: Final = """
SELECT count(*)
  FROM (SELECT
          FROM memberships
         WHERE tenant_id = %(org)s
           AND (%(issuers)s::text[] IS NULL OR issuer = ANY (%(issuers)s) OR issuer LIKE %(pattern)s)
           AND removed_at IS NULL
         LIMIT %(most)s) counted
"""
_COUNT_OWNERS: Final = """
SELECT count(*)
  FROM memberships
 WHERE tenant_id = %(org)s
   AND (%(issuers)s::text[] IS NULL OR issuer = ANY (%(issuers)s) OR issuer LIKE %(pattern)s)
   AND role = 'owner' AND removed_at IS NULL AND NOT invited AND id <> %(except)s
   AND (%(user)s::text IS NULL OR subject = %(user)s)
"""
_LISTING: Final = Listing(_COLUMNS, "memberships", "created_at")
_NAMED: Final = """
(SELECT m.id, m.tenant_id, m.issuer, m.subject, m.role, m.invited, m.removed_at, m.created_at, t.name, t.deleted_at
   FROM memberships m JOIN tenants t ON t.id = m.tenant_id)
"""
_OWN: Final = Listing(f"id, tenant_id, name, role, {MEMBER_STATUS}", _NAMED, "created_at")
_UPDATE: Final = """
UPDATE memberships
   SET role = %(role)s, invited = %(invited)s, updated_at = %(updated_at)s, removed_at = %(removed_at)s,
       binds_owner = binds_owner OR %(binds_owner)s
 WHERE tenant_id = %(org_id)s AND id = %(id)s
"""


class MemberFilter(msgspec.Struct, frozen=True):
    """Conditions on members; None means any. ``current`` excludes removed members."""

    user_id: str | None = None
    role: str | None = None
    status: MemberStatus | None = None
    current: bool = False


def _member(row: Sequence[Any]) -> Member:
    member_id, org_id, user_id, role, status, *times = row
    return Member(member_id, org_id, user_id, role, MemberStatus(status), *times)


def _membership(row: Sequence[Any]) -> Membership:
    member_id, org_id, name, role, status = row
    return Membership(
        member_id,
        org_id,
        name,
        role,
        MemberStatus(status),
    )


def of_subject(parameter: str, issuers: Issuers | None) -> str:
    """Return the condition for users with the subject in a parameter; an index finds those of
    listed issuers.
    """
    condition = f"subject = %({parameter})s"
    is_listed = issuers is not None and issuers.pattern is None
    return f"{condition} AND issuer = ANY(%(issuers)s)" if is_listed else condition


async def read_page(
    connection: Connection,
    users: TenantUsers,
    wanted: MemberFilter,
    window: Window,
) -> Page[Member]:
    """Read a page of a tenant's members, newest first."""
    indexed = "tenant_id = %(org)s"
    if wanted.user_id is not None:
        indexed += f" AND {of_subject('user_id', users.issuers)}"
    filtered = (
        f"{OF_ISSUERS} AND (%(role)s::text IS NULL OR role = %(role)s)"
        f" AND (%(status)s::text IS NULL OR {MEMBER_STATUS} = %(status)s)"
        " AND (NOT %(current)s OR removed_at IS NULL)"
    )
    values = {**users.values, **msgspec.structs.asdict(wanted)}
    return await _LISTING.page(
        connection,
        indexed,
        values,
        window,
        _member,
        filtered=filtered,
    )


async def get(connection: Connection, users: TenantUsers, member_id: str) -> Member:
    """Read a member of a tenant, removed ones included. Raises `NotFoundError`."""
    row = await connection.fetch_row(_FIND, {**users.values, "id": member_id})
    if row is None:
        raise NotFoundError("member")
    return _member(row)


async def find_owner(connection: Connection, users: TenantUsers, user: User) -> Member | None:
    """Find the membership of a tenant's owner, of whom the tenant knows the subject: any issuer's,
    ``user``'s first.

    An active owner comes before other memberships of that subject, removed ones included.
    """
    values = {**users.values, **user._asdict()}
    row = await connection.fetch_row(_FIND_OWNER, values)
    return _member(row) if row else None


async def find_user(connection: Connection, org_id: str, user: User) -> Member | None:
    """Find a user's membership in a tenant, removed ones included."""
    row = await connection.fetch_row(_FIND_USER, {"org": org_id, **user._asdict()})
    return _member(row) if row else None


async def find_known(
    connection: Connection, users: TenantUsers, subjects: Collection[str]
) -> list[User]:
    """Find the users with these subjects who are or were members, or whom the tenant has seen."""
    values = {**users.values, "subjects": list(subjects)}
    return [User(*row) for row in await connection.fetch(_FIND_KNOWN, values)]


async def issuers_of(
    connection: Connection, org_id: str, member_ids: Sequence[str]
) -> dict[str, str]:
    """Return the issuers of members' users, by the member's id."""
    query = "SELECT id, issuer FROM memberships WHERE tenant_id = %s AND id = ANY(%s)"
    return dict(await connection.fetch(query, (org_id, list(member_ids))))


async def binds_owner(connection: Connection, org_id: str, member_id: str) -> bool:
    """Whether a membership also restricts a claimed owner."""
    query = "SELECT binds_owner FROM memberships WHERE tenant_id = %s AND id = %s"
    return bool(await connection.fetch_value(query, (org_id, member_id)))


async def count_current(connection: Connection, users: TenantUsers, most: int) -> int:
    """Count a tenant's members and invitations, up to ``most``."""
    return await connection.fetch_count(
        _COUNT_CURRENT,
        {**users.values, "most": most},
    )


async def count_owners(
    connection: Connection,
    users: TenantUsers,
    *,
    except_id: str,
    user_id: str | None = None,
) -> int:
    """Count a tenant's active members who are owners, except the one with this id; with ``user_id``
    of this subject.
    """
    return await connection.fetch_count(
        _COUNT_OWNERS,
        {
            **users.values,
            "except": except_id,
            "user": user_id,
        },
    )


async def insert(
    connection: Connection,
    issuer: str,
    member: Member,
    *,
    binds_owner: bool,
    is_founder: bool = False,
) -> None:
    """Store a new member. ``is_founder``: the user has just created the tenant."""
    await connection.execute(
        "INSERT INTO memberships (id, tenant_id, issuer, subject, role, invited, founded, created_at, updated_at, "
        "binds_owner) VALUES (%(id)s, %(org_id)s, %(issuer)s, %(user_id)s, %(role)s, %(invited)s, %(founded)s, "
        "%(created_at)s, %(updated_at)s, %(binds_owner)s)",
        {
            **_values(member),
            "issuer": issuer,
            "founded": is_founder,
            "binds_owner": binds_owner,
        },
    )


def _values(member: Member) -> dict[str, Any]:
    is_invited = member.status is MemberStatus.INVITED
    return {**msgspec.structs.asdict(member), "invited": is_invited}


async def update(connection: Connection, member: Member, *, binds_owner: bool) -> None:
    """Store the fields of a member that may change. What an OWNER or the operator wrote stays
    binding.
    """
    await connection.execute(_UPDATE, {**_values(member), "binds_owner": binds_owner})


async def read_all(connection: Connection, org_id: str) -> list[dict[str, Any]]:
    """Read all members of a tenant, removed ones and those of every issuer included, for its
    export.
    """
    rows = await connection.fetch(_READ_ALL, (org_id,))
    names = ("id", "issuer", "subject", "role", "status", "createdAt", "updatedAt", "removedAt")
    return [dict(zip(names, row, strict=True)) for row in rows]


# A user's own memberships, across tenants


async def read_own_page(
    connection: Connection, user: User, status: MemberStatus | None, window: Window
) -> Page[Membership]:
    """Read a page of a user's memberships and invitations, newest first, except in tenants that
    have ended.
    """
    condition = "issuer = %(issuer)s AND subject = %(subject)s AND removed_at IS NULL AND deleted_at IS NULL"
    filtered = f"%(status)s::text IS NULL OR {MEMBER_STATUS} = %(status)s"
    return await _OWN.page(
        connection,
        condition,
        {**user._asdict(), "status": status},
        window,
        _membership,
        filtered=filtered,
    )


async def find_tenant_id(connection: Connection, user: User, membership_id: str) -> str | None:
    """Find the tenant of a user's membership, removed ones included."""
    found: str | None = await connection.fetch_value(
        "SELECT tenant_id FROM memberships WHERE id = %s AND issuer = %s AND subject = %s",
        (membership_id, *user),
    )
    return found


async def has_created(connection: Connection, user: User, number: int) -> bool:
    """Whether a user has created at least so many tenants: those that the operator ended, and those
    of which nothing is left, do not count.
    """
    created = await connection.fetch_value(
        "SELECT count(*) FROM (SELECT FROM memberships "
        "WHERE issuer = %s AND subject = %s AND founded LIMIT %s) counted",
        (*user, number),
    )
    return bool(created >= number)


async def forget_founder(connection: Connection, org_id: str) -> None:
    """Let a tenant no longer count for the user who has created it."""
    statement = "UPDATE memberships SET founded = false WHERE tenant_id = %s AND founded"
    await connection.execute(statement, (org_id,))
