"""What differs between the two clients: waiting, locks, deadlines. Each has a file of this name of its own."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tenantry_sdk._request import Response
from tenantry_sdk.errors import TimedOutError

if TYPE_CHECKING:
    import httpx2

    from tenantry_sdk._store import Token
    from tenantry_sdk._tokens import AsyncCallback


async def sleep(seconds: float) -> None:
    """Wait."""
    import anyio  # noqa: PLC0415  # slow to import, as in the other functions

    await anyio.sleep(seconds)


async def fetch(client: httpx2.AsyncClient, request: httpx2.Request, seconds: float) -> Response:
    """Send a request and read the whole answer. Raises `TimeoutError` when that takes longer than ``seconds``."""
    import anyio  # noqa: PLC0415

    with anyio.fail_after(seconds):
        answer = await client.send(request, follow_redirects=False)
    return Response(answer.status_code, {k.lower(): v for k, v in answer.headers.items()}, answer.content)


async def called(function: AsyncCallback) -> str | Token:
    """What a caller's function gives, now or in a while."""
    given = function()
    return await given if inspect.isawaitable(given) else given


class Lock:
    """One at a time, within this process."""

    def __init__(self) -> None:
        import anyio  # noqa: PLC0415

        self._lock = anyio.Lock()

    @asynccontextmanager
    async def held(self, seconds: float) -> AsyncGenerator[None]:
        """Hold it for the block. Raises `TimedOutError` when it is not free within ``seconds``."""
        import anyio  # noqa: PLC0415

        try:
            with anyio.fail_after(seconds):
                await self._lock.acquire()
        except TimeoutError as error:
            raise TimedOutError("Another call is still fetching a token.") from error
        try:
            yield
        finally:
            self._lock.release()
