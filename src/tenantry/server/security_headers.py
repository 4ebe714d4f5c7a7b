"""Security headers: defaults that a response may override."""

from collections.abc import Iterable, Sequence
from typing import Final

from tenantry.server.problems import Header

SECURITY_HEADERS: Final[tuple[Header, ...]] = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_HSTS: Final[Header] = (b"strict-transport-security", b"max-age=31536000")


def security_headers(*, secure: bool) -> tuple[Header, ...]:
    """Return the headers, with HSTS (RFC 6797) if clients use https."""
    return (*SECURITY_HEADERS, _HSTS) if secure else SECURITY_HEADERS


def missing_headers(headers: Iterable[Header], defaults: Sequence[Header]) -> list[Header]:
    """Return the defaults that a response does not set itself."""
    names = {name.lower() for name, _ in headers}
    return [header for header in defaults if header[0] not in names]
