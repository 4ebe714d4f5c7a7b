"""Look up principals in batches: keys by digest, users by issuer and subject.

A lookup may also read a page of JSON documents of the caller's tenant in the same round trip. Its
query is a parameter: an array expression with ``{org_id}`` and ``{mode}`` for the caller's columns,
over the bounds ``query.most``, ``query.after_at`` and ``query.after_id``.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Final, NamedTuple

import msgspec

from tenantry.db.connection import Connection, Rows
from tenantry.db.pagination import Window
from tenantry.db.statements import (
    BIGINTS,
    BLOBS,
    MOMENT,
    MOMENTS,
    TEXTS,
    BoundStatement,
    Statement,
)

MEMBER_STATUS: Final = (
    "CASE WHEN removed_at IS NOT NULL THEN 'removed' WHEN invited THEN 'invited' ELSE 'active' END"
)


class KeyRow(msgspec.Struct, frozen=True):
    """An API key with columns of its tenant, and the requested page."""

    id: str
    org_id: str
    scopes: list[str]
    access_level: str
    mode: str
    expires_at: datetime | None
    revoked_at: datetime | None
    plan: str
    subscription_status: str
    access: str | None
    """The JSON of the tenant's access phases; None where plan and status say everything."""
    suspension: str | None
    """As in `TenantRow`."""
    deleted: bool
    digest: bytes
    recent_address: str | None
    """The address of the stored last use, empty if unknown; None if that was more than a minute
    ago.
    """
    external_id: str | None
    metadata: str | None
    """The JSON of the key's metadata; None where it has none."""
    allowed_addresses: list[str] | None
    """None for any."""
    enabled: bool
    requests_per_minute: int | None
    """The limit of the key's own."""
    page: list[str]
    """The requested documents, and one more if there are more."""


class KeyNow(NamedTuple):
    """What may have changed of an API key, and of its tenant, while its request waited."""

    revoked_at: datetime | None
    expires_at: datetime | None
    enabled: bool
    suspension: str | None
    """As in `TenantRow`."""
    deleted: bool


class UserAccessRow(msgspec.Struct, frozen=True):
    """A tenant with a user's membership, if any: ``role`` and the fields after it."""

    org_id: str
    plan: str
    subscription_status: str
    access: str | None
    suspension: str | None
    """As in `TenantRow`."""
    deleted: bool
    role: str | None
    removed: bool
    invited: bool
    binds_owner: bool
    """As `tenantry.domain.members.AuditedMember.binds_owner`."""
    owner_email: str | None
    """For the tenant's owner, the address to compare with the token's: the owner address where it
    follows the identity provider's; the last verified address where the owner address is not
    verified.
    """
    rejects_erased: bool
    """Whether the tenant rejects members who were removed before their data was erased, by
    `rejected_aliases`.
    """
    page: list[str]
    """As in `KeyRow`, in live mode."""


class KeyQuery(msgspec.Struct, frozen=True):
    """The digests that a secret may be stored as, and the bounds of the requested page."""

    digests: Sequence[bytes]
    window: Window | None = None


class UserQuery(msgspec.Struct, frozen=True):
    """A user, the requested tenant (None: the user's only one), and the bounds of the requested
    page.
    """

    issuer: str
    subject: str
    org_id: str | None
    window: Window | None = None


KEY_NOW_COLUMNS: Final = (
    "k.revoked_at, k.expires_at, k.enabled, t.suspension, t.deleted_at IS NOT NULL"
)
"""The columns of `KeyNow`, of a key ``k`` and its tenant ``t``."""
NO_PAGE: Final = "ARRAY[]::text[]"
"""The query of a page for lookups without one, or by a role that may not read the table."""


@cache
def _keys(page: str) -> Statement:
    page = page.format(org_id="k.org_id", mode="k.mode")
    return Statement(
        f"""
SELECT query.number, k.id, k.org_id, k.scopes, k.access_level, k.mode, k.expires_at, k.revoked_at,
       t.plan, t.subscription_status, t.access::text, t.suspension, t.deleted_at IS NOT NULL, k.digest,
       CASE WHEN k.last_used_at > $6 - interval '1 minute' THEN coalesce(k.last_used_address, '') END,
       k.external_id, k.metadata::text, k.allowed_addresses, k.enabled, k.requests_per_minute,
       {page}
  FROM unnest($1, $2, $3, $4, $5) AS query (number, digest, most, after_at, after_id)
  JOIN api_keys k ON k.digest = query.digest
  JOIN tenants t ON t.id = k.org_id
""",  # noqa: S608  # our own columns
        BIGINTS,
        BLOBS,
        BIGINTS,
        MOMENTS,
        TEXTS,
        MOMENT,
    )


_ACCESS: Final = """t.id, t.plan, t.subscription_status, t.access::text, t.suspension,
       t.deleted_at IS NOT NULL, m.role, m.removed_at IS NOT NULL, coalesce(m.invited, false),
       coalesce(m.binds_owner, true),
       CASE WHEN t.owner_id <> query.subject THEN NULL
            WHEN t.verified_email <> t.owner_email THEN t.verified_email
            WHEN t.owner_email_follows THEN t.owner_email END,
       t.rejects_erased"""


@cache
def _named_tenants(page: str) -> Statement:
    """Read the requested tenants, with or without a membership."""
    page = page.format(org_id="t.id", mode="'live'")
    return Statement(
        f"""
SELECT query.number, {_ACCESS},
       {page}
  FROM unnest($1, $2, $3, $4, $5, $6, $7) AS query (number, issuer, subject, org_id, most, after_at, after_id)
  LEFT JOIN memberships m ON m.issuer = query.issuer AND m.subject = query.subject AND m.tenant_id = query.org_id
  JOIN tenants t ON t.id = query.org_id
""",  # noqa: S608  # our own columns
        BIGINTS,
        TEXTS,
        TEXTS,
        TEXTS,
        BIGINTS,
        MOMENTS,
        TEXTS,
    )


@cache
def _only_tenants(page: str) -> Statement:
    """Read the tenants of users who name none: at most two, because only the single tenant of a
    user is a default.
    """
    page = page.format(org_id="own.org_id", mode="'live'")
    return Statement(
        f"""
SELECT query.number, own.*,
       CASE WHEN count(*) OVER (PARTITION BY query.number) = 1 THEN {page} END
  FROM unnest($1, $2, $3, $4, $5, $6) AS query (number, issuer, subject, most, after_at, after_id)
 CROSS JOIN LATERAL (
       SELECT {_ACCESS}
         FROM memberships m
         JOIN tenants t ON t.id = m.tenant_id
        WHERE m.issuer = query.issuer AND m.subject = query.subject AND m.removed_at IS NULL AND NOT m.invited
          AND t.deleted_at IS NULL
        LIMIT 2) own (org_id, plan, subscription_status, access, suspension, deleted, role, removed, invited,
                      binds_owner, owner_email, rejects_erased)
""",  # noqa: S608  # our own columns
        BIGINTS,
        TEXTS,
        TEXTS,
        BIGINTS,
        MOMENTS,
        TEXTS,
    )


async def find_keys(
    connection: Connection, queries: Sequence[KeyQuery], now: datetime
) -> list[KeyRow | None]:
    """Find the key of each secret."""
    return keys_in(await connection.run_batch(*key_lookup(queries, now)), queries)


def key_lookup(
    queries: Sequence[KeyQuery], now: datetime, page: str = NO_PAGE
) -> list[BoundStatement]:
    """Return what looks up the key of each secret; ``page`` is the query of the pages that queries
    ask for.
    """
    batch: list[tuple[object, ...]] = []
    for number, query in enumerate(queries):
        bounds = _bounds(query.window)
        batch += [(number, digest, *bounds) for digest in query.digests]
    statement = _keys(_asked_page(queries, page))
    return [statement(*zip(*batch, strict=True), now)]


def keys_in(answer: Sequence[Rows], queries: Sequence[KeyQuery]) -> list[KeyRow | None]:
    """Return the key of each secret in the rows of a `key_lookup`."""
    found: list[KeyRow | None] = [None] * len(queries)
    [rows] = answer
    for number, *values in rows:
        key, other = KeyRow(*values), found[number]
        found[number] = key if other is None else _counting(key, other, queries[number])
    return found


def _counting(one: KeyRow, other: KeyRow, query: KeyQuery) -> KeyRow:
    """Return which of two keys with one secret counts: a revoked one, then the one that was used,
    then the first that was imported.

    A secret whose sha256 and sha512 were both imported has two. The choice stays the same, so that
    only one of them gets the digest of the secret.
    """
    of_secret = query.digests[0]
    return min(
        one,
        other,
        key=lambda key: (
            key.revoked_at is None and not key.deleted,
            key.digest != of_secret,
            key.id,
        ),
    )


async def find_user_access(
    connection: Connection, users: Sequence[UserQuery]
) -> list[list[UserAccessRow]]:
    """Find each user's requested tenant, or else the tenant of their only active membership, or two
    of several.
    """
    return user_access_in(await connection.run_batch(*user_lookup(users)), users)


def user_lookup(users: Sequence[UserQuery], page: str = NO_PAGE) -> list[BoundStatement]:
    """Return what looks up each user's tenants, as `find_user_access` does; ``page`` as for
    `key_lookup`.
    """
    named = list[Sequence[object]]()
    only = list[Sequence[object]]()
    for number, user in enumerate(users):
        if user.org_id is None:
            only.append((number, user.issuer, user.subject, *_bounds(user.window)))
        else:
            named.append((number, user.issuer, user.subject, user.org_id, *_bounds(user.window)))
    asked = _asked_page(users, page)
    return [
        statement(asked)(*zip(*rows, strict=True))
        for statement, rows in ((_named_tenants, named), (_only_tenants, only))
        if rows
    ]


def user_access_in(answer: Sequence[Rows], users: Sequence[UserQuery]) -> list[list[UserAccessRow]]:
    """Return the tenants of each user in the rows of a `user_lookup`."""
    found: list[list[UserAccessRow]] = [[] for _ in users]
    for rows in answer:
        for number, *row in rows:
            found[number].append(UserAccessRow(*row))
    return found


def _bounds(window: Window | None) -> tuple[int, datetime | None, str | None]:
    if window is None:
        return 0, None, None
    return window.limit + 1, window.after_at, window.after_id


def _asked_page(queries: Sequence[KeyQuery] | Sequence[UserQuery], page: str) -> str:
    """Return the query of the page, or `NO_PAGE` if no query asks for one."""
    return page if any(query.window for query in queries) else NO_PAGE
