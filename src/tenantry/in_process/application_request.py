"""What authentication reads of a request to an application, by ASGI or by WSGI."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from tenantry.auth.credentials import HeaderReader
from tenantry.server.asgi_types import Scope, header_of

WEBSOCKET: Final = "WEBSOCKET"
"""The method of a websocket."""


ClientAddress = Callable[[Mapping[str, Any]], str | None]
"""Returns the address of a request's client, given its ASGI scope or WSGI environment; None if it
is not known.
"""


class ApplicationRequest(msgspec.Struct, frozen=True):
    """A request to an application."""

    method: str
    path: str
    """Below the application's mount point."""
    client: str | None
    """The client's address as the server says it: a proxy's header may have any text."""
    header: HeaderReader
    source: Mapping[str, Any]
    """The ASGI scope or WSGI environment."""


def asgi_request(scope: Scope) -> ApplicationRequest:
    """Return the request of an ASGI scope. Its mount point is ``root_path``."""
    path = str(scope["path"])
    root = str(scope.get("root_path", ""))
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    client = scope.get("client")
    return ApplicationRequest(
        str(scope.get("method", WEBSOCKET)),
        path,
        str(client[0]) if client else None,
        partial(header_of, scope),
        scope,
    )


def wsgi_request(environ: Mapping[str, Any]) -> ApplicationRequest:
    """Return the request of a WSGI environment. Its mount point is ``SCRIPT_NAME``."""
    path = str(environ.get("PATH_INFO", ""))
    return ApplicationRequest(
        environ["REQUEST_METHOD"],
        path.encode("latin-1", "replace").decode("utf-8", "replace"),
        environ.get("REMOTE_ADDR"),
        partial(_variable_of, environ),
        environ,
    )


def _variable_of(environ: Mapping[str, Any], name: bytes) -> bytes | None:
    """Return the value of a header, which the server has joined by commas (RFC 3875 section
    4.1.18).
    """
    value = environ.get("HTTP_" + name.decode().upper().replace("-", "_"))
    return None if value is None else str(value).encode("latin-1", "replace")
