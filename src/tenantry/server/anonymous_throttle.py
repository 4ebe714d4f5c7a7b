"""Refusing strangers without letting a flood of them slow everybody down."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from tenantry.common.pace import Pace
from tenantry.server.asgi_types import CALLER, CLAIMS, OPERATOR, OUTCOME, Scope
from tenantry.server.error_codes import CREDENTIAL

PER_SECOND: Final = 200
"""Refusals of strangers that leave a process in a second."""
AT_ONCE: Final = 50
LONGEST: Final = 2.0
"""Seconds that one of them waits at most."""
_KNOWN: Final = (CALLER, CLAIMS, OPERATOR)


def is_stranger(scope: Scope) -> bool:
    """Whether who sent this request has shown no credential, neither a good one nor one that was refused for itself."""
    return not any(mark in scope for mark in _KNOWN) and scope.get(OUTCOME) not in CREDENTIAL


class Strangers:
    """Holds what is refused to somebody who has shown no credential: an unknown address, a signature that is not right.

    It is what `services.refusals` does for credentials, for the same reason, with a pace of its own: so that no flood
    of the one makes those of the other wait.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._pace = Pace(PER_SECOND, at_once=AT_ONCE, longest=LONGEST)
        self._now = now
        self.waiting = 0
        """Refusals that wait for their turn."""

    async def hold(self) -> None:
        """Wait for the turn of a refusal."""
        if seconds := self._pace.wait(self._now()):
            self.waiting += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                self.waiting -= 1
