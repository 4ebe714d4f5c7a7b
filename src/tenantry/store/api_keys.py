"""API keys. Every statement names the tenant; the secret is never here, its digest is."""

from datetime import datetime
from typing import Any, Final

from tenantry.db.database import Connection
from tenantry.domain.access import AccessLevel, Mode
from tenantry.domain.api_keys import ApiKey, KeyStatus, status_at

_COLUMNS: Final = (
    "id, org_id, name, scopes, access_level, mode, expires_at, start, last4, created_at, created_by, "
    "last_used_at, revoked_at, rotated_from, superseded_by"
)
# A key's status at a moment, in SQL: the same rule as `status_at`.
_STATUS: Final = {
    KeyStatus.ACTIVE: "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %(now)s)",
    KeyStatus.EXPIRED: "revoked_at IS NULL AND expires_at <= %(now)s",
    KeyStatus.REVOKED: "revoked_at IS NOT NULL",
}


def _key(row: tuple[Any, ...], now: datetime) -> ApiKey:
    (key_id, org_id, name, scopes, level, mode, expires_at, start, last4, created_at, created_by, last_used_at,
     revoked_at, rotated_from, superseded_by) = row  # fmt: skip
    return ApiKey(
        id=key_id,
        org_id=org_id,
        name=name,
        scopes=tuple(scopes),
        access_level=AccessLevel(level),
        mode=Mode(mode),
        expires_at=expires_at,
        status=status_at(now, revoked_at, expires_at),
        start=start,
        last4=last4,
        created_at=created_at,
        created_by=created_by,
        last_used_at=last_used_at,
        revoked_at=revoked_at,
        rotated_from=rotated_from,
        superseded_by=superseded_by,
    )


async def insert(connection: Connection, key: ApiKey, digest: bytes) -> None:
    """Store a new key under its digest."""
    await connection.execute(
        "INSERT INTO api_keys (id, org_id, digest, name, scopes, access_level, mode, expires_at, start, last4, "
        "created_at, created_by, rotated_from) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            key.id,
            key.org_id,
            digest,
            key.name,
            list(key.scopes),
            key.access_level,
            key.mode,
            key.expires_at,
            key.start,
            key.last4,
            key.created_at,
            key.created_by,
            key.rotated_from,
        ),
    )


async def find(
    connection: Connection, org_id: str, key_id: str, now: datetime, *, test_only: bool, lock: bool = False
) -> ApiKey | None:
    """One key of a tenant, or of its test-mode keys alone."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM api_keys "  # noqa: S608  # our own columns
        "WHERE org_id = %s AND id = %s AND (mode = 'test' OR NOT %s)" + (" FOR UPDATE" if lock else ""),
        (org_id, key_id, test_only),
    )
    row = await cursor.fetchone()
    return _key(row, now) if row else None


async def read_page(
    connection: Connection,
    org_id: str,
    now: datetime,
    *,
    test_only: bool,
    status: KeyStatus | None,
    limit: int,
    after: tuple[datetime | None, str | None],
) -> list[ApiKey]:
    """A tenant's keys after a position, newest first, and one more than ``limit`` if there are more."""
    condition = _STATUS[status] if status else "true"
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM api_keys "  # noqa: S608  # our own columns and conditions
        f"WHERE org_id = %(org)s AND (mode = 'test' OR NOT %(test_only)s) AND {condition} "
        "AND (created_at, id) < (coalesce(%(after_at)s::timestamptz, 'infinity'), coalesce(%(after_id)s::text, '')) "
        "ORDER BY created_at DESC, id DESC LIMIT %(most)s",
        {
            "org": org_id,
            "test_only": test_only,
            "now": now,
            "after_at": after[0],
            "after_id": after[1],
            "most": limit + 1,
        },
    )
    return [_key(row, now) for row in await cursor.fetchall()]


async def count_active(connection: Connection, org_id: str, now: datetime) -> int:
    """How many keys of a tenant work now, in both modes."""
    cursor = await connection.execute(
        f"SELECT count(*) FROM api_keys WHERE org_id = %(org)s AND {_STATUS[KeyStatus.ACTIVE]}",  # noqa: S608
        {"org": org_id, "now": now},
    )
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def update(connection: Connection, key: ApiKey) -> None:
    """Write back what may change of a key."""
    await connection.execute(
        "UPDATE api_keys SET name = %s, scopes = %s, access_level = %s, expires_at = %s, revoked_at = %s, "
        "superseded_by = %s WHERE org_id = %s AND id = %s",
        (
            key.name,
            list(key.scopes),
            key.access_level,
            key.expires_at,
            key.revoked_at,
            key.superseded_by,
            key.org_id,
            key.id,
        ),
    )


async def revoke_all(connection: Connection, org_id: str, now: datetime) -> None:
    """Revoke every key of a tenant that is not revoked yet."""
    await connection.execute(
        "UPDATE api_keys SET revoked_at = %s WHERE org_id = %s AND revoked_at IS NULL", (now, org_id)
    )


async def read_all(connection: Connection, org_id: str, now: datetime) -> list[ApiKey]:
    """Every key of a tenant, oldest first."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM api_keys WHERE org_id = %s ORDER BY created_at, id",  # noqa: S608  # our own columns
        (org_id,),
    )
    return [_key(row, now) for row in await cursor.fetchall()]


async def record_use(connection: Connection, used: dict[str, datetime]) -> None:
    """Record when keys were last used, in one statement."""
    await connection.execute(
        "WITH used AS (SELECT u.id, u.at FROM unnest(%s::text[], %s::timestamptz[]) AS u (id, at) "
        "JOIN api_keys k ON k.id = u.id ORDER BY u.id FOR NO KEY UPDATE OF k) "
        "UPDATE api_keys k SET last_used_at = greatest(k.last_used_at, used.at) FROM used WHERE k.id = used.id",
        (list(used), list(used.values())),
    )
