"""Refusing credentials without letting a flood of bad ones slow everybody down."""

import asyncio
import time
from types import TracebackType
from typing import Final

from tenantry.domain.errors import (
    ApiKeyExpiredError,
    ApiKeyRevokedError,
    DomainError,
    InvalidCredentialError,
    MissingCredentialError,
    TokenExpiredError,
)
from tenantry.kit.pace import Pace

PER_SECOND: Final = 500
"""Refusals that leave a process in a second."""
AT_ONCE: Final = 50
LONGEST: Final = 2.0
"""Seconds that a refusal waits at most."""
_REFUSED: Final = (
    MissingCredentialError, InvalidCredentialError, ApiKeyRevokedError, ApiKeyExpiredError, TokenExpiredError,
)  # fmt: skip


class Refusals:
    """Within its block, ``async with``, the refusal of a credential leaves at a bounded pace.

    A refusal costs little, and so a sender who sends the next bad credential upon each could keep the process busy with
    nothing else. Who has to wait for the answer cannot send the next one. No address is needed for that, which a sender
    may have many of. Whoever is let in never waits here.
    """

    def __init__(self) -> None:
        self._pace = Pace(PER_SECOND, at_once=AT_ONCE, longest=LONGEST)
        self.waiting = 0
        """Refusals that wait for their turn."""

    async def __aenter__(self) -> None:
        """Begin; what the block raises is held."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hold what the block raised."""
        if isinstance(error, DomainError):
            await self.hold(error)

    async def hold(self, error: DomainError) -> None:
        """Wait for the turn of a refusal, if it is of a credential; for the hot path, where the block costs more."""
        if isinstance(error, _REFUSED) and (seconds := self._pace.wait(time.monotonic())):
            self.waiting += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                self.waiting -= 1
