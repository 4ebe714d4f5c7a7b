"""Client timeouts and limits of one server process. One timer checks all connections."""

import asyncio
import math
from collections.abc import Callable
from enum import Enum
from heapq import nsmallest
from itertools import islice
from time import monotonic
from typing import Final, Protocol

import msgspec

CONNECTION_MONITOR: Final = "tenantry.connection_monitor"
"""Key of the process's `ConnectionMonitor` in the ASGI lifespan state."""
TICK: Final = 0.25  # seconds between two checks
NEVER: Final = math.inf

MAX_HEAD_BYTES: Final = 32_768  # of a request's target and its header names and values
MAX_HEADERS: Final = 100
MAX_TARGET_BYTES: Final = 8_192  # of path and query
MAX_FORWARDED: Final = 100  # addresses in ``X-Forwarded-For``
MAX_CHUNKS: Final = 4_096  # together with trailers
MAX_PIPELINED: Final = 32  # requests that may wait on a connection for an earlier response
# of a request without its body: head, chunk headers and trailers
MAX_FRAMING_BYTES: Final = 131_072
MAX_DISCARDED_BYTES: Final = 16_777_216
"""Of a body that is read after its response was sent; then the connection is closed."""
LIMIT_NAMES: Final = (
    "head_seconds",
    "body_seconds",
    "reading_seconds",
    "head",
    "chunks",
    "pipelined",
    "connections",
    "bodies",
    "malformed",
)
"""Label values of the metric of limits."""

# connections closed in one turn of the event loop, so that other requests do not wait
_MAX_CLOSED_PER_TURN: Final = 16
_PAUSE: Final = 0.005
_EVICTED_TOGETHER: Final = 16


class WaitState(Enum):
    """What a connection waits for its client to do."""

    NOTHING = "nothing"
    FIRST = "first"  # send the first byte of the first request
    NEXT = "idle"  # send the first byte of another request
    HEAD = "head"
    BODY = "body"
    READING = "reading"  # read the response


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts in seconds, and how many connections and body bytes a process holds."""

    # for the first head since the client connected, for another one since its first byte
    head: float = 10.0
    # since the head is complete and no earlier request of the connection awaits its response
    body: float = 30.0
    reading: float = 60.0  # for reading any part of a pending response
    connections: int = 8192
    bodies: int = 268_435_456  # bytes of incomplete bodies of all connections together


class MonitoredConnection(Protocol):
    """A connection as `ConnectionMonitor` sees it."""

    deadline: float  # when to call `on_deadline`, on the monitor's clock
    waits: WaitState
    has_sent_request: bool  # whether the client has sent a complete request
    body_bytes: int  # bytes of an incomplete body; set by `ConnectionMonitor.track_body`

    def on_deadline(self, now: float) -> None:
        """Close the connection, or set a new ``deadline``."""

    def evict(self) -> None:
        """Close the connection to make room for another."""

    def evict_body(self) -> None:
        """Reject the request to free the memory of its body."""


class ConnectionMonitor:
    """Enforces `ClientLimits`; ``count`` receives the name of each limit that closed a
    connection.
    """

    def __init__(
        self,
        limits: ClientLimits | None = None,
        count: Callable[[str], None] = lambda _: None,
        *,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.limits: Final = limits or ClientLimits()
        self.count: Final = count
        self.now: Final = now
        self._connections: dict[MonitoredConnection, None] = {}
        self._body_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._connections)

    def register(self, connection: MonitoredConnection) -> bool:
        """Add a connection; return False if there are too many and none can be evicted.

        Connections without any request are evicted first, the oldest of them first, then those with
        the earliest deadline. Several are evicted at once to amortize the search.
        """
        if len(self._connections) >= self.limits.connections and not self._make_room():
            return False
        self._connections[connection] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)
        return True

    def unregister(self, connection: MonitoredConnection) -> None:
        self._connections.pop(connection, None)
        self.track_body(connection, 0)

    def track_body(self, connection: MonitoredConnection, size: int) -> None:
        """Record the bytes of a connection's incomplete body; 0 once it is complete or discarded.

        Over the limit, the bodies with the earliest deadlines are evicted: bodies of normal clients
        arrive at once.
        """
        self._body_bytes += size - connection.body_bytes
        connection.body_bytes = size
        if size and self._body_bytes > self.limits.bodies:
            target = self.limits.bodies - self.limits.bodies // _EVICTED_TOGETHER
            uploading = [one for one in self._connections if one.body_bytes]
            for one in nsmallest(_EVICTED_TOGETHER, uploading, key=lambda one: one.deadline):
                if self._body_bytes > target:
                    one.evict_body()

    def close_overdue(self) -> bool:
        """Handle overdue connections; return whether some are left for the next turn."""
        now = self.now()
        overdue = [one for one in self._connections if one.deadline <= now]
        for one in overdue[:_MAX_CLOSED_PER_TURN]:
            one.on_deadline(now)
        return len(overdue) > _MAX_CLOSED_PER_TURN

    def _make_room(self) -> bool:
        number = min(_EVICTED_TOGETHER, 1 + self.limits.connections // _EVICTED_TOGETHER)
        waiting = (one for one in self._connections if one.waits is not WaitState.NOTHING)
        evicted = list(islice((one for one in waiting if not one.has_sent_request), number))
        if not evicted:
            waiting = (one for one in self._connections if one.waits is not WaitState.NOTHING)
            evicted = nsmallest(number, waiting, key=lambda one: one.deadline)
        for one in evicted:
            self.count("connections")
            self.unregister(one)
            one.evict()
        return bool(evicted)

    def _tick(self) -> None:
        self._timer = None
        more = self.close_overdue()
        if self._connections:
            self._timer = asyncio.get_running_loop().call_later(
                _PAUSE if more else TICK, self._tick
            )
