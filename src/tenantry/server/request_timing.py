"""Request timing: how long an application waits for its client."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from tenantry.server.asgi_types import Receive


class TimedReceive:
    """An ASGI ``receive`` that measures waits for the client, and cancels the application if it disconnects early."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._is_complete = False
        self._waited = 0.0
        self._since: float | None = None

    async def __call__(self) -> MutableMapping[str, Any]:
        if self._is_complete:
            return await self._receive()
        self._since = self._loop.time()
        try:
            message = await self._receive()
        finally:
            self._waited += self._loop.time() - self._since
            self._since = None
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        self._is_complete = not message.get("more_body", False)
        return message

    def waited(self) -> float:
        return self._waited + (self._loop.time() - self._since if self._since is not None else 0.0)
