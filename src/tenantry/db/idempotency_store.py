"""Answers kept under idempotency keys."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from tenantry.db.connection import Connection

KEPT: Final = timedelta(hours=24)


class Claim(msgspec.Struct, frozen=True):
    """A request that wants to be carried out once: who sends it, where to, under which key, what it says."""

    principal: str
    route: str
    key: str
    body_digest: bytes


async def lock(connection: Connection, claim: Claim) -> bool:
    """Hold the claim until the transaction ends; False if another request holds it now."""
    name = f"idempotency\x1f{claim.principal}\x1f{claim.route}\x1f{claim.key}"
    cursor = await connection.execute("SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", (name,))
    row = await cursor.fetchone()
    return bool(row and row[0])


async def find(connection: Connection, claim: Claim, now: datetime) -> tuple[bytes, bytes] | None:
    """The digest of the first request's body and its answer as JSON, if it was less than 24 h ago."""
    cursor = await connection.execute(
        "SELECT body_digest, answer::text FROM idempotency_keys "
        "WHERE principal = %s AND route = %s AND key = %s AND created_at > %s",
        (claim.principal, claim.route, claim.key, now - KEPT),
    )
    row = await cursor.fetchone()
    return (bytes(row[0]), row[1].encode()) if row else None


async def keep(connection: Connection, claim: Claim, answer: bytes, now: datetime) -> None:
    """Keep the answer (JSON)."""
    await connection.execute(
        "INSERT INTO idempotency_keys (principal, route, key, body_digest, answer, created_at) "
        "VALUES (%s, %s, %s, %s, %s::jsonb, %s) ON CONFLICT (principal, route, key) DO UPDATE "
        "SET body_digest = excluded.body_digest, answer = excluded.answer, created_at = excluded.created_at",
        (claim.principal, claim.route, claim.key, claim.body_digest, answer.decode(), now),
    )
