"""The HTTP client in use: the caller's, or one of our own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from tenantry_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx2

_WITHOUT_PROXY: Final = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""What is sent to this machine in clear must not leave it."""


class AsyncHttp:
    """Gives the HTTP client to send with."""

    def __init__(self, given: httpx2.AsyncClient | None) -> None:
        """``given`` is the caller's, who closes it. Without it there is one of our own."""
        self._given = given
        self._own: httpx2.AsyncClient | None = None
        self._pid = os.getpid()
        self._is_closed = False

    def client(self) -> httpx2.AsyncClient:
        """The client; a child of this process gets one of its own, for two cannot share a connection.

        Raises `ConfigurationError` once it is closed.
        """
        if self._is_closed:
            raise ConfigurationError("The client is closed.")
        if self._given is not None:
            return self._given
        if self._own is None or self._pid != os.getpid():
            from httpx2 import AsyncClient  # noqa: PLC0415  # slow to import

            self._own, self._pid = AsyncClient(mounts=_WITHOUT_PROXY), os.getpid()
        return self._own

    async def aclose(self) -> None:
        """Close the connections of our own."""
        self._is_closed = True
        if self._own is not None and self._pid == os.getpid():
            await self._own.aclose()
