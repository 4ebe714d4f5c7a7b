"""A proxy between a client and the service that does to each request what a bad day does."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Final

_RESET: Final = struct.pack("ii", 1, 0)
_UNAVAILABLE: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html\r\n"
    b"Retry-After: 0\r\nContent-Length: 4\r\n\r\nbusy"
)


class Failure(Enum):
    NONE = "none"
    RESET_BEFORE = "the connection is reset before the service hears of it"
    RESET_AFTER = "the connection is reset after the service has answered"
    UNAVAILABLE_BEFORE = "503 before the service hears of it"
    UNAVAILABLE_AFTER = "503 after the service has answered"
    TRUNCATED = "half of the answer, then the end"
    TRUNCATED_HEAD = "half of the answer's head, then the end"
    SILENT = "no answer, ever, though the service has answered"
    SLOW_HEAD = "the answer's head, a byte at a time, without end in sight"
    SLOW_BODY = "the answer's body, a byte at a time, without end in sight"
    GARBAGE = "something that is no HTTP"


BEFORE: Final = {Failure.RESET_BEFORE, Failure.UNAVAILABLE_BEFORE, Failure.GARBAGE}
"""Then the service hears of nothing."""
GOES_ON: Final = {Failure.NONE, Failure.UNAVAILABLE_BEFORE, Failure.UNAVAILABLE_AFTER}
"""Then the connection takes another request."""


class FaultyProxy:
    """Asks ``choose`` for a failure at each request that comes in."""

    def __init__(self, port: int, choose: Callable[[], Failure]) -> None:
        self._port = port
        self._choose = choose
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.met: list[Failure] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self._pass_on(reader, writer):
                pass
        writer.close()
        self._tasks.discard(task)

    async def close(self) -> None:
        """Let go of those that hang."""
        self._closing.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays open after a request."""
        request = await _message(reader)
        failure = self._choose()
        self.met.append(failure)
        answer = b"" if failure in BEFORE else await self._asked(request)
        head, _, body = answer.partition(b"\r\n\r\n")
        match failure:
            case Failure.NONE:
                await _send(writer, answer)
            case Failure.UNAVAILABLE_BEFORE | Failure.UNAVAILABLE_AFTER:
                await _send(writer, _UNAVAILABLE)
            case Failure.RESET_BEFORE | Failure.RESET_AFTER:
                _reset(writer)
            case Failure.GARBAGE:
                await _send(writer, b"220 mail.example ESMTP\r\n")
            case Failure.TRUNCATED:
                await _send(writer, head + b"\r\n\r\n" + body[: len(body) // 2])
            case Failure.TRUNCATED_HEAD:
                await _send(writer, head[: len(head) // 2])
            case Failure.SILENT:
                await self._closing.wait()
            case Failure.SLOW_HEAD:
                await self._drip(writer, b"HTTP/1.1 200 OK\r\nX-Padding: ")
            case Failure.SLOW_BODY:
                await self._drip(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        return failure in GOES_ON

    async def _asked(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request)
        answer = await _message(reader)
        writer.close()
        return answer

    async def _drip(self, writer: asyncio.StreamWriter, begin: bytes) -> None:
        await _send(writer, begin)
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), 0.02)
            await _send(writer, b"x")


@asynccontextmanager
async def faulty_proxy(
    url: str, choose: Callable[[], Failure]
) -> AsyncIterator[tuple[str, FaultyProxy]]:
    """The address of a proxy before the service at this one."""
    proxy = FaultyProxy(int(url.rpartition(":")[2]), choose)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", proxy
    finally:
        server.close()
        await proxy.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    """A request or an answer, as bytes; its body is of known length."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [
        line.split(b":")[1]
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    ]
    return head + await reader.readexactly(int(lengths[0]) if lengths else 0)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
