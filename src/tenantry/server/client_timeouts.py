"""How long the server waits for its clients, and for how many at once.

One timer of the process looks at all connections four times a second. A connection says by when its client has to have
done what is waited for, which costs a request no timer, and less than a microsecond.
"""

import asyncio
import math
from collections.abc import Callable
from enum import Enum
from heapq import nsmallest
from itertools import islice
from time import monotonic
from typing import Final, Protocol

import msgspec

WATCH: Final = "tenantry.watch"
"""Where the state of the ASGI lifespan holds the process's `Watch`."""
TICK: Final = 0.25
"""Seconds between two looks."""
NEVER: Final = math.inf

MOST_HEAD: Final = 32_768
"""Bytes of a request's head: its target, and the names and values of its fields."""
MOST_FIELDS: Final = 100
"""Fields of a request's head."""
MOST_TARGET: Final = 8_192
"""Bytes of a request's target: path and query."""
MOST_CHUNKS: Final = 4_096
"""Chunks of a body of unknown length."""
MOST_PIPELINED: Final = 32
"""Requests that may wait on a connection for the answer to the one before them."""
MOST_AROUND: Final = 131_072
"""Bytes that come with a request and are none of its body: its head, lines of chunks, and fields behind those."""
MOST_UNREAD: Final = 16_777_216
"""Bytes of a body that are thrown away after its request is answered; past that the connection is closed."""
COUNTED: Final = (
    "head_seconds", "body_seconds", "reading_seconds", "head", "chunks", "pipelined", "connections", "bodies",
    "malformed",
)  # fmt: skip
"""What the limits are called where it is counted that they ended something."""

_AT_ONCE: Final = 16
"""Connections that are ended in one turn of the event loop: a turn is what everybody else waits for."""
_PAUSE: Final = 0.005
_PLACES: Final = 16


class Wait(Enum):
    """What a connection waits for."""

    NOTHING = "nothing"
    """Its client has done what it has to."""
    FIRST = "first"
    """The first byte of the first request."""
    NEXT = "idle"
    """The first byte of another request."""
    HEAD = "head"
    BODY = "body"
    READING = "reading"
    """The client to read its answer."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How many seconds a client has for what, and how many connections there may be."""

    head: float = 10.0
    """For the first request's head since it connected, for another one's since that began."""
    body: float = 30.0
    """For a body, since the head is there, and no request of its connection waits for an answer before it."""
    reading: float = 60.0
    """For reading any more of an answer of which there is some left."""
    connections: int = 8192
    """Of one process."""
    bodies: int = 268_435_456
    """Bytes of bodies that are not whole yet, of all connections together."""


class Watched(Protocol):
    """A connection."""

    due: float
    """When it is to be looked at."""
    waits: Wait
    has_asked: bool
    """Whether a whole request came in on it."""
    held: int
    """Bytes of a body that is not whole yet, as `Watch.hold` was told."""

    def on_due(self, now: float) -> None:
        """Its client has had its time: end it, or say in ``due`` when to look again."""

    def give_up(self) -> None:
        """End it, whatever is waited for: its place is needed."""

    def give_up_body(self) -> None:
        """End it, whose body is not whole yet: the memory is needed."""


class Watch:
    """Looks after all connections of a process.

    ``count`` is told each limit that ended one; ``now`` returns seconds that never go back.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        count: Callable[[str], None] = lambda _: None,
        *,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.limits: Final = limits or Limits()
        self.count: Final = count
        self.now: Final = now
        self._connections: dict[Watched, None] = {}
        self._held = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._connections)

    def admit(self, connection: Watched) -> bool:
        """Look after this one too. False where there is no room, and nobody who could go.

        Who goes when there are too many: first who never asked for anything, the oldest before others, then whoever is
        due first; a few at once, so that not every newcomer has to look for one.
        """
        if len(self._connections) >= self.limits.connections and not self._make_room():
            return False
        self._connections[connection] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)
        return True

    def forget(self, connection: Watched) -> None:
        """It is gone."""
        self._connections.pop(connection, None)
        self.hold(connection, 0)

    def hold(self, connection: Watched, size: int) -> None:
        """So many bytes are there of a body that is not whole yet; 0 once it is, or is of no use.

        Past the limit those go whose time is over first: a body of a client that does as usual is there at once.
        """
        self._held += size - connection.held
        connection.held = size
        if size and self._held > self.limits.bodies:
            enough = self.limits.bodies - self.limits.bodies // _PLACES
            for one in nsmallest(_PLACES, [one for one in self._connections if one.held], key=lambda one: one.due):
                if self._held > enough:
                    one.give_up_body()

    def look(self) -> bool:
        """End what has had its time; returns whether there is more of that."""
        now = self.now()
        due = [one for one in self._connections if one.due <= now]
        for one in due[:_AT_ONCE]:
            one.on_due(now)
        return len(due) > _AT_ONCE

    def _make_room(self) -> bool:
        places = min(_PLACES, 1 + self.limits.connections // _AT_ONCE)
        silent = (one for one in self._connections if not one.has_asked and one.waits is not Wait.NOTHING)
        going = list(islice(silent, places))
        if not going:
            waiting = (one for one in self._connections if one.waits is not Wait.NOTHING)
            going = nsmallest(places, waiting, key=lambda one: one.due)
        for one in going:
            self.count("connections")
            self.forget(one)
            one.give_up()
        return bool(going)

    def _tick(self) -> None:
        self._timer = None
        there_is_more = self.look()
        if self._connections:
            self._timer = asyncio.get_running_loop().call_later(_PAUSE if there_is_more else TICK, self._tick)
