"""Carrying out a request once, however often it is sent (CONTRACT 4)."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

import msgspec

from tenantry.db import idempotency_store as idempotency
from tenantry.db.connection import Connection
from tenantry.db.idempotency_store import Claim
from tenantry.domain.errors import IdempotencyInFlightError, IdempotencyMismatchError

Answer = TypeVar("Answer", bound=msgspec.Struct)


async def once(
    connection: Connection, claim: Claim | None, kind: type[Answer], now: datetime, act: Callable[[], Awaitable[Answer]]
) -> tuple[Answer, bool]:
    """Run ``act`` in the connection's transaction, or give the answer that it gave the first time.

    The flag says whether the answer is a replay. Work and answer are committed together, so a process that
    dies leaves neither. Without a claim ``act`` simply runs. Raises `IdempotencyInFlightError` and
    `IdempotencyMismatchError`.
    """
    if claim is None:
        return await act(), False
    if not await idempotency.lock(connection, claim):
        raise IdempotencyInFlightError("A request with this Idempotency-Key is still being carried out.")
    kept = await idempotency.find(connection, claim, now)
    if kept is not None:
        body_digest, answer = kept
        if body_digest != claim.body_digest:
            raise IdempotencyMismatchError("This Idempotency-Key was used with another request body.")
        return msgspec.json.decode(answer, type=kind), True
    made = await act()
    await idempotency.keep(connection, claim, msgspec.json.encode(made), now)
    return made, False
