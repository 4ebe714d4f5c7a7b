"""Delay rejected credentials, so that a flood of them does not slow down other requests."""

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
"""Rejections that a process sends in a second."""
AT_ONCE: Final = 50
LONGEST: Final = 2.0
"""The longest delay of a rejection, in seconds."""
_DELAYED: Final = (
    MissingCredentialError, InvalidCredentialError, ApiKeyRevokedError, ApiKeyExpiredError, TokenExpiredError,
)  # fmt: skip


class FailedAuthenticationThrottle:
    """Sends rejections of credentials at a bounded rate.

    A client that sends the next bad credential upon each rejection could otherwise keep the process busy. The delay
    needs no client addresses, of which an attacker may have many. Accepted requests are never delayed.
    """

    def __init__(self, refused: Callable[[str, str], None] = lambda _kind, _reason: None) -> None:
        """``refused`` receives the kind of each rejected credential and the error code."""
        self._refused = refused
        self._throttle = Throttle(PER_SECOND, burst=AT_ONCE, longest=LONGEST)

    @property
    def waiting(self) -> int:
        """Rejections that are being delayed."""
        return self._throttle.waiting

    @asynccontextmanager
    async def watch(self, kind: str) -> AsyncIterator[None]:
        """Delay an error that the block raises; ``kind`` is the kind of credential that it checks."""
        try:
            yield
        except DomainError as error:
            await self.delay(error, kind)
            raise

    async def delay(self, error: DomainError, kind: str) -> None:
        """Delay the rejection of a credential; for the hot path, where `watch` costs more."""
        self._refused(kind, error.code)
        if isinstance(error, _DELAYED):
            await self._throttle.wait()
