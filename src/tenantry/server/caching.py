"""What HTTP caches must know of a response that depends on its caller (RFC 9111 sections 3.5 and
4.1).
"""

from typing import Final

from tenantry.server.asgi_types import Header

CREDENTIAL_HEADERS: Final = ("Authorization", "X-Organization-Id")
"""The request headers that say who the caller is, and for which tenant they act."""
PRIVATE: Final[Header] = (b"cache-control", b"private")
_VARY: Final = b"vary"
_ANY: Final = b"*"
_NAMES: Final = tuple(name.encode() for name in CREDENTIAL_HEADERS)
_ON_CREDENTIAL: Final[Header] = (_VARY, b", ".join(_NAMES))


def vary_on_credential(headers: list[Header]) -> None:
    """Add `CREDENTIAL_HEADERS` to the ``Vary`` of a response, in one line: caches exist that read
    only one.
    """
    given = [value for name, value in headers if name.lower() == _VARY]
    if not given:
        headers.append(_ON_CREDENTIAL)
        return
    varying = _with_ours(b",".join(given))
    if _ANY not in varying:
        headers[:] = [header for header in headers if header[0].lower() != _VARY]
        headers.append((_VARY, b", ".join(varying)))


def _with_ours(given: bytes) -> list[bytes]:
    """Return the names of a ``Vary``, and those of `CREDENTIAL_HEADERS` that it lacks."""
    varying = [*map(bytes.strip, given.split(b","))]
    known = {*map(bytes.lower, varying)}
    return varying + [name for name in _NAMES if name.lower() not in known]
