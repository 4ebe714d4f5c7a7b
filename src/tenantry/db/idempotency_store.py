"""Idempotency keys: run a request once, however often it is sent (CONTRACT 4)."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, TypeVar

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


async def once(
    connection: Connection,
    claim: Claim | None,
    kind: type[Answer],
    now: datetime,
    act: Callable[[], Awaitable[Answer]],
    added: Mapping[str, object] = MappingProxyType({}),
) -> Answer:
    """Run ``act`` in the connection's transaction, or return its first answer.

    Work and answer are committed together. Without a claim ``act`` simply runs. ``added`` has the
    fields that the previous release's answers lack. Raises `IdempotencyInFlightError` and
    `IdempotencyMismatchError`.
    """
    if claim is None:
        return await act()
    name = f"idempotency\x1f{claim.principal}\x1f{claim.route}\x1f{claim.key}"
    if not await connection.fetch_value(_LOCK, (name,)):
        raise IdempotencyInFlightError(
            "A request with this Idempotency-Key is still being processed."
        )
    answer = await find(connection, claim, kind, now, added)
    if answer is None:
        answer = await act()
        await keep(connection, claim, answer, now)
    return answer


async def find(
    connection: Connection,
    claim: Claim,
    kind: type[Answer],
    now: datetime,
    added: Mapping[str, object] = MappingProxyType({}),
) -> Answer | None:
    """Return the answer of the first request, if it was less than 24 h ago. Raises
    `IdempotencyMismatchError`.

    ``added`` as of `once`.
    """
    row = await connection.fetch_row(_FIND, (claim.principal, claim.route, claim.key, now - KEPT))
    if row is None:
        return None
    body_digest, answer = row
    if body_digest != claim.body_digest:
        raise IdempotencyMismatchError("This Idempotency-Key was used with another request body.")
    return msgspec.convert({**added, **msgspec.json.decode(answer)}, kind)


async def keep(connection: Connection, claim: Claim, answer: msgspec.Struct, now: datetime) -> None:
    encoded = msgspec.json.encode(answer).decode()
    await connection.execute(
        _KEEP, (claim.principal, claim.route, claim.key, claim.body_digest, encoded, now)
    )
