"""Idempotency keys: run a request once, however often it is sent (CONTRACT 4)."""

from datetime import datetime, timedelta
from typing import Final, NamedTuple, Self, TypeVar

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain.errors import IdempotencyInFlightError, IdempotencyMismatchError

KEPT: Final = timedelta(hours=24)
Answer = TypeVar("Answer", bound=msgspec.Struct)

_LOCK: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))"
_FIND: Final = """
SELECT body_digest, answer::text FROM idempotency_keys
 WHERE principal = %s AND route = %s AND key = %s AND created_at > %s
"""
_KEEP: Final = """
INSERT INTO idempotency_keys (principal, route, key, body_digest, answer, created_at)
VALUES (%s, %s, %s, %s, %s::jsonb, %s)
ON CONFLICT (principal, route, key) DO UPDATE
   SET body_digest = excluded.body_digest, answer = excluded.answer, created_at = excluded.created_at
"""


class Claim(msgspec.Struct, frozen=True):
    """A request with an idempotency key."""

    principal: str
    route: str
    key: str
    body_digest: bytes


class KeptAnswer(NamedTuple):
    """The digest of the first request's body, and the JSON of its answer."""

    body_digest: bytes
    answer: str

    @classmethod
    def of(cls, claim: Claim, answer: msgspec.Struct) -> Self:
        """Return what is kept of the answer to the first request of a claim."""
        return cls(claim.body_digest, msgspec.json.encode(answer).decode())

    def repeat(self, claim: Claim, kind: type[Answer]) -> Answer:
        """Return the answer to a request that repeats the first one. Raises
        `IdempotencyMismatchError` if it has another body.
        """
        if self.body_digest != claim.body_digest:
            raise IdempotencyMismatchError(
                "This Idempotency-Key was used with another request body."
            )
        return msgspec.json.decode(self.answer, type=kind)


async def begin(
    connection: Connection, claim: Claim | None, kind: type[Answer], now: datetime
) -> Answer | None:
    """Begin a request that is answered once: return the answer of the one that it repeats, if any.

    Without one the caller acts, and calls `keep` with its answer in the same transaction. Until
    that ends, the claim is locked. Raises `IdempotencyInFlightError` and
    `IdempotencyMismatchError`.
    """
    if claim is None:
        return None
    name = f"idempotency\x1f{claim.principal}\x1f{claim.route}\x1f{claim.key}"
    if not await connection.fetch_value(_LOCK, (name,)):
        raise IdempotencyInFlightError(
            "A request with this Idempotency-Key is still being processed."
        )
    return await find(connection, claim, kind, now)


async def find(
    connection: Connection, claim: Claim | None, kind: type[Answer], now: datetime
) -> Answer | None:
    """Return the answer of the first request, if it was less than 24 h ago. Raises
    `IdempotencyMismatchError`.

    For requests that another service answers between two transactions: the first calls this, the
    last `keep`. All others are answered in one transaction, which calls `begin`.
    """
    if claim is None:
        return None
    row = await connection.fetch_row(_FIND, (claim.principal, claim.route, claim.key, now - KEPT))
    return None if row is None else KeptAnswer(*row).repeat(claim, kind)


async def keep(
    connection: Connection, claim: Claim | None, answer: msgspec.Struct, now: datetime
) -> None:
    """Keep the answer for repeated requests; do nothing without a claim."""
    if claim is None:
        return
    kept = KeptAnswer.of(claim, answer)
    await connection.execute(_KEEP, (claim.principal, claim.route, claim.key, *kept, now))
