"""Refusing credentials without letting a flood of bad ones slow everybody down."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from tenantry.common.clock import Throttle
from tenantry.domain.errors import (
    ApiKeyExpiredError,
    ApiKeyRevokedError,
    DomainError,
    InvalidCredentialError,
    MissingCredentialError,
    TokenExpiredError,
)

PER_SECOND: Final = 500
"""Refusals that leave a process in a second."""
AT_ONCE: Final = 50
LONGEST: Final = 2.0
"""Seconds that a refusal waits at most."""
_REFUSED: Final = (
    MissingCredentialError, InvalidCredentialError, ApiKeyRevokedError, ApiKeyExpiredError, TokenExpiredError,
)  # fmt: skip


class FailedAuthenticationThrottle:
    """Refusals of credentials, which leave at a bounded pace.

    A refusal costs little, and so a sender who sends the next bad credential upon each could keep the process busy with
    nothing else. Who has to wait for the answer cannot send the next one. No address is needed for that, which a sender
    may have many of. Whoever is let in never waits here.
    """

    def __init__(self, refused: Callable[[str, str], None] = lambda _kind, _reason: None) -> None:
        """``refused`` is told of each: what sort of credential it was, and the code of the refusal."""
        self._refused = refused
        self._throttle = Throttle(PER_SECOND, burst=AT_ONCE, longest=LONGEST)

    @property
    def waiting(self) -> int:
        """Refusals that wait for their turn."""
        return self._throttle.waiting

    @asynccontextmanager
    async def of(self, kind: str) -> AsyncIterator[None]:
        """Hold what the block raises; ``kind`` is the sort of credential that it looks at."""
        try:
            yield
        except DomainError as error:
            await self.hold(error, kind)
            raise

    async def hold(self, error: DomainError, kind: str) -> None:
        """Wait for the turn of a refusal, if it is of a credential; for the hot path, where the block costs more."""
        self._refused(kind, error.code)
        if isinstance(error, _REFUSED):
            await self._throttle.wait()
