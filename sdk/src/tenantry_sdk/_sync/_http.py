# Generated from _async/_http.py by sdk/make_sync.py: edit that file.
"""The HTTP client: the caller's or a new one."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from tenantry_sdk._certificates import no_certificates, system_certificates
from tenantry_sdk._sync._compat import Owner, close, current_owner, has_ended, in_thread
from tenantry_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

    import httpx2

_WITHOUT_PROXY: Final = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""Plain-http requests to this machine must not go through a proxy."""


_CONNECTIONS: Final = 100
_IDLE_SECONDS: Final = 4.0
"""The service closes a connection that is idle for 5 s."""


class Http:
    """Holds the HTTP clients: one for each process and event loop, which connections belong to."""

    def __init__(self, given: httpx2.Client | None, *, uses_tls: bool = True) -> None:
        """``given`` is the caller's client, which the caller closes; without it, a new client is
        created. Without ``uses_tls`` it reaches no ``https`` address.
        """
        if given is None:
            _import_all()
        self._given = given
        self._uses_tls = uses_tls
        # without a lock, which a fork could leave locked
        self._own: dict[Owner, httpx2.Client] = {}
        self._is_closed = False

    def client(self) -> httpx2.Client:
        """Return the client. A forked child and another event loop get a new one.

        Raises `ConfigurationError` after `close`.
        """
        client = self._given or self._own.get(current_owner()) or self._new()
        if self._is_closed:
            raise ConfigurationError("The client is closed.")
        return client

    def _new(self) -> httpx2.Client:
        certificates = in_thread(system_certificates) if self._uses_tls else no_certificates()
        for owner in self._own.copy():
            if has_ended(owner):
                self._own.pop(owner, None)
        return self._own.setdefault(current_owner(), _new_client(certificates))

    def close(self) -> None:
        """Close the clients, unless it is the caller's."""
        self._is_closed = True
        close(self._own.copy())


@cache
def _import_all() -> None:
    """Import what the first client of a process imports: 200 ms that would be those of the event
    loop of its first request.
    """
    from httpx2 import HTTPTransport  # noqa: PLC0415

    HTTPTransport(verify=no_certificates()).close()


def _new_client(certificates: ssl.SSLContext) -> httpx2.Client:
    from http.cookiejar import CookieJar, DefaultCookiePolicy  # noqa: PLC0415  # slow to import

    from httpx2 import Client, Limits  # noqa: PLC0415

    limits = Limits(
        max_connections=_CONNECTIONS,
        max_keepalive_connections=_CONNECTIONS,
        keepalive_expiry=_IDLE_SECONDS,
    )
    # callers with different credentials share the client: none gets a cookie of another's response
    none = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    return Client(mounts=_WITHOUT_PROXY, limits=limits, verify=certificates, cookies=none)
