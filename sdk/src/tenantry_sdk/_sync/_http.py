# Made from _async/_http.py by sdk/make_sync.py: change that one.
"""The HTTP client in use: the caller's, or one of our own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from tenantry_sdk._sync._compat import Guard
from tenantry_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx2

_WITHOUT_PROXY: Final = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""What is sent to this machine in clear must not leave it."""


class Http:
    """Gives the HTTP client to send with."""

    def __init__(self, given: httpx2.Client | None) -> None:
        """``given`` is the caller's, who closes it. Without it there is one of our own."""
        self._given = given
        self._own = _new() if given is None else None
        self._pid = os.getpid()
        self._guard = Guard()
        self._is_closed = False

    def client(self) -> httpx2.Client:
        """The client; a forked child gets another one, because two processes cannot share a connection.

        Raises `ConfigurationError` once it is closed.
        """
        if self._is_closed:
            raise ConfigurationError("The client is closed.")
        if self._own is None:
            assert self._given is not None  # noqa: S101  # one of the two there is
            return self._given
        if self._pid != os.getpid():
            with self._guard:  # that of a parent is never held: nothing is made there
                if self._pid != os.getpid():
                    self._own, self._pid = _new(), os.getpid()
        return self._own

    def close(self) -> None:
        """Close the connections of our own."""
        self._is_closed = True
        if self._own is not None and self._pid == os.getpid():
            self._own.close()


def _new() -> httpx2.Client:
    from httpx2 import Client  # noqa: PLC0415  # slow to import

    return Client(mounts=_WITHOUT_PROXY)
