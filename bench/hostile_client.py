"""A hostile client of one machine: ``python -m bench.hostile_client`` reads an `Attack` as JSON, writes a `Toll`.

A process of its own, of less priority than those it attacks, and no faster than it is told: a flood that takes a whole
processor of the machine that it is measured on measures the machine.
"""

import asyncio
import contextlib
import itertools
import os
import resource
import sys
import time
from collections import Counter
from typing import Final

import msgspec
import uvloop

NICER: Final = 10
_PIECE: Final = 65_536
_PATIENCE: Final = 8.0
_OPENERS: Final = 32
"""Connections that are begun at the same time."""
_OPENED: Final = 2000
"""Connections in a second, at most."""


class Attack(msgspec.Struct, frozen=True, kw_only=True):
    """What to send, where and how fast."""

    port: int
    seconds: float
    requests: list[bytes] = []
    """Sent whole, in turn, each after the answer to the one before on its connection."""
    rate: float = 0
    """Requests a second, of all connections together; 0: `drip` instead."""
    connections: int
    drip: bytes = b""
    """Sent at once on each connection; then ``drop`` once in ``pause`` seconds. The connection is made anew when it
    ends."""
    drop: bytes = b""
    pause: float = 1.0


class Toll(msgspec.Struct):
    """What came of it."""

    sent: int
    """Requests, or connections."""
    seconds: float
    most: int
    """Connections at once."""
    answers: dict[str, int]


def main() -> None:
    """Carry out an attack."""
    attack = msgspec.json.decode(sys.stdin.buffer.read(), type=Attack)
    os.nice(NICER)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_Attacker(attack).run())))


class _Attacker:
    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        self._requests = itertools.cycle(attack.requests)
        self._answers: Counter[str] = Counter()
        self._sent = 0
        self._open = 0
        self._most = 0
        self._next = self._opens = 0.0
        self._doors = asyncio.Semaphore(_OPENERS)

    async def run(self) -> Toll:
        begun = self._next = self._opens = time.perf_counter()
        one = self._flood if self._attack.rate else self._hold
        tasks = [asyncio.create_task(one()) for _ in range(self._attack.connections)]
        await asyncio.sleep(self._attack.seconds)
        took = time.perf_counter() - begun
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):  # it stopped attacking before its time; CancelledError is none
                raise ended
        return Toll(self._sent, took, self._most, dict(self._answers.most_common(4)))

    @contextlib.asynccontextmanager
    async def _connection(self):  # type: ignore[no-untyped-def]  # noqa: ANN202
        async with self._doors:
            now = time.perf_counter()
            self._opens = max(self._opens, now) + 1 / _OPENED
            await asyncio.sleep(max(0.0, self._opens - now))
            reader, writer = await asyncio.open_connection("127.0.0.1", self._attack.port)
        self._open += 1
        self._most = max(self._most, self._open)
        try:
            yield reader, writer
        finally:
            self._open -= 1
            writer.transport.abort()

    async def _flood(self) -> None:
        while True:
            with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
                async with self._connection() as (reader, writer):
                    while await self._one(reader, writer):
                        pass

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send one in its turn; whether the connection is good for another."""
        now = time.perf_counter()
        self._next = max(self._next, now - 0.1) + 1 / self._attack.rate
        await asyncio.sleep(max(0.0, self._next - now))
        if writer.is_closing():  # the service has ended it meanwhile
            return False
        self._sent += 1
        writer.write(next(self._requests))
        status = "none"
        try:
            async with asyncio.timeout(_PATIENCE):
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                status = head.split(b" ", 2)[1].decode()
                _, _, length = head.partition(b"content-length: ")
                await reader.readexactly(int(length.partition(b"\r")[0] or 0))
        finally:
            self._answers[status] += 1
        return b"connection: close" not in head

    async def _hold(self) -> None:
        attack = self._attack
        while True:
            with contextlib.suppress(OSError):
                async with self._connection() as (reader, writer):
                    self._sent += 1
                    writer.write(attack.drip)
                    ended = asyncio.ensure_future(reader.read(_PIECE))
                    while not ended.done():
                        await asyncio.wait({ended}, timeout=attack.pause)
                        if not (ended.done() or writer.is_closing()):
                            writer.write(attack.drop)
                    self._answers[ended.result()[9:12].decode() or "closed"] += 1


if __name__ == "__main__":
    main()
