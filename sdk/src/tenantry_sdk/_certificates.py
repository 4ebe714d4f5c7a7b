"""The certificates that connections trust, for all clients of a process."""

from __future__ import annotations

import os
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl

_locks: Final[dict[int, Lock]] = {}
"""A lock for each process, as a fork may leave the parent's locked."""


def system_certificates() -> ssl.SSLContext:
    """Return the certificates that the system trusts. Not for an event loop: the first call of a
    process loads them, which takes 60 ms.
    """
    with _locks.setdefault(os.getpid(), Lock()):  # threads that wait need not load them too
        return _load()


@cache
def _load() -> ssl.SSLContext:
    from httpx2 import create_ssl_context  # noqa: PLC0415  # slow to import

    return create_ssl_context()


@cache
def no_certificates() -> ssl.SSLContext:
    """Return what trusts no server, for clients that use no TLS."""
    import ssl  # noqa: PLC0415  # slow to import

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
