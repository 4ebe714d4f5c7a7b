"""An open load: each request leaves at its moment, whatever has become of those before it.

A process of its own, so that it can be kept on a processor of its own: ``python -m bench.open_load`` reads a `Plan`
as JSON from its standard input and writes a `Report`. Of an answer no more is read than its status, its
``Retry-After`` and its end, which is why one Python process is enough.
"""

import gc
import itertools
import os
import resource
import select
import socket
import statistics
import sys
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from bench.events import compose, sign
from bench.support import SECRET, TENANTS

PATIENCE: Final = 10.0
"""Seconds after which a request without an answer is lost."""
CLOSED: Final = 0
"""The ``times`` of a phase in which every connection sends its next request at once: a closed loop."""
LOST: Final = "lost"
BROKEN: Final = "broken"
_BURST: Final = 64
_PIECE: Final = 65536


class Phase(msgspec.Struct, frozen=True):
    """So many times what could be done in the last closed phase; `CLOSED` for what so many connections take."""

    times: float
    seconds: float
    connections: int = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to send, and when."""

    port: int
    phases: list[Phase]
    connections: int
    """Open from the start, and used in turn."""
    most: int
    """Connections that there may be at most; a request that finds none is not sent, and is counted as such."""
    keys: list[str] = []
    """Lists the projects of these keys in turn; without any, distinct signed events are sent."""
    run: str = ""
    """In the ids of this run's events: ``evt_<run>_<number>``."""
    first: int = 0
    """The second of each tenant's first event; its next ones are of the seconds after that."""
    processor: int | None = None
    """The processor to stay on."""


class Answers(msgspec.Struct):
    """The answers of one kind: how many, and the milliseconds since each request was due."""

    count: int
    p50: float
    p99: float
    longest: float


class Second(msgspec.Struct):
    """One second of the run."""

    offered: int
    """Requests that were due in it."""
    unsent: int
    """Those of them that found no connection."""
    late: float
    """Milliseconds by which the generator itself was late with one of them, at most."""
    answers: dict[str, Answers]
    """Answers that came in it, by status; `LOST` and `BROKEN` for requests that had none."""


class Report(msgspec.Struct):
    """What became of a plan."""

    began: float
    """Seconds since the epoch."""
    seconds: list[Second]
    connections: int
    """Most connections at once."""
    untold: int
    """Refusals (429, 503) without ``Retry-After``."""
    phases: list[dict[str, Answers]]
    """The answers to each phase's requests, by status."""


class _Connection:
    """A connection and the request that is under way on it."""

    __slots__ = ("due", "gone", "number", "phase", "received", "socket", "unsent")

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.socket = connection
        self.number = number
        self.due = 0.0
        self.gone = False
        self.phase = 0
        self.received = b""
        self.unsent: bytes | None = None


class _Answer(NamedTuple):
    status: bytes
    told: bool
    closes: bool


def main() -> None:
    """Carry out a plan."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    if plan.processor is not None:
        os.sched_setaffinity(0, {plan.processor})
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(OpenLoad(plan).run()))


def _requests(plan: Plan) -> Iterator[bytes]:
    """What to send, one after the other, without end."""
    if plan.keys:
        head = b"GET /api/v1/projects HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n"
        return itertools.cycle([head % key.encode() for key in plan.keys])
    return (_event(plan, number) for number in itertools.count())


def _event(plan: Plan, number: int) -> bytes:
    body = compose(number % TENANTS, f"evt_{plan.run}_{number:08d}", plan.first + number // TENANTS)
    return (
        b"POST /api/v1/webhooks/payment-provider HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Provider-Signature: %s\r\nContent-Length: %d\r\n\r\n%s"
    ) % (sign(body, SECRET).encode(), len(body), body)


class OpenLoad:
    """Sends what a plan says."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._requests = _requests(plan)
        self._poll = select.epoll()
        self._open: dict[int, _Connection] = {}
        self._idle: deque[_Connection] = deque()
        self._most = 0
        self._under_way = 0
        self._untold = 0
        self._began = 0.0
        self._offered: defaultdict[int, int] = defaultdict(int)
        self._not_sent: defaultdict[int, int] = defaultdict(int)
        self._late: defaultdict[int, float] = defaultdict(float)
        self._taken: defaultdict[tuple[int, str], array[float]] = defaultdict(lambda: array("f"))
        self._taken_in: defaultdict[tuple[int, str], array[float]] = defaultdict(lambda: array("f"))

    def run(self) -> Report:
        """Carry it out, and wait for the last answers."""
        while len(self._open) < self._plan.connections:
            self._connect()
            self._receive(0)
        until = time.perf_counter() + PATIENCE
        while len(self._idle) < self._plan.connections and time.perf_counter() < until:
            self._receive(0.001)
        began_at = time.time()
        self._began = end = time.perf_counter()
        capacity = 0.0
        for number, phase in enumerate(self._plan.phases):
            start, end = end, end + phase.seconds
            if phase.times == CLOSED:
                self._send_closed(number, end, phase.connections)
                capacity = len(self._taken_in[number, "200"]) / phase.seconds
                if not capacity:
                    sys.exit("bench: nothing was served, so there is nothing to offer multiples of")
            else:
                self._send_open(number, start, end, phase.times * capacity)
        until = time.perf_counter() + PATIENCE
        while any(connection.due for connection in self._open.values()) and time.perf_counter() < until:
            self._receive(0.01)
        for connection in self._open.values():
            if connection.due:
                self._note(connection, LOST)
        return self._report(began_at)

    def _send_open(self, phase: int, start: float, end: float, rate: float) -> None:
        step, count, sent = 1 / rate, int(rate * (end - start)), 0
        while sent < count:
            now = time.perf_counter()
            due = min(count, int((now - start) * rate) + 1, sent + _BURST)
            while sent < due:
                self._send(phase, start + sent * step, now)
                sent += 1
            behind = start + sent * step - time.perf_counter()
            self._receive(max(0.0, behind))

    def _send_closed(self, phase: int, end: float, connections: int) -> None:
        while (now := time.perf_counter()) < end:
            for _ in range(connections - self._under_way):
                self._send(phase, now, now)
            self._receive(0.001)

    def _send(self, phase: int, due: float, now: float) -> None:
        second = int(due - self._began)
        self._offered[second] += 1
        self._late[second] = max(self._late[second], now - due)
        connection = self._take_idle()
        if connection is not None:
            connection.due, connection.phase = due, phase
            self._write(connection, next(self._requests))
        elif len(self._open) < self._plan.most:
            connection = self._connect()
            connection.due, connection.phase, connection.unsent = due, phase, next(self._requests)
        else:
            self._not_sent[second] += 1
            return
        self._under_way += 1

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.popleft()
            if not connection.gone:
                return connection
        return None

    def _connect(self) -> _Connection:
        made = socket.socket()
        made.setblocking(False)  # noqa: FBT003  # the standard library's own
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.connect_ex(("127.0.0.1", self._plan.port))
        connection = _Connection(made, made.fileno())
        self._open[connection.number] = connection
        self._poll.register(connection.number, select.EPOLLOUT)
        self._most = max(self._most, len(self._open))
        return connection

    def _write(self, connection: _Connection, request: bytes) -> None:
        try:
            sent = connection.socket.send(request)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection)
            return
        if sent < len(request):
            connection.unsent = request[sent:]
            self._poll.modify(connection.number, select.EPOLLIN | select.EPOLLOUT)

    def _receive(self, seconds: float) -> None:
        """Take in what has come, waiting for no longer than this when there is nothing."""
        for number, event in self._poll.poll(seconds, _BURST):
            connection = self._open[number]
            if event & select.EPOLLOUT and not event & (select.EPOLLERR | select.EPOLLHUP):
                self._poll.modify(number, select.EPOLLIN)
                request, connection.unsent = connection.unsent, None
                if request is None:
                    self._idle.append(connection)
                else:
                    self._write(connection, request)
            else:
                self._read(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        if connection.received:
            data = connection.received + data
        answer = _whole(data)
        if answer is None:
            connection.received = data
            return
        connection.received = b""
        if not answer.told:
            self._untold += 1
        self._note(connection, answer.status.decode())
        connection.due = 0.0
        if answer.closes:
            self._drop(connection)
        else:
            self._idle.append(connection)

    def _note(self, connection: _Connection, status: str) -> None:
        self._under_way -= 1
        now = time.perf_counter()
        milliseconds = (now - connection.due) * 1000
        self._taken[int(now - self._began), status].append(milliseconds)
        self._taken_in[connection.phase, status].append(milliseconds)

    def _drop(self, connection: _Connection) -> None:
        if connection.due:
            self._note(connection, BROKEN)
        connection.gone = True
        self._poll.unregister(connection.number)
        del self._open[connection.number]
        connection.socket.close()

    def _report(self, began_at: float) -> Report:
        last = max([*self._offered, *(second for second, _ in self._taken)])
        seconds = [
            Second(
                self._offered[second],
                self._not_sent[second],
                self._late[second] * 1000,
                {status: _summed(taken) for (when, status), taken in self._taken.items() if when == second},
            )
            for second in range(last + 1)
        ]
        phases = [
            {status: _summed(taken) for (which, status), taken in self._taken_in.items() if which == number}
            for number in range(len(self._plan.phases))
        ]
        return Report(began_at, seconds, self._most, self._untold, phases)


def _whole(data: bytes) -> _Answer | None:
    """The answer that these bytes are; None while there is more to come."""
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return None
    names = data[:head].lower()
    length = names.find(b"content-length: ")
    if length >= 0 and head + 4 + int(names[length + 16 : length + 26].split(b"\r", 1)[0]) > len(data):
        return None
    status = names[9:12]
    told = status not in (b"429", b"503") or b"\r\nretry-after: " in names
    return _Answer(status, told, b"\r\nconnection: close" in names)


def _summed(taken: "array[float]") -> Answers:
    if len(taken) < 2:
        return Answers(len(taken), *([round(sum(taken), 2)] * 3))
    cuts = statistics.quantiles(taken, n=100)
    return Answers(len(taken), round(cuts[49], 2), round(cuts[98], 2), round(max(taken), 2))


if __name__ == "__main__":
    main()
