"""Security headers: defaults of every response, and those that only pages and their files have."""

from collections.abc import Iterable, Sequence
from typing import Final

from tenantry.server.asgi_types import Header

SECURITY_HEADERS: Final[tuple[Header, ...]] = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
_HSTS: Final[Header] = (b"strict-transport-security", b"max-age=31536000")
POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
PAGE_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
ASSET_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def security_headers(*, secure: bool) -> tuple[Header, ...]:
    """Return the defaults, with HSTS (RFC 6797) if clients use https."""
    return (*SECURITY_HEADERS, _HSTS) if secure else SECURITY_HEADERS


def missing_headers(headers: Iterable[Header], defaults: Sequence[Header]) -> list[Header]:
    """Return the defaults that a response does not set itself."""
    names = [name for name, _ in headers]  # ASGI has them in lower case
    return [header for header in defaults if header[0] not in names]
