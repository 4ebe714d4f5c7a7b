"""Load shedding: while a process has more requests than it can answer in time, new ones get 503
unparsed.
"""

import logging
import re
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple

from tenantry.domain.errors import OverloadedError
from tenantry.server.asgi_types import MAX_BODY, Header, encode_headers, request_id_of
from tenantry.server.metrics import Metrics
from tenantry.server.problems import MEDIA_TYPE, RETRY_AFTER, refuse_domain_error
from tenantry.server.protocol import HttpProtocol
from tenantry.server.security_headers import SECURITY_HEADERS

OVERLOAD_DETECTOR: Final = "tenantry.overload_detector"
"""Key of the process's `OverloadDetector` in the ASGI lifespan state."""
MAX_WAIT: Final = 0.2  # expected seconds of waiting from which a request is shed
# concurrent requests that are always accepted: as many as share one transaction
MIN_CONCURRENT: Final = 256
# concurrent requests that are accepted before the throughput is known
INITIAL_CONCURRENT: Final = 1024
_INTERVAL: Final = 0.25
_STALE: Final = 1.0
_LOG_INTERVAL: Final = 60.0

PREFIX: Final = "/api/"  # Of the paths that are shed. Health checks and metrics are not.
_WEBHOOK: Final = b"/api/v1/webhooks/"
_REQUEST: Final = re.compile(
    rb"(?:GET|POST|PUT|PATCH|DELETE) (%b[!-~]*) HTTP/1\.([01])\r\n" % PREFIX.encode()
)
_LENGTH: Final = re.compile(rb"\ncontent-length:[ \t]*(\d{1,7})[ \t]*\r")
_CONNECTION: Final = re.compile(rb"\nconnection:[ \t]*keep-alive[ \t]*\r")
_ID: Final = re.compile(rb"\nx-request-id:[ \t]*([!-~]+)[ \t]*\r", re.IGNORECASE)
_ORIGIN: Final = re.compile(rb"\norigin:[ \t]*([!-~]+)[ \t]*\r", re.IGNORECASE)
_NEEDS_PARSER: Final = re.compile(rb"\n(?:transfer-encoding|expect|upgrade)")
_HEAD: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: %s\r\nretry-after: %s\r\n"
    + encode_headers(SECURITY_HEADERS)
    + b"x-request-id: "
)
_TEXT: Final = _HEAD % (b"text/plain; charset=utf-8", RETRY_AFTER.encode())
_PROBLEM: Final = _HEAD % (MEDIA_TYPE.encode(), RETRY_AFTER.encode())
_PLACEHOLDER: Final = b"<request id>"
_BODY: Final = refuse_domain_error(
    OverloadedError("The server is overloaded. Try again shortly."), _PLACEHOLDER.decode()
).body

logger = logging.getLogger(__name__)


class OverloadDetector:
    """Decides from the measured throughput whether one more request would wait too long.

    ``excluded`` returns how many concurrent requests wait for something other than the process's
    own work; ``now`` is a monotonic clock, in seconds.
    """

    def __init__(
        self,
        metrics: Metrics,
        excluded: Callable[[], int] = lambda: 0,
        *,
        now: Callable[[], float] = monotonic,
        minimum: int = MIN_CONCURRENT,
        initial: int = INITIAL_CONCURRENT,
    ) -> None:
        self.arriving = 0  # concurrent requests that wait for more input from their clients
        self._metrics = metrics
        self._excluded = excluded
        self._now = now
        self._minimum = minimum
        self._limit = self._initial = initial
        self._measured_at = 0.0
        self._answered = 0
        self._logged_at = -_LOG_INTERVAL

    def is_overloaded(self, concurrent: int, answered: int) -> bool:
        """Decide from the number of concurrent requests and of those answered so far."""
        if concurrent < self._minimum:
            return False
        now = self._now()
        elapsed = now - self._measured_at
        if elapsed >= _INTERVAL:
            if elapsed < _STALE:
                throughput = (answered - self._answered) / elapsed
                self._limit = max(self._minimum, int((self._limit + throughput * MAX_WAIT) / 2))
            else:  # after a quiet period the old measurement says nothing about the present
                self._limit = max(self._limit, self._initial)
            self._measured_at = now
            self._answered = answered
        return concurrent - self.arriving - self._excluded() >= self._limit

    def count(self) -> None:
        self._metrics.shed.inc()
        if self._measured_at - self._logged_at >= _LOG_INTERVAL:
            self._logged_at = self._measured_at
            logger.warning(
                "overloaded: requests are rejected while more than %d are in progress", self._limit
            )


class LoadSheddingProtocol(HttpProtocol):
    """The HTTP protocol with load shedding, if the lifespan state holds an `OverloadDetector`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # uvicorn's own
        super().__init__(*args, **kwargs)
        self._detector: OverloadDetector | None = self.app_state.get(OVERLOAD_DETECTOR)
        self._is_counted = False
        self._remaining = 0  # bytes to discard of the body of a request that was shed

    def on_arriving_changed(self) -> None:
        """Count this connection's request as arriving: its task waits for the client."""
        if self._detector is not None and self.is_arriving is not self._is_counted:
            self._is_counted = self.is_arriving
            self._detector.arriving += 1 if self.is_arriving else -1

    def data_received(self, data: bytes) -> None:
        """Pass input to the parser, or shed the request that begins with it."""
        if self._remaining:
            self._remaining, data = max(0, self._remaining - len(data)), data[self._remaining :]
            if not self._remaining:
                self._await_next()
            if not data:
                return
        detector = self._detector
        if (
            detector is None
            or not detector.is_overloaded(len(self.tasks), self.server_state.total_requests)
            or not self._shed(detector, data)
        ):
            super().data_received(data)
            self.on_arriving_changed()

    def _shed(self, detector: OverloadDetector, data: bytes) -> bool:
        """Shed the request that begins here; return False if only the parser can judge it."""
        request = _read_head(data) if self._is_between_requests() else None
        if request is None:
            return False
        self._remaining = request.remaining
        given_id = _ID.search(data, 0, request.end) if b"\nx-request-id" in request.head else None
        self._send_overloaded(
            request_id_of(given_id[1] if given_id else None),
            self._cors_headers(request.target, data, request.end),
            is_webhook=request.target.startswith(_WEBHOOK),
            closes=self._shutdown.is_draining or request.is_last,
        )
        detector.count()
        return True

    def _is_between_requests(self) -> bool:
        if self.is_reading or self.stops_reading or self.flow.write_paused:
            return False
        return bool(getattr(self.cycle, "response_complete", True))

    def _cors_headers(
        self,
        target: bytes,
        data: bytes,
        end: int,
    ) -> Sequence[Header]:
        if self._cors is None:
            return ()
        origins = _ORIGIN.findall(data, 0, end)
        return self._cors.headers_of_target(target, origins[0] if len(origins) == 1 else None)

    def _send_overloaded(
        self, request_id: bytes, more_headers: Sequence[Header], *, is_webhook: bool, closes: bool
    ) -> None:
        head = _PROBLEM
        body = _BODY.replace(_PLACEHOLDER, request_id)
        if is_webhook:
            head, body = _TEXT, b"Service unavailable"
        common = encode_headers([*self.server_state.default_headers, *more_headers])
        last = b"connection: close\r\n" if closes else b""
        self.transport.write(
            b"%b%b\r\ncontent-length: %d\r\n%b%b\r\n%b"
            % (head, request_id, len(body), common, last, body)
        )
        if closes:
            self._close()
        else:
            self._await_next()
            if self._remaining:
                self.deadline += self._monitor.limits.body


class _PlainRequest(NamedTuple):
    """What is known of a request without the parser."""

    target: bytes
    version: bytes
    """The minor version of HTTP/1."""
    end: int
    """Where its head ends."""
    head: bytes
    """In lower case."""
    remaining: int
    """The bytes of its body that have not arrived."""

    @property
    def is_last(self) -> bool:
        """Whether its connection closes after the response."""
        asks_to_close = b"\nconnection" in self.head and _CONNECTION.search(self.head) is None
        return self.version == b"0" or asks_to_close


def _read_head(data: bytes) -> _PlainRequest | None:
    """Return the request that begins here; None if only the parser can judge it."""
    request = _REQUEST.match(data)
    end = data.find(b"\r\n\r\n") + 4
    if request is None or end < len(b"\r\n\r\n"):
        return None
    head = data[:end].lower()
    length = _body_length(head)
    if length is None or not len(data) <= end + length <= MAX_BODY:
        return None
    return _PlainRequest(request[1], request[2], end, head, end + length - len(data))


def _body_length(head: bytes) -> int | None:
    """Return the length of the body by a head in lower case; None if only the parser can tell."""
    lines = head.count(b"\r\n")
    # Other servers may take a single line feed as the end of a line, and so find an earlier end of
    # the head.
    if _NEEDS_PARSER.search(head) or lines != head.count(b"\n") or lines != head.count(b"\r"):
        return None
    lengths = _LENGTH.findall(head)
    if len(lengths) > 1 or len(lengths) != head.count(b"\ncontent-length"):
        return None
    return int(lengths[0]) if lengths else 0
