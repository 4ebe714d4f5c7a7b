"""What a tenant knows of its users: name, verified address, and when they last used it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain.members import User, UserProfile
from tenantry.domain.roles import BuiltInRole
from tenantry.integrations.oidc.claims import Claims

SEEN_EVERY: Final = timedelta(hours=1)
"""The shortest time between two stored visits of a user whose name and address stay the same."""

# Skips the visits that change nothing, because ON CONFLICT would lock their rows. Tenants are
# locked in the order of their ids.
_RECORD: Final = """
INSERT INTO user_profiles (org_id, issuer, subject, name, email, claimed_role, seen_at)
SELECT visit.org_id, visit.issuer, visit.subject, visit.name, visit.email, visit.claimed_role, visit.seen_at
  FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::timestamptz[])
       AS visit (org_id, issuer, subject, name, email, claimed_role, seen_at)
  JOIN tenants ON tenants.id = visit.org_id
  LEFT JOIN user_profiles stored
         ON (stored.org_id, stored.issuer, stored.subject) = (visit.org_id, visit.issuer, visit.subject)
 WHERE stored.seen_at IS NULL
    OR stored.seen_at <= visit.seen_at - %s::interval
    OR stored.name IS DISTINCT FROM coalesce(visit.name, stored.name)
    OR stored.email IS DISTINCT FROM coalesce(visit.email, stored.email)
    OR stored.claimed_role IS DISTINCT FROM visit.claimed_role
 ORDER BY visit.org_id, visit.issuer, visit.subject
    ON CONFLICT (org_id, issuer, subject) DO UPDATE
   SET name = coalesce(excluded.name, user_profiles.name),
       email = coalesce(excluded.email, user_profiles.email),
       claimed_role = excluded.claimed_role,
       seen_at = greatest(excluded.seen_at, user_profiles.seen_at)
"""
_ALL: Final = """
SELECT issuer, subject, name, email, claimed_role, seen_at
  FROM user_profiles
 WHERE org_id = %s
 ORDER BY issuer, subject
"""
# A primary owner who has not used the tenant yet has the tenant's address for billing mail. The
# tenant stores the owner's subject alone: of two owners with it, neither has the address.
_OF_USERS: Final = """
SELECT issuer, subject, name, email, seen_at
  FROM unnest(%(issuers)s::text[], %(subjects)s::text[]) AS asked (issuer, subject)
  JOIN (SELECT issuer, subject, name, email, seen_at
          FROM user_profiles
         WHERE org_id = %(org)s
        UNION ALL
        SELECT m.issuer, m.subject, NULL, t.owner_email, NULL
          FROM memberships m
          JOIN tenants t ON (t.id, t.owner_id) = (m.tenant_id, m.subject)
         WHERE m.tenant_id = %(org)s AND m.role = 'owner' AND m.removed_at IS NULL
           AND NOT EXISTS (SELECT FROM memberships o
                            WHERE (o.tenant_id, o.subject) = (m.tenant_id, m.subject) AND o.issuer <> m.issuer
                              AND o.role = 'owner' AND o.removed_at IS NULL)
           AND NOT EXISTS (SELECT FROM user_profiles p
                            WHERE (p.org_id, p.issuer, p.subject) = (m.tenant_id, m.issuer, m.subject))) known
       USING (issuer, subject)
"""


class UserVisit(msgspec.Struct, frozen=True):
    """A use of a tenant by a user. ``name`` and ``email`` are None if the credential lacks them."""

    org_id: str
    issuer: str
    subject: str
    name: str | None
    email: str | None
    """An address that the identity provider has verified."""
    claimed_role: str | None
    """The role of the claim that names the tenant; None for a user without that claim."""
    seen_at: datetime


def visit_of(claims: Claims, org_id: str, name: str | None, now: datetime) -> UserVisit:
    """Return the visit of the user of verified claims."""
    role = claims.role or BuiltInRole.MEMBER
    return UserVisit(
        org_id,
        claims.issuer,
        claims.subject,
        name,
        claims.email,
        role if claims.org_id == org_id else None,
        now,
    )


async def record_visits(connection: Connection, visits: Sequence[UserVisit]) -> None:
    """Store visits, at most one of a user and tenant. Those of unknown tenants are dropped."""
    columns = zip(*map(msgspec.structs.astuple, visits), strict=True)
    await connection.execute(_RECORD, (*map(list, columns), SEEN_EVERY))


async def read_profiles(
    connection: Connection, org_id: str, users: Sequence[User]
) -> dict[User, UserProfile]:
    """Return the profiles of those users of whom the tenant knows more than the id."""
    issuers = [user.issuer for user in users]
    subjects = [user.subject for user in users]
    values = {"issuers": issuers, "subjects": subjects, "org": org_id}
    rows = await connection.fetch(_OF_USERS, values)
    return {User(*row[:2]): UserProfile(*row[2:]) for row in rows}


async def read_all(connection: Connection, org_id: str) -> list[dict[str, Any]]:
    """Read what a tenant knows of all its users, for its export."""
    rows = await connection.fetch(_ALL, (org_id,))
    names = ("issuer", "subject", "name", "email", "claimedRole", "seenAt")
    return [dict(zip(names, row, strict=True)) for row in rows]
