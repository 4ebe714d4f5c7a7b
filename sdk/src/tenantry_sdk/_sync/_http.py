# Generated from _async/_http.py by sdk/make_sync.py: edit that file.
"""The HTTP client: the caller's or a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenantry_sdk._sync._compat import Owner, close, current_owner, has_ended
from tenantry_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx2

_WITHOUT_PROXY: Final = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""Plain-http requests to this machine must not go through a proxy."""


_CONNECTIONS: Final = 100
_IDLE_SECONDS: Final = 4.0
"""The service closes a connection that is idle for 5 s."""


class Http:
    """Holds the HTTP clients: one for each process and event loop, which connections belong to."""

    def __init__(self, given: httpx2.Client | None) -> None:
        """``given`` is the caller's client, which the caller closes; without it, a new client is
        created.
        """
        from httpx2 import create_ssl_context  # noqa: PLC0415  # slow to import

        self._given = given
        # without a lock, which a fork could leave locked
        self._own: dict[Owner, httpx2.Client] = {}
        # slow, so that all share it
        self._certificates = create_ssl_context() if given is None else None
        self._is_closed = False

    def client(self) -> httpx2.Client:
        """Return the client. A forked child and another event loop get a new one.

        Raises `ConfigurationError` after `close`.
        """
        if self._is_closed:
            raise ConfigurationError("The client is closed.")
        if self._given is not None:
            return self._given
        current = current_owner()
        client = self._own.get(current)
        if client is None:
            for owner in self._own.copy():
                if has_ended(owner):
                    self._own.pop(owner, None)
            client = self._own.setdefault(current, self._new())
        return client

    def close(self) -> None:
        """Close the clients, unless it is the caller's."""
        self._is_closed = True
        close(self._own.copy())

    def _new(self) -> httpx2.Client:
        from httpx2 import Client, Limits  # noqa: PLC0415

        assert self._certificates is not None  # noqa: S101  # the caller has passed no client
        limits = Limits(
            max_connections=_CONNECTIONS,
            max_keepalive_connections=_CONNECTIONS,
            keepalive_expiry=_IDLE_SECONDS,
        )
        return Client(mounts=_WITHOUT_PROXY, limits=limits, verify=self._certificates)
