"""Ports for the servers that the tests start as processes of their own."""

import secrets
import socket
from typing import Final

_BELOW_EPHEMERAL: Final = range(10_000, 32_768)
"""No system gives these to connections, or to servers that ask for any port."""


def free_port() -> int:
    """A port without a listener, which nobody takes before the server of the caller listens: two
    test processes seldom draw the same one.
    """
    while True:
        port = secrets.choice(_BELOW_EPHEMERAL)
        if _is_free(port):
            return port


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
