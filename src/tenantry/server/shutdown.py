"""How a server process ends: who has to know of it, and when."""

from collections.abc import Callable
from typing import Final

ENDING: Final = "tenantry.ending"
"""Where the state of the ASGI lifespan holds the process's `Shutdown`."""


class Shutdown:
    """The end of a server process in two steps: it drains, then it closes.

    While it drains it says that it is not ready and goes on as before, but that each answer is the last one on its
    connection: a load balancer has time to notice, and keeps no connection that is about to be closed. When it closes
    it takes no new connections, and ends what would go on by itself.

    ``draining`` and ``closing`` are called as these begin, once each.
    """

    __slots__ = ("_closing", "_draining", "is_draining")

    def __init__(self, draining: Callable[[], None] = lambda: None, closing: Callable[[], None] = lambda: None) -> None:
        self.is_draining = False
        """Whether the end has begun. A signal's handler may set it: what is to be called is called by `drain`."""
        self._draining: Callable[[], None] | None = draining
        self._closing: Callable[[], None] | None = closing

    def drain(self) -> None:
        """Begin with the first step."""
        self.is_draining = True
        draining, self._draining = self._draining, None
        if draining is not None:
            draining()

    def close(self) -> None:
        """Begin with the second step, and with the first if that has not been."""
        self.drain()
        closing, self._closing = self._closing, None
        if closing is not None:
            closing()
