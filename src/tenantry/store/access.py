"""Looking up who is asking, many at a time: keys by digest, users by issuer and subject.

Who asks for a page of projects gets it with the same statement: to look it up afterwards would cost each request a
second wait.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

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
    """A tenant as a user meets it: ``role`` and ``removed`` are of the user's membership, if there is one."""

    org_id: str
    plan: str
    subscription_status: str
    suspended: bool
    deleted: bool
    role: str | None
    removed: bool
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
    """A user, the tenant that is asked for (without one, the user's memberships are), and which projects are."""

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


def _seats(page: str) -> Statement:
    return Statement(
        f"""
SELECT asked.number, t.id, t.plan, t.subscription_status, t.suspended_at IS NOT NULL, t.deleted_at IS NOT NULL,
       m.role, m.removed_at IS NOT NULL,
       CASE WHEN t.owner_id <> asked.subject THEN NULL
            WHEN t.verified_email <> t.owner_email THEN t.verified_email
            WHEN t.owner_email_follows THEN t.owner_email END,
       {page}
  FROM unnest($1, $2, $3, $4, $5, $6, $7) AS asked (number, issuer, subject, org_id, most, after_at, after_id)
  LEFT JOIN memberships m
    ON m.issuer = asked.issuer AND m.subject = asked.subject AND (asked.org_id IS NULL OR m.tenant_id = asked.org_id)
  JOIN tenants t ON t.id = coalesce(asked.org_id, m.tenant_id)
""",  # noqa: S608  # our own columns
        BIGINTS, TEXTS, TEXTS, TEXTS, BIGINTS, MOMENTS, TEXTS,
    )  # fmt: skip


# An application that only authenticates has no need to read projects, and may not be allowed to.
KEYS: Final = _keys(_NO_PAGE)
KEYS_WITH_PAGES: Final = _keys(_page("k.org_id", "k.mode"))
SEATS: Final = _seats(_NO_PAGE)
SEATS_WITH_PAGES: Final = _seats(_page("t.id", "'live'"))


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
    """For each user the tenant asked for, or else all tenants that the user has a membership in."""
    seats: list[list[SeatRow]] = [[] for _ in users]
    asked = [
        (number, user.issuer, user.subject, user.org_id, *_bounds(user.window)) for number, user in enumerate(users)
    ]
    statement = SEATS_WITH_PAGES if any(user.window for user in users) else SEATS
    [rows] = await connection.together(statement(*zip(*asked, strict=True)))
    for number, *seat in rows:
        seats[number].append(SeatRow(*seat))
    return seats


def _bounds(window: Window | None) -> tuple[int, datetime | None, str | None]:
    limit, after_at, after_id = window or _NO_WINDOW
    return limit + 1, after_at, after_id
