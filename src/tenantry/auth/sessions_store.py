"""Dashboard sessions, by the digest of the cookie's token; and the tenants that a user may view."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.idempotency_store import KEPT as IDEMPOTENCY_KEPT
from tenantry.domain.members import User
from tenantry.domain.roles import BuiltInRole
from tenantry.domain.sessions import ABSOLUTE, IDLE, Session
from tenantry.integrations.oidc.claims import Claims

USES_KEPT: Final = timedelta(hours=1)
"""Far longer than a sign-in or the cookie of a secret lasts, so that no clock difference lets one
be used twice.
"""
_MAX_INVITATIONS: Final = 100
_INSERT: Final = """
INSERT INTO dashboard_sessions
       (digest, issuer, subject, claims, name, tenant_id, address, agent, proved_at, started_at, used_at,
        authenticated_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_FIND: Final = """
SELECT digest, issuer, subject, claims, name, tenant_id, address, agent, proved_at, started_at, used_at,
       authenticated_at
  FROM dashboard_sessions
 WHERE digest = %s
"""
_OF_USER: Final = """
SELECT digest, issuer, subject, claims, name, tenant_id, address, agent, proved_at, started_at, used_at,
       authenticated_at
  FROM dashboard_sessions
 WHERE issuer = %s AND subject = %s AND started_at > %s
 ORDER BY used_at DESC
 LIMIT 50
"""


class TenantOfUser(msgspec.Struct, frozen=True):
    """A tenant that a user may view."""

    id: str
    name: str
    suspended: bool
    time_zone: str | None


class OrganizationOfUser(TenantOfUser, frozen=True):
    """A tenant that a user may view, with their membership.

    Both are None for a user whose access comes from the token's claim alone.
    """

    membership_id: str | None
    role: str | None


async def insert(connection: Connection, session: Session) -> None:
    """Store a new session."""
    await connection.execute(_INSERT, msgspec.structs.astuple(session))


async def use_once(connection: Connection, purpose: str, name: str, now: datetime) -> bool:
    """Mark ``name`` as used for this purpose; return False if it was used before.

    The row is stored with the idempotency keys, dated back so that retention deletes it `USES_KEPT`
    from now.
    """
    cursor = await connection.execute(
        "INSERT INTO idempotency_keys (principal, route, key, body_digest, answer, created_at) "
        "VALUES ('dashboard', %s, %s, '', '{}', %s) ON CONFLICT (principal, route, key) DO NOTHING",
        (purpose, name, now - IDEMPOTENCY_KEPT + USES_KEPT),
    )
    return cursor.rowcount == 1


async def find(connection: Connection, digest: bytes) -> Session | None:
    """Find a session, expired ones included."""
    row = await connection.fetch_row(_FIND, (digest,))
    return Session(*row) if row else None


async def of_user(connection: Connection, user: User, started_after: datetime) -> list[Session]:
    """Read a user's sessions, the last used first."""
    rows = await connection.fetch(_OF_USER, (*user, started_after))
    return [Session(*row) for row in rows]


async def renew(
    connection: Connection, digest: bytes, user: User, claims: str, name: str | None, now: datetime
) -> bool:
    """Store the provider's current claims, unless the session has expired or is another user's."""
    cursor = await connection.execute(
        "UPDATE dashboard_sessions SET claims = %s, name = %s, proved_at = %s, used_at = greatest(used_at, %s) "
        "WHERE digest = %s AND issuer = %s AND subject = %s AND started_at > %s AND used_at > %s",
        (claims, name, now, now, digest, *user, now - ABSOLUTE, now - IDLE),
    )
    return cursor.rowcount == 1


async def touch(
    connection: Connection, digest: bytes, now: datetime, tenant_id: str | None
) -> None:
    """Store the use of a session, and the viewed tenant."""
    await connection.execute(
        "UPDATE dashboard_sessions SET used_at = greatest(used_at, %s), tenant_id = coalesce(%s, tenant_id) "
        "WHERE digest = %s",
        (now, tenant_id, digest),
    )


async def delete(connection: Connection, digest: bytes) -> None:
    """End a session."""
    await connection.execute("DELETE FROM dashboard_sessions WHERE digest = %s", (digest,))


async def delete_others(connection: Connection, session: Session) -> int:
    """End all other sessions of a session's user; return how many."""
    query = "DELETE FROM dashboard_sessions WHERE issuer = %s AND subject = %s AND digest <> %s"
    return (await connection.execute(query, (*session.user, session.digest))).rowcount


async def delete_all(connection: Connection) -> int:
    """End all sessions; return how many."""
    return (await connection.execute("DELETE FROM dashboard_sessions")).rowcount


# The tenant of the token's claim counts before its invitation is accepted; for a claimed owner also
# after a removal that does not bind owners.
# Suspended tenants come last, because the dashboard opens the first one.
_FEW: Final = """
WITH own AS (
    SELECT t.id, t.name, t.suspended_at IS NOT NULL AS suspended, t.time_zone,
           m.id AS membership_id, m.role
      FROM memberships m JOIN tenants t ON t.id = m.tenant_id
     WHERE m.issuer = %(issuer)s AND m.subject = %(subject)s AND m.removed_at IS NULL AND NOT m.invited
       AND t.deleted_at IS NULL
     UNION ALL
    SELECT t.id, t.name, t.suspended_at IS NOT NULL, t.time_zone,
           CASE WHEN m.removed_at IS NULL THEN m.id END, CASE WHEN m.removed_at IS NULL THEN m.role END
      FROM tenants t
      LEFT JOIN memberships m ON m.issuer = %(issuer)s AND m.subject = %(subject)s AND m.tenant_id = t.id
     WHERE t.id = %(claimed)s AND t.deleted_at IS NULL
       AND CASE WHEN m.removed_at IS NULL THEN coalesce(m.invited, true)
                ELSE %(owner)s AND NOT m.binds_owner END)
SELECT id, name, suspended, time_zone, total
  FROM (SELECT *, count(*) OVER () AS total
          FROM own
         ORDER BY coalesce(array_position(%(first)s::text[], id), 4), suspended, lower(name), id
         LIMIT %(most)s) few
 ORDER BY lower(name), id
"""
_SEARCHED: Final = """
WITH own AS (
    SELECT t.id, t.name, t.suspended_at IS NOT NULL AS suspended, t.time_zone,
           m.id AS membership_id, m.role
      FROM memberships m JOIN tenants t ON t.id = m.tenant_id
     WHERE m.issuer = %(issuer)s AND m.subject = %(subject)s AND m.removed_at IS NULL AND NOT m.invited
       AND t.deleted_at IS NULL
     UNION ALL
    SELECT t.id, t.name, t.suspended_at IS NOT NULL, t.time_zone,
           CASE WHEN m.removed_at IS NULL THEN m.id END, CASE WHEN m.removed_at IS NULL THEN m.role END
      FROM tenants t
      LEFT JOIN memberships m ON m.issuer = %(issuer)s AND m.subject = %(subject)s AND m.tenant_id = t.id
     WHERE t.id = %(claimed)s AND t.deleted_at IS NULL
       AND CASE WHEN m.removed_at IS NULL THEN coalesce(m.invited, true)
                ELSE %(owner)s AND NOT m.binds_owner END)
SELECT id, name, suspended, time_zone, membership_id, role
  FROM own
 WHERE (position(lower(%(text)s) IN lower(name)) > 0 OR id = %(text)s)
   AND (%(after)s::text IS NULL OR (lower(name), id) > (SELECT lower(name), id FROM own WHERE id = %(after)s))
 ORDER BY lower(name), id
 LIMIT %(most)s
"""


async def tenants_of_user(
    connection: Connection, claims: Claims, *, first: Sequence[str | None], most: int
) -> tuple[list[TenantOfUser], int]:
    """Read some of the tenants that a user may view, by name, and the number of all.

    Those of ``first``, at most three, are included if they are the user's.
    """
    rows = await connection.fetch(_FEW, {**_identity(claims), "first": list(first), "most": most})
    return [TenantOfUser(*row[:-1]) for row in rows], rows[0][-1] if rows else 0


async def search_tenants(
    connection: Connection, claims: Claims, *, text: str, after: str | None, limit: int
) -> list[OrganizationOfUser]:
    """Search a user's tenants by a part of the name or the whole id, after the one with the id
    ``after``, by name.

    Returns one more than ``limit`` if there are more.
    """
    values = {
        **_identity(claims),
        "text": text,
        "after": after,
        "most": limit + 1,
    }
    return [OrganizationOfUser(*row) for row in await connection.fetch(_SEARCHED, values)]


def _identity(claims: Claims) -> dict[str, object]:
    return {
        **claims.user._asdict(),
        "claimed": claims.org_id,
        "owner": claims.role == BuiltInRole.OWNER,
    }


async def count_invitations(connection: Connection, user: User) -> int:
    """Count a user's open invitations, up to a hundred."""
    return await connection.fetch_count(
        "SELECT count(*) FROM (SELECT FROM memberships m JOIN tenants t ON t.id = m.tenant_id "
        "WHERE m.issuer = %s AND m.subject = %s AND m.invited AND m.removed_at IS NULL AND t.deleted_at IS NULL "
        "LIMIT %s) counted",
        (*user, _MAX_INVITATIONS),
    )
