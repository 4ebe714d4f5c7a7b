"""Telling the service manager that the service is ready (sd_notify(3), for units of ``Type=notify``)."""

import socket
from typing import Final

from tenantry.settings import inherited

_SOCKET: Final = "NOTIFY_SOCKET"


def tell_ready() -> None:
    """Say so to whoever asked for it by NOTIFY_SOCKET. Nobody may have; one that is gone does not matter."""
    path = inherited([_SOCKET]).get(_SOCKET, "")
    if not path.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        try:
            manager.sendto(b"READY=1", f"\0{path[1:]}" if path[0] == "@" else path)
        except OSError:
            return
