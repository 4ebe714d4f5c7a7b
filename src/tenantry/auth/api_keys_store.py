"""API keys. Every statement names the tenant. Only digests of secrets are stored."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.numbered_pages import NumberedListing, NumberedPage, PageRequest
from tenantry.db.pagination import MAX_SCANNED_RECORDS, Listing, Page, Window
from tenantry.db.statements import BLOBS, MOMENTS, TEXTS, Statement
from tenantry.db.tenants_store import TenantUsers
from tenantry.domain.api_keys import (
    SOON,
    ApiKey,
    KeyHint,
    KeyState,
    KeyStatus,
    revoked,
    status_at,
)
from tenantry.domain.imported_keys import HashAlgorithm
from tenantry.domain.issuers import Issuers
from tenantry.domain.key_import import ImportedKeyCounts
from tenantry.domain.permissions import Mode

_COLUMNS: Final = """
       id, org_id, name, scopes, access_level, mode, expires_at, start, last4, created_at, created_by, last_used_at,
       revoked_at, rotated_from, superseded_by, last_used_address, external_id, metadata, allowed_addresses,
       enabled, requests_per_minute,
       CASE WHEN k.last_used_at IS NULL THEN k.import_algorithm END AS imported_as,
       (SELECT old.last_used_at FROM api_keys old WHERE old.id = k.rotated_from) AS rotated_from_last_used_at,
       (SELECT min(leak.at)
          FROM audit_events leak
         WHERE leak.org_id = k.org_id AND leak.target_id = k.id AND leak.action = 'api_key.leak_reported'
           AND k.revoked_at IS NOT NULL) AS leak_reported_at
"""
"""The fields of `ApiKey` in their order, but the status, which depends on the time."""
_MEMBERS: Final = [name for name in ApiKey.__struct_encode_fields__ if name != "status"]
_SELECT: Final = f"SELECT {_COLUMNS} FROM api_keys k"  # noqa: S608  # our own columns
_LISTING: Final = Listing(
    _COLUMNS,
    "api_keys",
    "created_at",
    most=MAX_SCANNED_RECORDS,
    source_columns="id, org_id, name, scopes, access_level, mode, expires_at, start, last4, created_at, created_by, "
    "last_used_at, revoked_at, rotated_from, superseded_by, last_used_address, external_id, metadata, "
    "allowed_addresses, enabled, requests_per_minute, import_algorithm",
)
# The rule of `status_at`, in SQL.
_IS_ACTIVE: Final = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %(now)s)"
_STATUS: Final = {
    KeyStatus.ACTIVE: _IS_ACTIVE,
    KeyStatus.EXPIRED: "revoked_at IS NULL AND expires_at <= %(now)s",
    KeyStatus.REVOKED: "revoked_at IS NOT NULL",
}
_STATE: Final = {
    KeyState.ACTIVE: f"{_IS_ACTIVE} AND superseded_by IS NULL",
    KeyState.EXPIRING: f"{_IS_ACTIVE} AND superseded_by IS NULL AND expires_at <= %(soon)s",
    KeyState.REPLACED: f"{_IS_ACTIVE} AND superseded_by IS NOT NULL",
    KeyState.EXPIRED: _STATUS[KeyStatus.EXPIRED],
    KeyState.REVOKED: _STATUS[KeyStatus.REVOKED],
    # read once for a statement, from the index of these entries alone
    KeyState.LEAKED: """revoked_at IS NOT NULL AND id IN (
        SELECT target_id FROM audit_events WHERE org_id = %(org)s AND action = 'api_key.leak_reported')""",
    KeyState.IMPORTED: (
        f"{_IS_ACTIVE} AND superseded_by IS NULL AND import_algorithm IS NOT NULL AND last_used_at IS NULL"
    ),
}
_STATE_COUNTS: Final = ", ".join(
    f"count(*) FILTER (WHERE {condition})" for condition in _STATE.values()
)
# One value a line, so that no search text matches across two of them.
_MATCHES: Final = """position(lower(%(search)s) IN lower(
    concat_ws(E'\\n', name, id, external_id, start || '...' || last4, start || '\u2026' || last4))) > 0"""
_HINTED_LISTING: Final = Listing("id, org_id", "api_keys", "created_at")
_HAS_ID: Final = "id = %(key_id)s"
_HAS_START: Final = "lower(start) = ANY(%(starts)s)"
_HAS_END: Final = "lower(last4) = %(last4)s"


class KeyFilter(msgspec.Struct, frozen=True):
    """Conditions on keys; None means any.

    ``search`` is a part of the name, the id, the external id, or the shown part of the secret
    (``start``, ``last4``, or both as in logs), case-insensitive.
    """

    status: KeyStatus | None = None
    state: KeyState | None = None
    mode: Mode | None = None
    search: str | None = None
    external_id: str | None = None
    last4: str | None = None
    """The last four characters of the secret, in lower case."""
    is_imported: bool = False


KeyCounts = Mapping[KeyState | None, int]
"""How many keys match a filter, by state; None is every state, and a key may be in several."""


class KeySummary(msgspec.Struct, frozen=True):
    """How many of a tenant's keys are in a state, and when any key, also a revoked one, was used
    last.
    """

    active: int
    expiring: int
    replaced: int
    last_used_at: datetime | None


def _key(row: Sequence[Any], now: datetime) -> ApiKey:
    members = dict(zip(_MEMBERS, row, strict=True))
    members["metadata"] = members["metadata"] or {}
    members["allowedAddresses"] = members["allowedAddresses"] or ()
    members["status"] = status_at(now, members["revokedAt"], members["expiresAt"])
    return msgspec.convert(members, ApiKey)


# A column that the row does not name becomes null. In the order of the digests, so that two imports
# of the same hashes never wait for each other.
INSERT: Final = """
INSERT INTO api_keys
SELECT key.*
  FROM json_populate_recordset(NULL::api_keys, %(keys)s) AS key
 ORDER BY key.digest
    ON CONFLICT DO NOTHING
RETURNING id
"""


async def insert(
    connection: Connection,
    keys: Mapping[bytes, ApiKey],
    pepper_id: str,
    imported_by: HashAlgorithm | None = None,
) -> set[str]:
    """Store new keys by their digests under this pepper, but none whose digest another key has;
    return the ids of the stored ones. The digests of imported keys are those of their hashes by
    this algorithm.
    """
    rows = [
        {
            **msgspec.structs.asdict(key),
            "metadata": key.metadata or None,
            "allowed_addresses": key.allowed_addresses or None,
            "digest": rf"\x{digest.hex()}",
            "pepper_id": pepper_id,
            "import_algorithm": imported_by,
            "import_digest": None if imported_by is None else rf"\x{digest.hex()}",
        }
        for digest, key in keys.items()
    ]
    document = msgspec.json.encode(rows).decode()
    return set(await connection.fetch_column(INSERT, {"keys": document}))


FIND: Final = (
    _SELECT + " WHERE org_id = %(org)s AND id = %(id)s AND (mode = 'test' OR NOT %(test_only)s)"
)


async def find(
    connection: Connection, org_id: str, key_id: str, now: datetime, *, test_only: bool
) -> ApiKey | None:
    """Find a key of a tenant; with ``test_only`` only a test-mode key."""
    values = {"org": org_id, "id": key_id, "test_only": test_only}
    row = await connection.fetch_row(FIND, values)
    return _key(row, now) if row else None


def _source(wanted: KeyFilter) -> str:
    """Return the condition that an index supports."""
    if wanted.external_id is None:
        return "org_id = %(org)s"
    return "org_id = %(org)s AND external_id = %(external_id)s"


def _checked(wanted: KeyFilter) -> str:
    """Return the condition that is checked row by row: the given ones only."""
    given = {
        _STATUS[wanted.status] if wanted.status else "": wanted.status,
        _STATE[wanted.state] if wanted.state else "": wanted.state,
        "mode = %(mode)s": wanted.mode,
        "import_algorithm IS NOT NULL": wanted.is_imported,
        _MATCHES: wanted.search,
        _HAS_END: wanted.last4,
    }
    return " AND ".join(condition for condition, value in given.items() if value) or "true"


def _filter_values(org_id: str, now: datetime, wanted: KeyFilter) -> dict[str, object]:
    return {
        "org": org_id,
        "now": now,
        "soon": now + SOON,
        "mode": wanted.mode,
        "search": wanted.search,
        "external_id": wanted.external_id,
        "last4": wanted.last4,
    }


async def read_page(
    connection: Connection, org_id: str, now: datetime, wanted: KeyFilter, window: Window
) -> Page[ApiKey]:
    """Read a page of a tenant's keys, newest first."""
    return await _LISTING.page(
        connection,
        _source(wanted),
        _filter_values(org_id, now, wanted),
        window,
        lambda row: _key(row, now),
        filtered=_checked(wanted),
    )


async def search_page(
    connection: Connection, org_id: str, now: datetime, wanted: KeyFilter, request: PageRequest
) -> NumberedPage[ApiKey]:
    """Read a numbered page of a tenant's keys. Raises `InvalidCursorError`."""
    listing = NumberedListing(
        _LISTING,
        _source(wanted),
        _filter_values(org_id, now, wanted),
        _checked(wanted),
    )
    return await listing.read(connection, request, lambda row: _key(row, now))


async def read_ranked(
    connection: Connection,
    org_id: str,
    now: datetime,
    wanted: KeyFilter,
    key_ids: Sequence[str],
    limit: int,
) -> list[ApiKey]:
    """Read the keys that match among those with these ids, in their order."""
    rows = await connection.fetch(
        _SELECT + " JOIN unnest(%(ids)s::text[]) WITH ORDINALITY AS ranked (id, place) USING (id) "
        f"WHERE {_source(wanted)} AND {_checked(wanted)} ORDER BY place LIMIT %(limit)s",
        {**_filter_values(org_id, now, wanted), "ids": list(key_ids), "limit": limit},
    )
    return [_key(row, now) for row in rows]


async def count_states(
    connection: Connection, org_id: str, now: datetime, wanted: KeyFilter
) -> KeyCounts:
    """Count the keys that match by their state, among a tenant's newest `MAX_SCANNED_RECORDS`.

    ``wanted`` names no state.
    """
    [counts] = await connection.fetch(
        f"SELECT count(*), {_STATE_COUNTS} FROM (SELECT {_LISTING.source_columns} FROM api_keys "  # noqa: S608
        f"WHERE {_source(wanted)} ORDER BY created_at DESC, id DESC LIMIT {MAX_SCANNED_RECORDS}) AS k "
        f"WHERE {_checked(wanted)}",
        _filter_values(org_id, now, wanted),
    )
    return dict(zip([None, *_STATE], counts, strict=True))


async def find_hinted(
    connection: Connection, hint: KeyHint, window: Window
) -> Page[tuple[str, str]]:
    """Find a page of the keys that a hint means, newest first: their ids and tenants; across
    tenants.
    """
    given = {_HAS_ID: hint.key_id, _HAS_START: hint.starts, _HAS_END: hint.last4}
    conditions = [condition for condition, value in given.items() if value]
    condition = f"({(' OR ' if hint.either else ' AND ').join(conditions)})"
    values = {"key_id": hint.key_id, "starts": list(hint.starts), "last4": hint.last4}
    return await _HINTED_LISTING.page(
        connection,
        condition,
        values,
        window,
        lambda row: (row[0], row[1]),
    )


async def find_tenant_of_key(connection: Connection, key_id: str) -> str | None:
    """Return the tenant that a key belongs to; across tenants."""
    org_id: str | None = await connection.fetch_value(
        "SELECT org_id FROM api_keys WHERE id = %s", (key_id,)
    )
    return org_id


LEAKED_SINCE: Final = f"""
{_SELECT}
 WHERE org_id = %(org)s AND revoked_at >= %(since)s AND superseded_by IS NULL
   AND id IN (SELECT target_id FROM audit_events WHERE org_id = %(org)s AND action = 'api_key.leak_reported')
 ORDER BY revoked_at DESC, id DESC
 LIMIT %(limit)s
"""  # noqa: S608  # our own


async def leaked_since(
    connection: Connection, org_id: str, now: datetime, since: datetime, limit: int
) -> list[ApiKey]:
    """Read a tenant's keys that were reported as leaked since then and have no successor, the last
    report first.
    """
    values = {"org": org_id, "since": since, "limit": limit}
    return [_key(row, now) for row in await connection.fetch(LEAKED_SINCE, values)]


COUNT_ACTIVE: Final = """
SELECT count(*)
  FROM api_keys
 WHERE org_id = %(org)s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %(now)s)
   AND (superseded_by IS NOT NULL) = %(replaced)s
"""


async def count_active(
    connection: Connection, org_id: str, now: datetime, *, replaced: bool = False
) -> int:
    """Count a tenant's keys that work, in both modes: those without a successor, or the
    ``replaced`` ones.
    """
    values = {"org": org_id, "now": now, "replaced": replaced}
    return await connection.fetch_count(COUNT_ACTIVE, values)


SUMMARIZE: Final = """
SELECT count(*) FILTER (WHERE is_active AND superseded_by IS NULL),
       count(*) FILTER (WHERE is_active AND superseded_by IS NULL AND expires_at <= %(soon)s),
       count(*) FILTER (WHERE is_active AND superseded_by IS NOT NULL),
       max(last_used_at)
  FROM (SELECT superseded_by, expires_at, last_used_at,
               revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %(now)s) AS is_active
          FROM api_keys
         WHERE org_id = %(org)s) AS key
"""


async def summarize(connection: Connection, org_id: str, now: datetime) -> KeySummary:
    """Count a tenant's keys in both modes, and find their last use."""
    row = await connection.fetch_row(SUMMARIZE, {"org": org_id, "now": now, "soon": now + SOON})
    return KeySummary(*(row or (0, 0, 0, None)))


# Without an identity provider, `issuers` and `pattern` are NULL here: `issuer = ANY(NULL)` is then
# true of no member. Other statements ask for NULL, and then read the users of every issuer.
HAS_OTHER_OWNER: Final = """
SELECT EXISTS (
         SELECT FROM api_keys
          WHERE org_id = %(org)s AND id <> %(id)s AND mode = 'live' AND access_level = 'OWNER'
            AND superseded_by IS NULL AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %(now)s)
            AND enabled
            AND coalesce(expires_at, 'infinity') >= coalesce(%(until)s::timestamptz, 'infinity'))
    OR EXISTS (
         SELECT FROM memberships
          WHERE tenant_id = %(org)s AND (issuer = ANY(%(issuers)s) OR issuer LIKE %(pattern)s)
            AND role = 'owner' AND removed_at IS NULL AND NOT invited)
"""


async def has_other_owner(
    connection: Connection, key: ApiKey, issuers: Issuers | None, now: datetime
) -> bool:
    """Whether a tenant has another live OWNER key that lives at least as long as this one, or a
    member who is an owner.

    Rotated keys do not count, nor do members of other ``issuers`` than these: without an identity
    provider, no member.
    """
    values = {
        **TenantUsers(key.org_id, issuers).values,
        "id": key.id,
        "until": key.expires_at,
        "now": now,
    }
    found: bool = await connection.fetch_value(HAS_OTHER_OWNER, values)
    return found


UPDATE: Final = """
UPDATE api_keys
   SET name = %(name)s, scopes = %(scopes)s, access_level = %(access_level)s, expires_at = %(expires_at)s,
       revoked_at = %(revoked_at)s, superseded_by = %(superseded_by)s, external_id = %(external_id)s,
       metadata = %(metadata)s, allowed_addresses = %(allowed_addresses)s, enabled = %(enabled)s,
       requests_per_minute = %(requests_per_minute)s
 WHERE org_id = %(org_id)s AND id = %(id)s
"""


async def update(connection: Connection, key: ApiKey) -> None:
    """Store the fields of a key that may change."""
    values = {
        **msgspec.structs.asdict(key),
        "scopes": list(key.scopes),
        "metadata": msgspec.json.encode(key.metadata).decode() if key.metadata else None,
        "allowed_addresses": list(key.allowed_addresses) or None,
    }
    await connection.execute(UPDATE, values)


READ_UNREVOKED: Final = (
    _SELECT + " WHERE org_id = %(org)s AND revoked_at IS NULL ORDER BY id FOR NO KEY UPDATE OF k"
)
REVOKE_ALL: Final = """
UPDATE api_keys SET revoked_at = %(now)s WHERE org_id = %(org)s AND revoked_at IS NULL
"""


async def revoke_all(connection: Connection, org_id: str, now: datetime) -> list[ApiKey]:
    """Revoke every key of a tenant that is not revoked yet; return them, revoked."""
    values = {"org": org_id, "now": now}
    keys = [_key(row, now) for row in await connection.fetch(READ_UNREVOKED, values)]
    await connection.execute(REVOKE_ALL, values)
    return [revoked(key, now) for key in keys]


COUNT_BY_PEPPER: Final = """
SELECT pepper_id, count(*)
  FROM api_keys
 WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %(now)s)
 GROUP BY pepper_id
"""
COUNT_BY_PREFIX: Final = """
SELECT split_part(start, '_', 1), count(*)
  FROM api_keys
 WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %(now)s) AND import_algorithm IS NULL
 GROUP BY 1
"""
COUNT_ACTIVE_IMPORTED: Final = """
SELECT count(*)
  FROM api_keys
 WHERE import_digest IS NOT NULL AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %(now)s)
"""


async def count_by_pepper(connection: Connection, now: datetime) -> dict[str | None, int]:
    """Count the active keys by the id of the pepper that they are hashed under; None where it is
    unknown.
    """
    return dict(await connection.fetch(COUNT_BY_PEPPER, {"now": now}))


async def count_by_prefix(connection: Connection, now: datetime) -> dict[str, int]:
    """Count the active keys by the prefix of their secret, without keys that other systems made."""
    return dict(await connection.fetch(COUNT_BY_PREFIX, {"now": now}))


async def count_active_imported(connection: Connection, now: datetime) -> int:
    """Count the active keys that other systems made."""
    return await connection.fetch_count(COUNT_ACTIVE_IMPORTED, {"now": now})


READ_ALL: Final = _SELECT + " WHERE org_id = %(org)s ORDER BY created_at, id"


async def read_all(connection: Connection, org_id: str, now: datetime) -> list[ApiKey]:
    """Read every key of a tenant, oldest first."""
    return [_key(row, now) for row in await connection.fetch(READ_ALL, {"org": org_id})]


class ImportDigests(NamedTuple):
    """The HMACs of a secret's hashes under one pepper."""

    sha256: bytes
    sha512: bytes


class KeyUse(NamedTuple):
    """An accepted request with a key; the digests are those of its secret under the newest
    pepper.
    """

    key_id: str
    at: datetime
    address: str | None
    digest: bytes
    pepper_id: str
    import_digests: ImportDigests | None = None
    """None for a key that was not imported."""


RECORD_USES: Final = Statement(
    """
  WITH used AS (
         SELECT u.*
           FROM unnest($1, $2, $3, $4, $5) AS u (id, at, address, digest, pepper_id)
           JOIN api_keys k ON k.id = u.id
          ORDER BY u.id
            FOR NO KEY UPDATE OF k)
UPDATE api_keys k
   SET last_used_at = used.at, last_used_address = used.address, digest = used.digest, pepper_id = used.pepper_id
  FROM used
 WHERE k.id = used.id AND used.at > coalesce(k.last_used_at, '-infinity')
""",
    TEXTS,
    MOMENTS,
    TEXTS,
    BLOBS,
    TEXTS,
)


# An imported key has become one like others; what is known of its hash moves to the newest pepper.
MOVE_IMPORT_DIGESTS: Final = Statement(
    """
UPDATE api_keys k
   SET import_digest = CASE k.import_algorithm WHEN 'sha256' THEN used.sha256 ELSE used.sha512 END
  FROM unnest($1, $2, $3) AS used (id, sha256, sha512)
 WHERE k.id = used.id AND k.import_digest IS NOT NULL
""",
    TEXTS,
    BLOBS,
    BLOBS,
)


async def record_uses(connection: Connection, uses: Mapping[str, KeyUse]) -> None:
    """Store the last use of keys; an imported key, or one hashed under an older pepper, moves to
    the digest of its secret under the newest.
    """
    *columns, _ = zip(*uses.values(), strict=True)
    imported = [(use.key_id, *use.import_digests) for use in uses.values() if use.import_digests]
    await connection.run_batch(
        RECORD_USES(*columns),
        *MOVE_IMPORT_DIGESTS.for_rows(imported),
    )


# Only the first use of several that know the hash changes the digest, and so finds the row.
BIND: Final = """
UPDATE api_keys
   SET digest = %(digest)s, pepper_id = %(pepper_id)s, last_used_at = %(at)s, last_used_address = %(address)s,
       import_digest = CASE import_algorithm WHEN 'sha256' THEN %(sha256)s ELSE %(sha512)s END
 WHERE id = %(key_id)s AND digest = %(unbound)s
"""
DIGEST: Final = "SELECT digest FROM api_keys WHERE id = %(key_id)s"


async def bind(connection: Connection, use: KeyUse, unbound: bytes) -> bytes | None:
    """Store the first use of an imported key, which moves it from its ``unbound`` digest to that of
    the secret. Return the digest that it has, because another use may have been first; None if it
    was deleted.
    """
    hashes = ImportDigests(b"", b"") if use.import_digests is None else use.import_digests
    values = {**use._asdict(), **hashes._asdict(), "unbound": unbound}
    await connection.execute(BIND, values)
    # a statement of its own, which sees what the first one waited for
    digest = await connection.fetch_value(DIGEST, values)
    return None if digest is None else bytes(digest)


COUNT_IMPORTED: Final = """
SELECT org_id,
       count(*) FILTER (WHERE last_used_at IS NOT NULL),
       count(*) FILTER (WHERE last_used_at IS NULL AND is_active),
       count(*) FILTER (WHERE last_used_at IS NULL AND NOT is_active)
  FROM (SELECT org_id, last_used_at,
               revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %(now)s) AS is_active
          FROM api_keys
         WHERE import_digest IS NOT NULL) AS imported
 GROUP BY org_id
 ORDER BY org_id
"""


async def count_imported(connection: Connection, now: datetime) -> list[ImportedKeyCounts]:
    """Count the imported keys of each tenant that has one; across tenants."""
    rows = await connection.fetch(COUNT_IMPORTED, {"now": now})
    return [ImportedKeyCounts(*row) for row in rows]


class ImportHolder(NamedTuple):
    """A key that was imported."""

    key_id: str
    org_id: str
    external_id: str | None
    digest: bytes
    """The HMAC of the hash that was imported."""


FIND_IMPORTED: Final = """
SELECT id, org_id, external_id, import_digest
  FROM api_keys
 WHERE import_digest = ANY(%(digests)s)
 UNION
SELECT id, org_id, external_id, import_digest
  FROM api_keys
 WHERE org_id = %(org_id)s AND external_id = ANY(%(external_ids)s) AND import_digest IS NOT NULL
 ORDER BY id
"""


async def find_imported(
    connection: Connection, org_id: str, digests: Sequence[bytes], external_ids: Sequence[str]
) -> list[ImportHolder]:
    """Find the imported keys with one of these digests, across tenants, and those of the tenant
    with one of these external ids; oldest first.
    """
    values = {"org_id": org_id, "digests": digests, "external_ids": external_ids}
    return [ImportHolder(*row) for row in await connection.fetch(FIND_IMPORTED, values)]
