"""The vendor's API as a protected resource: how OAuth clients find its identity provider (RFC
9728).
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from tenantry.server.asgi_types import Header, HotRequest, HotResponse

METHODS: Final = ("GET", "HEAD", "OPTIONS")
_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
_CHALLENGE: Final = b"www-authenticate"
_BEARER: Final = b"Bearer "
_MAX_AGE: Final = b"3600"
_OF_ANY_ORIGIN: Final[Header] = (b"access-control-allow-origin", b"*")
_PREFLIGHT: Final[Sequence[Header]] = (
    (b"content-type", b"text/plain"),
    _OF_ANY_ORIGIN,
    (b"access-control-allow-methods", b"GET, HEAD"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-max-age", _MAX_AGE),
)


class _Metadata(msgspec.Struct, omit_defaults=True):
    """Section 2 of the RFC."""

    resource: str
    authorization_servers: Sequence[str]
    bearer_methods_supported: Sequence[str]
    scopes_supported: Sequence[str] = ()


class ProtectedResource:
    """The metadata of a resource, whose identifier is the address ``resource``. ``scopes`` are
    those that a token for it may have, as far as they are known.

    Anybody may read the metadata, also pages of any origin.
    """

    def __init__(self, resource: str, issuers: Sequence[str], scopes: Sequence[str] = ()) -> None:
        parts = urlsplit(resource)
        path = "" if parts.path == "/" else parts.path  # section 3.1
        self.paths: Final = frozenset({_WELL_KNOWN, f"{_WELL_KNOWN}{unquote(path)}"})
        address = f"{parts.scheme}://{parts.netloc}{_WELL_KNOWN}{path}"
        self._parameter = f', resource_metadata="{address}"'.encode()
        self._document = msgspec.json.encode(
            _Metadata(resource, issuers, ("header",), tuple(scopes))
        )

    def find(self, method: str, path: str) -> HotResponse | None:
        """Return the response to a request for the metadata; None for another request."""
        return self._response(method) if path in self.paths and method in METHODS else None

    async def answer(self, request: HotRequest) -> HotResponse:
        """Answer a request for one of the ``paths``, with one of `METHODS`."""
        return self._response(request.scope["method"])

    def _response(self, method: str) -> HotResponse:
        if method == "OPTIONS":
            return HotResponse(HTTPStatus.OK, [*_PREFLIGHT])
        headers = [
            (b"content-type", b"application/json"),
            (b"cache-control", b"public, max-age=" + _MAX_AGE),
            _OF_ANY_ORIGIN,
        ]
        return HotResponse(HTTPStatus.OK, headers, self._document)

    def add_to(self, status: int, headers: list[Header]) -> None:
        """Add the address of the metadata to the challenge of a 401 (section 5.1)."""
        if status == HTTPStatus.UNAUTHORIZED:
            headers[:] = [
                (name, value + self._parameter)
                if name.lower() == _CHALLENGE and value.startswith(_BEARER)
                else (name, value)
                for name, value in headers
            ]
