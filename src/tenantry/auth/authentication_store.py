"""Looking up who is asking, many at a time: keys by digest, users by issuer and subject.

Who asks for a page of projects gets it with the same statement: to look it up afterwards would cost each request a
second wait.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from tenantry.accounts.members_store import BINDS_OWNER
from tenantry.db.connection import Connection
from tenantry.db.statements import BIGINTS, BLOBS, MOMENT, MOMENTS, TEXTS, Statement
from tenantry.domain.projects import Window

_NO_WINDOW: Final = Window(-1)


class KeyRow(msgspec.Struct, frozen=True):
    """An API key with what its tenant says about it, and the page asked for."""

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
    digest: bytes
    lately_from: str | None
    """The address of its last use that is written, empty if it is not known, where that was within the last minute."""
    projects: list[str]
    """The JSON of each project of the page, and of one more if there are more."""


class SeatRow(msgspec.Struct, frozen=True):
    """A tenant as a user meets it. What follows ``role`` is of the user's membership, if there is one."""

    org_id: str
    plan: str
    subscription_status: str
    suspended: bool
    deleted: bool
    role: str | None
    removed: bool
    invited: bool
    binds_owner: bool
    """As `MembershipBound.binds_owner`."""
    owner_email: str | None
    """The address to compare the user's with, if the user is the tenant's owner.

    It is the owner address where that follows the identity provider's, and the one that was verified last where the
    owner address is not verified.
    """
    projects: list[str]
    """As in `KeyRow`; of live mode."""


class KeyQuery(msgspec.Struct, frozen=True):
    """A secret, by its digests under every pepper, and which projects are asked for."""

    digests: Sequence[bytes]
    window: Window | None = None


class UserQuery(msgspec.Struct, frozen=True):
    """A user, the tenant that is asked for (without one, the user's only one is), and which projects are."""

    issuer: str
    subject: str
    org_id: str | None
    window: Window | None = None


def _page(org_id: str, mode: str) -> str:
    """One page of projects, and one project more."""
    return f"""ARRAY(SELECT p.document
               FROM projects p
              WHERE p.org_id = {org_id} AND p.mode = {mode}
                AND (p.created_at, p.id) < (coalesce(asked.after_at, 'infinity'), coalesce(asked.after_id, ''))
              ORDER BY p.created_at DESC, p.id DESC
              LIMIT asked.most)"""  # noqa: S608  # our own columns


_NO_PAGE: Final = "'{}'::text[]"


def _keys(page: str) -> Statement:
    return Statement(
        f"""
SELECT asked.number, k.id, k.org_id, k.scopes, k.access_level, k.mode, k.expires_at, k.revoked_at,
       t.plan, t.subscription_status, t.suspended_at IS NOT NULL, t.deleted_at IS NOT NULL, k.digest,
       CASE WHEN k.last_used_at > $6 - interval '1 minute' THEN coalesce(k.last_used_address, '') END,
       {page}
  FROM unnest($1, $2, $3, $4, $5) AS asked (number, digest, most, after_at, after_id)
  JOIN api_keys k ON k.digest = asked.digest
  JOIN tenants t ON t.id = k.org_id
""",  # noqa: S608  # our own columns
        BIGINTS, BLOBS, BIGINTS, MOMENTS, TEXTS, MOMENT,
    )  # fmt: skip


_SEAT: Final = f"""t.id, t.plan, t.subscription_status, t.suspended_at IS NOT NULL, t.deleted_at IS NOT NULL,
       m.role, m.removed_at IS NOT NULL, coalesce(m.invited, false), {BINDS_OWNER.format(row="m")},
       CASE WHEN t.owner_id <> asked.subject THEN NULL
            WHEN t.verified_email <> t.owner_email THEN t.verified_email
            WHEN t.owner_email_follows THEN t.owner_email END"""


def _seats(page: str) -> Statement:
    """The tenants that users ask for, whether or not they belong to them."""
    return Statement(
        f"""
SELECT asked.number, {_SEAT},
       {page}
  FROM unnest($1, $2, $3, $4, $5, $6, $7) AS asked (number, issuer, subject, org_id, most, after_at, after_id)
  LEFT JOIN memberships m ON m.issuer = asked.issuer AND m.subject = asked.subject AND m.tenant_id = asked.org_id
  JOIN tenants t ON t.id = asked.org_id
""",  # noqa: S608  # our own columns
        BIGINTS, TEXTS, TEXTS, TEXTS, BIGINTS, MOMENTS, TEXTS,
    )  # fmt: skip


def _only_seats(page: str) -> Statement:
    """The tenants of users who ask for none: two at most, for only who has exactly one need not ask for it."""
    return Statement(
        f"""
SELECT asked.number, seat.*,
       CASE WHEN count(*) OVER (PARTITION BY asked.number) = 1 THEN {page} END
  FROM unnest($1, $2, $3, $4, $5, $6) AS asked (number, issuer, subject, most, after_at, after_id)
 CROSS JOIN LATERAL (
       SELECT {_SEAT}
         FROM memberships m
         JOIN tenants t ON t.id = m.tenant_id
        WHERE m.issuer = asked.issuer AND m.subject = asked.subject AND m.removed_at IS NULL AND NOT m.invited
          AND t.deleted_at IS NULL
        LIMIT 2) seat (org_id, plan, subscription_status, suspended, deleted, role, removed, invited, binds_owner,
                       owner_email)
""",  # noqa: S608  # our own columns
        BIGINTS, TEXTS, TEXTS, BIGINTS, MOMENTS, TEXTS,
    )  # fmt: skip


# An application that only authenticates has no need to read projects, and may not be allowed to.
KEYS: Final = _keys(_NO_PAGE)
KEYS_WITH_PAGES: Final = _keys(_page("k.org_id", "k.mode"))
SEATS: Final = _seats(_NO_PAGE)
SEATS_WITH_PAGES: Final = _seats(_page("t.id", "'live'"))
ONLY_SEATS: Final = _only_seats(_NO_PAGE)
ONLY_SEATS_WITH_PAGES: Final = _only_seats(_page("seat.org_id", "'live'"))


async def find_keys(connection: Connection, queries: Sequence[KeyQuery], now: datetime) -> list[KeyRow | None]:
    """The key that each secret is, if it is one."""
    found: list[KeyRow | None] = [None] * len(queries)
    asked = [
        (number, digest, *_bounds(query.window)) for number, query in enumerate(queries) for digest in query.digests
    ]
    statement = KEYS_WITH_PAGES if any(query.window for query in queries) else KEYS
    [rows] = await connection.together(statement(*zip(*asked, strict=True), now))
    for number, *key in rows:
        found[number] = KeyRow(*key)
    return found


async def find_seats(connection: Connection, users: Sequence[UserQuery]) -> list[list[SeatRow]]:
    """For each user the tenant asked for; or else the tenant that they are an active member of, or two of several."""
    seats: list[list[SeatRow]] = [[] for _ in users]
    named, only = SEATS, ONLY_SEATS
    if any(user.window for user in users):
        named, only = SEATS_WITH_PAGES, ONLY_SEATS_WITH_PAGES
    asked = [
        (number, user.issuer, user.subject, user.org_id, *_bounds(user.window))
        for number, user in enumerate(users)
        if user.org_id is not None
    ]
    unasked = [
        (number, user.issuer, user.subject, *_bounds(user.window))
        for number, user in enumerate(users)
        if user.org_id is None
    ]
    calls = [statement(*zip(*rows, strict=True)) for statement, rows in ((named, asked), (only, unasked)) if rows]
    for rows in await connection.together(*calls):
        for number, *seat in rows:
            seats[number].append(SeatRow(*seat))
    return seats


def _bounds(window: Window | None) -> tuple[int, datetime | None, str | None]:
    limit, after_at, after_id = window or _NO_WINDOW
    return limit + 1, after_at, after_id
