"""Protocol errors: requests that the server rejects before they reach the application."""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from tenantry.server import asgi_types
from tenantry.server import client_limits as limits
from tenantry.server.cors import CorsPolicy
from tenantry.server.problems import refuse
from tenantry.server.security_headers import SECURITY_HEADERS


class RequestRejection(NamedTuple):
    """Why the server rejects a request; ``limit`` is the label in the metrics."""

    limit: str
    code: str
    detail: str

    def response(self, request_id: bytes | None = None) -> asgi_types.HotResponse:
        shown_id = asgi_types.request_id_of(request_id)
        refusal = refuse(self.code, self.detail, shown_id.decode())
        length = b"%d" % len(refusal.body)
        refusal.headers += [
            *SECURITY_HEADERS,
            (b"content-length", length),
            (b"x-request-id", shown_id),
        ]
        return refusal

    def application(self, cors: CorsPolicy | None) -> asgi_types.AsgiApp:
        """Return an ASGI application that responds with this."""

        async def answer(
            scope: asgi_types.Scope, _receive: asgi_types.Receive, send: asgi_types.Send
        ) -> None:
            response = self.response(asgi_types.header_of(scope, b"x-request-id"))
            response.headers += () if cors is None else cors.headers_of(scope)
            await asgi_types.send_response(send, response)

        return answer

    def encode(
        self, common_headers: Sequence[asgi_types.Header], request_id: bytes | None = None
    ) -> bytes:
        """Encode the response, with headers of every response, as the last one of its
        connection.
        """
        response = self.response(request_id)
        fields = asgi_types.encode_headers(
            [*common_headers, *response.headers, (b"connection", b"close")]
        )
        return b"".join((STATUS_LINE[response.status], fields, b"\r\n", response.body))


class RequestRejectedError(Exception):
    """The parser's callbacks raise it to reject a request."""

    def __init__(self, rejection: RequestRejection) -> None:
        super().__init__(rejection.detail)
        self.rejection = rejection


_malformed: Final = partial(RequestRejection, "malformed", "invalid_request")
_large_head: Final = partial(RequestRejection, "head", "head_too_large")

MALFORMED: Final = _malformed("The request is not valid HTTP/1.1 (RFC 9112).")
UNSUPPORTED_CODING: Final = _malformed(
    "The only supported Transfer-Encoding is chunked, and not in HTTP/1.0."
)
HOST_COUNT: Final = _malformed("The request must have exactly one Host header.")
INVALID_HOST: Final = _malformed("The Host header must be a host with an optional port.")
UNSUPPORTED_VERSION: Final = _malformed("The server supports HTTP/1.1 and HTTP/1.0.")
TOO_MANY_PIPELINED: Final = RequestRejection(
    "pipelined",
    "invalid_request",
    f"More than {limits.MAX_PIPELINED} requests wait on this connection.",
)
TOO_MANY_CHUNKS: Final = RequestRejection(
    "chunks", "invalid_request", f"The body has more than {limits.MAX_CHUNKS} chunks and trailers."
)
HEAD_TIMEOUT: Final = RequestRejection(
    "head_seconds", "request_timeout", "The request's head took too long."
)
BODY_TIMEOUT: Final = RequestRejection(
    "body_seconds", "request_timeout", "The request's body took too long."
)
TARGET_TOO_LONG: Final = _large_head(f"The target is longer than {limits.MAX_TARGET_BYTES} bytes.")
LARGE_HEAD: Final = _large_head(
    f"The head is over {limits.MAX_HEAD_BYTES} bytes or {limits.MAX_HEADERS} headers."
)
TOO_MANY_FORWARDED: Final = _large_head(
    f"X-Forwarded-For names more than {limits.MAX_FORWARDED} addresses."
)
TOO_MUCH_FRAMING: Final = _large_head(
    f"Head, chunk headers and trailers are larger than {limits.MAX_FRAMING_BYTES} bytes."
)
TOO_MANY_CONNECTIONS: Final = RequestRejection(
    "connections", "overloaded", "There are too many connections. Try again shortly."
)
TOO_MANY_BODY_BYTES: Final = RequestRejection(
    "bodies", "overloaded", "The server holds too many incomplete bodies. Try again shortly."
)
