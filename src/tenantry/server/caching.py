"""What HTTP caches must know of a response that depends on its caller (RFC 9111 sections 3.5 and
4.1).
"""

from typing import Final

from tenantry.server.asgi_types import Header

PRIVATE: Final[Header] = (b"cache-control", b"private")
_VARY: Final = b"vary"
_ANY: Final = b"*"


class CallerVary:
    """Tells caches which request headers say who the caller is, and for which tenant they act:
    ``Authorization``, ``X-Organization-Id``, and the header for API keys if there is one;
    ``by_operator`` also those by which the operator names a tenant and a mode.
    """

    def __init__(self, api_key_header: str | None = None, *, by_operator: bool = False) -> None:
        names = ["Authorization", "X-Organization-Id"]
        if api_key_header is not None:
            names.append(api_key_header)
        if by_operator:
            names += ["X-Act-As-Organization", "X-Act-In-Mode"]
        self._names = tuple(name.encode() for name in names)
        self._header: Header = (_VARY, b", ".join(self._names))

    def add_to(self, headers: list[Header]) -> None:
        """Add the names to the ``Vary`` of a response, in one line: caches exist that read only
        one.
        """
        given = [value for name, value in headers if name.lower() == _VARY]
        if not given:
            headers.append(self._header)
            return
        varying = self._with_ours(b",".join(given))
        if _ANY not in varying:
            headers[:] = [header for header in headers if header[0].lower() != _VARY]
            headers.append((_VARY, b", ".join(varying)))

    def _with_ours(self, given: bytes) -> list[bytes]:
        """Return the names of a ``Vary``, and the names of this object that it lacks."""
        varying = [*map(bytes.strip, given.split(b","))]
        known = {*map(bytes.lower, varying)}
        return varying + [name for name in self._names if name.lower() not in known]
