"""What the front needs to know of how a request arrives."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from tenantry.server.asgi_types import Receive


class Arrival:
    """An ASGI ``receive`` that knows how long its application has waited for the client so far.

    Where the client is gone before its request is whole, the application is cancelled: there is nobody to answer, and
    nothing to say about it.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._is_whole = False
        self._waited = 0.0
        self._since: float | None = None

    async def __call__(self) -> MutableMapping[str, Any]:
        """The next message. Raises `asyncio.CancelledError`."""
        if self._is_whole:
            return await self._receive()
        self._since = self._loop.time()
        try:
            message = await self._receive()
        finally:
            self._waited += self._loop.time() - self._since
            self._since = None
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        self._is_whole = not message.get("more_body", False)
        return message

    def waited(self) -> float:
        """Seconds."""
        return self._waited + (self._loop.time() - self._since if self._since is not None else 0.0)
