"""Compression of responses that are the same for every client.

Only those are compressed. The length of a compressed response depends on its content. If a response
has a secret beside text that a client chooses, the length reveals the secret (the attack BREACH).
"""

import gzip
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, Self

from litestar import Request, Response

_ENCODING: Final = "gzip"
_VARY: Final = {"Vary": "Accept-Encoding"}
_BEST: Final = 9
_FASTEST: Final = 1


class PublicBody(NamedTuple):
    """The body of such a response, plain and compressed with gzip."""

    plain: bytes
    compressed: bytes

    # The event loop waits meanwhile. For 200 KB the best level takes about 20 ms, which only a body
    # that is served many times is worth; the fastest takes about 1 ms for 100 KB.
    @classmethod
    def kept(cls, body: bytes) -> Self:
        """Compress a body that is served many times."""
        return cls(body, gzip.compress(body, _BEST, mtime=0))

    @classmethod
    def for_once(cls, body: bytes) -> Self:
        """Compress a body that is served once."""
        return cls(body, gzip.compress(body, _FASTEST, mtime=0))

    def response(
        self, request: Request[Any, Any, Any], headers: Mapping[str, str]
    ) -> Response[bytes]:
        """Return the response to a request, by its ``Accept-Encoding``."""
        if not _accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(self.plain, headers={**headers, **_VARY})
        encoded = {"Content-Encoding": _ENCODING}
        return Response(self.compressed, headers={**headers, **_VARY, **encoded})


class PublicDocument:
    """A document about a service, which is made when it is first asked for."""

    def __init__(self, make: Callable[[], bytes], headers: Mapping[str, str]) -> None:
        self._body = cache(lambda: PublicBody.kept(make()))
        self._headers = headers

    def response(self, request: Request[Any, Any, Any]) -> Response[bytes]:
        return self._body().response(request, self._headers)


def _accepts_gzip(accept_encoding: str) -> bool:
    """Whether an ``Accept-Encoding`` names gzip, and not with the weight 0 (RFC 9110, 12.5.3)."""
    for item in accept_encoding.lower().replace(" ", "").split(","):
        coding, _, weight = item.partition(";q=")
        if coding == _ENCODING:
            return weight == "" or weight.strip("0.") != ""
    return False
