"""The HTTP client: the caller's or a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenantry_sdk._async._compat import home
from tenantry_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

    import httpx2

_WITHOUT_PROXY: Final = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""Plain-http requests to this machine must not go through a proxy."""


_CONNECTIONS: Final = 100
_IDLE_SECONDS: Final = 4.0
"""The service closes a connection that is idle for 5 s."""


class AsyncHttp:
    """Holds the HTTP client, whose connections belong to one process and event loop."""

    def __init__(self, given: httpx2.AsyncClient | None) -> None:
        """``given`` is the caller's client, which the caller closes; without it, a new client is created."""
        self._given = given
        self._certificates: ssl.SSLContext | None = None
        here = home()
        self._own = (here, self._new()) if given is None and here is not None else None
        self._is_closed = False

    def client(self) -> httpx2.AsyncClient:
        """Return the client. A forked child and another event loop get a new one.

        Raises `ConfigurationError` after `aclose`.
        """
        if self._is_closed:
            raise ConfigurationError("The client is closed.")
        if self._given is not None:
            return self._given
        own, here = self._own, home()
        if own is None or own[0] != here:
            own = self._own = (here, self._new())  # without a lock, which a fork could leave locked
        return own[1]

    async def aclose(self) -> None:
        """Close the client, unless it is the caller's."""
        self._is_closed = True
        if self._own is not None and self._own[0] == home():
            await self._own[1].aclose()

    def _new(self) -> httpx2.AsyncClient:
        from httpx2 import AsyncClient, Limits, create_ssl_context  # noqa: PLC0415  # slow to import

        if self._certificates is None:
            self._certificates = create_ssl_context()  # slow too, so that further clients share it
        limits = Limits(
            max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS, keepalive_expiry=_IDLE_SECONDS
        )
        return AsyncClient(mounts=_WITHOUT_PROXY, limits=limits, verify=self._certificates)
