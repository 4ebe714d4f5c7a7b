"""What the server itself refuses, before there is a request that anybody could be asked to answer."""

from typing import Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from tenantry.server.asgi_types import RawAnswer, request_id_of
from tenantry.server.client_timeouts import (
    MOST_AROUND,
    MOST_CHUNKS,
    MOST_FIELDS,
    MOST_HEAD,
    MOST_PIPELINED,
    MOST_TARGET,
)
from tenantry.server.problems import HEAD_TOO_LARGE, INVALID_REQUEST, REQUEST_TIMEOUT, refuse
from tenantry.server.security_headers import SAFEGUARDS


class Unfit(NamedTuple):
    """Why; ``limit`` names it in the metrics."""

    limit: str
    status: int
    code: str
    detail: str

    def refusal(self, request_id: bytes | None = None) -> RawAnswer:
        """The answer to a request with this ``X-Request-Id``."""
        given = request_id_of(request_id)
        refusal = refuse(self.status, self.code, self.detail, given.decode())
        length = b"%d" % len(refusal.body)
        headers = [*refusal.headers, *SAFEGUARDS, (b"content-length", length), (b"x-request-id", given)]
        return RawAnswer(refusal.status, headers, refusal.body)

    def answer(self, common: bytes, request_id: bytes | None = None) -> bytes:
        """The same as it is sent, the last on its connection; ``common`` are the fields that every answer has."""
        answer = self.refusal(request_id)
        fields = b"".join([b"%b: %b\r\n" % header for header in answer.headers])
        return b"".join((STATUS_LINE[self.status], common, fields, b"connection: close\r\n\r\n", answer.body))


class UnfitError(Exception):
    """A request that is refused while it is read."""

    def __init__(self, unfit: Unfit) -> None:
        super().__init__(unfit.detail)
        self.unfit = unfit


MALFORMED: Final = Unfit("malformed", 400, INVALID_REQUEST, "This is not HTTP/1.1 as RFC 9112 has it.")
CODING: Final = Unfit(
    "malformed", 400, INVALID_REQUEST, "A Transfer-Encoding is not understood but for chunked, and not in HTTP/1.0."
)
HOSTS: Final = Unfit("malformed", 400, INVALID_REQUEST, "There must be one Host field.")
HOST: Final = Unfit("malformed", 400, INVALID_REQUEST, "The Host field must be a host, and a port where there is one.")
PIPELINED: Final = Unfit("pipelined", 400, INVALID_REQUEST, f"More than {MOST_PIPELINED} requests wait in line.")
CHUNKS: Final = Unfit("chunks", 400, INVALID_REQUEST, f"The body has more than {MOST_CHUNKS} chunks.")
LATE_HEAD: Final = Unfit("head_seconds", 408, REQUEST_TIMEOUT, "The request's head took too long to arrive.")
LATE_BODY: Final = Unfit("body_seconds", 408, REQUEST_TIMEOUT, "The request's body took too long to arrive.")
LONG_TARGET: Final = Unfit("head", 431, HEAD_TOO_LARGE, f"The target is longer than {MOST_TARGET} bytes.")
LARGE_HEAD: Final = Unfit(
    "head", 431, HEAD_TOO_LARGE, f"The head is larger than {MOST_HEAD} bytes or has more than {MOST_FIELDS} fields."
)
AROUND: Final = Unfit(
    "head", 431, HEAD_TOO_LARGE, f"What comes with the body and is none of it is larger than {MOST_AROUND} bytes."
)
OTHER_VERSION: Final = Unfit("malformed", 400, INVALID_REQUEST, "HTTP/1.1 and HTTP/1.0 are spoken here.")
CROWDED: Final = Unfit("connections", 503, "overloaded", "There are too many connections. Try again shortly.")
FULL: Final = Unfit("bodies", 503, "overloaded", "Too much of unfinished bodies is held. Try again shortly.")
