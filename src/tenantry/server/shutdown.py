"""Shutdown of a server process, in two steps: drain, then close."""

from collections.abc import Callable
from typing import Final

SHUTDOWN: Final = "tenantry.shutdown"  # key of the process's `Shutdown` in the ASGI lifespan state


class Shutdown:
    """The state of a process's shutdown; ``on_drain`` and ``on_close`` are called once each.

    While it drains, the process reports not ready and makes each response the last one of its connection, so that load
    balancers stop using it before connections close. When it closes, it accepts no connections and ends streams.
    """

    __slots__ = ("_on_close", "_on_drain", "is_draining")

    def __init__(
        self, on_drain: Callable[[], None] = lambda: None, on_close: Callable[[], None] = lambda: None
    ) -> None:
        self.is_draining = False
        """Whether the shutdown has begun. A signal handler may set it before `drain` is called."""
        self._on_drain: Callable[[], None] | None = on_drain
        self._on_close: Callable[[], None] | None = on_close

    def drain(self) -> None:
        self.is_draining = True
        callback, self._on_drain = self._on_drain, None
        if callback is not None:
            callback()

    def close(self) -> None:
        """Begin to close; drain first if that has not begun."""
        self.drain()
        callback, self._on_close = self._on_close, None
        if callback is not None:
            callback()
