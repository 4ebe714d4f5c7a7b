"""Looking up who is asking, many at a time: keys by digest, users by issuer and subject."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from tenantry.db.connection import Connection


class KeyRow(msgspec.Struct, frozen=True):
    """An API key with what its tenant says about it."""

    digest: bytes
    id: str
    org_id: str
    scopes: list[str]
    access_level: str
    mode: str
    expires_at: datetime | None
    revoked_at: datetime | None
    plan: str
    subscription_status: str
    suspended: bool
    deleted: bool


class SeatRow(msgspec.Struct, frozen=True):
    """A tenant as a user meets it: ``role`` and ``removed`` are of the user's membership, if there is one."""

    org_id: str
    plan: str
    subscription_status: str
    suspended: bool
    deleted: bool
    role: str | None
    removed: bool
    owner_email: str | None
    """The tenant's billing address, if the user is its owner and the address follows the identity provider's."""


class UserQuery(msgspec.Struct, frozen=True):
    """A user, and the tenant that is asked for; without one, the user's memberships are."""

    issuer: str
    subject: str
    org_id: str | None


KEYS_BY_DIGEST: Final = """
SELECT k.digest, k.id, k.org_id, k.scopes, k.access_level, k.mode, k.expires_at, k.revoked_at,
       t.plan, t.subscription_status, t.suspended_at IS NOT NULL, t.deleted_at IS NOT NULL
  FROM api_keys k
  JOIN tenants t ON t.id = k.org_id
 WHERE k.digest = ANY(%b)
"""
SEATS: Final = """
SELECT q.number, t.id, t.plan, t.subscription_status, t.suspended_at IS NOT NULL, t.deleted_at IS NOT NULL,
       m.role, m.removed_at IS NOT NULL,
       CASE WHEN t.owner_email_follows AND t.owner_id = q.subject THEN t.owner_email END
  FROM unnest(%s::int[], %s::text[], %s::text[], %s::text[]) AS q (number, issuer, subject, org_id)
  LEFT JOIN memberships m
    ON m.issuer = q.issuer AND m.subject = q.subject AND (q.org_id IS NULL OR m.tenant_id = q.org_id)
  JOIN tenants t ON t.id = coalesce(q.org_id, m.tenant_id)
"""


async def find_keys(connection: Connection, digests: Sequence[bytes]) -> dict[bytes, KeyRow]:
    """The keys with these digests."""
    cursor = await connection.execute(KEYS_BY_DIGEST, (list(digests),), binary=True)
    return {row[0]: KeyRow(*row) for row in await cursor.fetchall()}


async def find_seats(connection: Connection, users: Sequence[UserQuery]) -> list[list[SeatRow]]:
    """For each user the tenant asked for, or else all tenants that the user has a membership in."""
    seats: list[list[SeatRow]] = [[] for _ in users]
    cursor = await connection.execute(
        SEATS,
        (
            list(range(len(users))),
            [user.issuer for user in users],
            [user.subject for user in users],
            [user.org_id for user in users],
        ),
    )
    for number, *seat in await cursor.fetchall():
        seats[number].append(SeatRow(*seat))
    return seats
