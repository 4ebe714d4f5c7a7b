"""The HTTP client: the caller's or a new one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from tenantry_sdk._async._compat import Mutex
from tenantry_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx2

_WITHOUT_PROXY: Final = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""Plain-http requests to this machine must not go through a proxy."""


_CONNECTIONS: Final = 100
_IDLE_SECONDS: Final = 4.0
"""The service closes a connection that is idle for 5 s."""


class AsyncHttp:
    """Holds the HTTP client."""

    def __init__(self, given: httpx2.AsyncClient | None) -> None:
        """``given`` is the caller's client, which the caller closes; without it, a new client is created."""
        self._given = given
        self._own = _new() if given is None else None
        self._pid = os.getpid()
        self._mutex = Mutex()
        self._is_closed = False

    def client(self) -> httpx2.AsyncClient:
        """Return the client. A forked child gets another one, because two processes cannot share a connection.

        Raises `ConfigurationError` after `aclose`.
        """
        if self._is_closed:
            raise ConfigurationError("The client is closed.")
        if self._own is None:
            assert self._given is not None  # noqa: S101  # either is set
            return self._given
        if self._pid != os.getpid():
            with self._mutex:  # never held during a fork: a parent creates no client
                if self._pid != os.getpid():
                    self._own, self._pid = _new(), os.getpid()
        return self._own

    async def aclose(self) -> None:
        """Close the client, unless it is the caller's."""
        self._is_closed = True
        if self._own is not None and self._pid == os.getpid():
            await self._own.aclose()


def _new() -> httpx2.AsyncClient:
    from httpx2 import AsyncClient, Limits  # noqa: PLC0415  # slow to import

    limits = Limits(
        max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS, keepalive_expiry=_IDLE_SECONDS
    )
    return AsyncClient(mounts=_WITHOUT_PROXY, limits=limits)
