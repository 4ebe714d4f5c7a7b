"""Load shedding: under overload, new requests get 503 at once, before they cost anything.

A process that accepts more requests than it can answer gets slower with each, until no answer is in time. So while the
next request would wait too long (`OverloadDetector`), it gets 503 as soon as its first bytes arrive: before the
framework, the signature and the database, for a fraction of the cost of an answer.
"""

import re
from typing import Any, Final

from tenantry.domain.errors import OverloadedError
from tenantry.server.asgi_types import MAX_BODY, request_id_of
from tenantry.server.overload_detection import GATE, OverloadDetector
from tenantry.server.problems import MEDIA_TYPE, RETRY_AFTER, refuse_domain_error
from tenantry.server.protocol import LeanProtocol
from tenantry.server.responses import COMMON_FIELDS
from tenantry.server.security_headers import SAFEGUARDS

PREFIX: Final = "/api/"
"""Paths that are refused: not those of whoever watches over the process."""
_WEBHOOK: Final = b"/api/v1/webhooks/"
_REQUEST: Final = re.compile(rb"(?:GET|POST|PUT|PATCH|DELETE) (%b[!-~]*) HTTP/1\.([01])\r\n" % PREFIX.encode())
_LENGTH: Final = re.compile(rb"\ncontent-length:[ \t]*(\d{1,7})[ \t]*\r")
_CONNECTION: Final = re.compile(rb"\nconnection:[ \t]*keep-alive[ \t]*\r")
_ID: Final = re.compile(rb"\nx-request-id:[ \t]*([!-~]+)[ \t]*\r", re.IGNORECASE)
_TAKES_THE_PARSER: Final = re.compile(rb"\n(?:transfer-encoding|expect|upgrade)")
_SAFEGUARDS: Final = b"".join([b"%b: %b\r\n" % header for header in SAFEGUARDS])
_HEAD: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: %s\r\nretry-after: %s\r\n" + _SAFEGUARDS + b"x-request-id: "
)
_TEXT: Final = _HEAD % (b"text/plain; charset=utf-8", RETRY_AFTER.encode())
_PROBLEM: Final = _HEAD % (MEDIA_TYPE.encode(), RETRY_AFTER.encode())


class SheddingProtocol(LeanProtocol):
    """The server's protocol behind a `OverloadDetector`, if it finds one in the state of the lifespan."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # uvicorn's own
        super().__init__(*args, **kwargs)
        self._gate: OverloadDetector | None = self.app_state.get(GATE)
        self._is_counted = False
        self._rest = 0

    def on_arriving_changed(self) -> None:
        """`is_arriving` may have changed other than by what came in."""
        self._tell_gate()

    def data_received(self, data: bytes) -> None:
        """Pass on what has come, or refuse it where it is a request and the gate is full."""
        if self._rest:
            self._rest, data = max(0, self._rest - len(data)), data[self._rest :]
            if not self._rest:
                self._wait_for_the_next()
            if not data:
                return
        gate = self._gate
        if (
            gate is None
            or not gate.is_full(len(self.tasks), self.server_state.total_requests)
            or not self._shed(gate, data)
        ):
            super().data_received(data)
            self._tell_gate()

    def _tell_gate(self) -> None:
        """Whether this connection's request still arrives: it has a task, and nobody waits for what that does."""
        if self._gate is not None and self.is_arriving is not self._is_counted:
            self._is_counted = self.is_arriving
            self._gate.arriving += 1 if self.is_arriving else -1

    def _shed(self, gate: OverloadDetector, data: bytes) -> bool:
        """Refuse the request that begins here; false where that takes the parser: it is not the rule, or not sound."""
        if (
            self.is_reading
            or self.is_deaf
            or self.flow.write_paused
            or not getattr(self.cycle, "response_complete", True)
        ):
            return False
        request, end = _REQUEST.match(data), data.find(b"\r\n\r\n") + 4
        if request is None or end < len(b"\r\n\r\n"):
            return False
        head = data[:end].lower()
        # by single line feeds, which some take for ends of lines, the head may end sooner for others than for us
        if _TAKES_THE_PARSER.search(head) or not head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r"):
            return False
        length = self._length_in(head)
        if length is None or not len(data) <= end + length <= MAX_BODY:
            return False
        self._rest = end + length - len(data)
        named = _ID.search(data, 0, end) if b"\nx-request-id" in head else None
        is_last = request[2] == b"0" or self._ending.is_draining
        closes = is_last or (b"\nconnection" in head and _CONNECTION.search(head) is None)
        self._answer(
            gate, request_id_of(named[1] if named else None), is_webhook=request[1].startswith(_WEBHOOK), closes=closes
        )
        return True

    def _length_in(self, head: bytes) -> int | None:
        """How long the body is by its one well-formed ``Content-Length``; None where that is not clear."""
        count = head.count(b"\ncontent-length")
        if count == 0:
            return 0
        found = _LENGTH.search(head)
        return int(found[1]) if found and count == 1 else None

    def _answer(self, gate: OverloadDetector, request_id: bytes, *, is_webhook: bool, closes: bool) -> None:
        head, body = (_TEXT, b"Service unavailable") if is_webhook else (_PROBLEM, _BODY.replace(_PLACE, request_id))
        dates = COMMON_FIELDS.in_words(self.server_state.default_headers)
        last = b"connection: close\r\n" if closes else b""
        self.write_now(b"%b%b\r\ncontent-length: %d\r\n%b%b\r\n%b" % (head, request_id, len(body), dates, last, body))
        if closes:
            self._close()
        else:
            self._wait_for_the_next()
            if self._rest:
                self.due += self._watch.limits.body
        gate.count()


def overloaded(request_id: str) -> bytes:
    """The problem document for more requests than can be answered in time."""
    refusal = OverloadedError("More requests are under way than can be answered in time. Try again shortly.")
    return refuse_domain_error(refusal, request_id).body


_PLACE: Final = b"<request id>"
_BODY: Final = overloaded(_PLACE.decode())
