"""Clients that use a credential without pause while it is revoked."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

CONNECTIONS_EACH: Final = 4


class Connection:
    """A connection that is kept open; its requests follow each other."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def status(self, method: str, path: str, credential: str, body: bytes = b"") -> int:
        """The status of the answer to a request."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {credential}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        lengths = [
            int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")
        ]
        await reader.readexactly(sum(lengths))
        if b"connection: close" in lines:  # of a process that has more connections than the others
            self.close()
        return int(first.split()[1])

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Revocation(NamedTuple):
    """A credential, and the request that takes it away from its holders."""

    credential: str
    method: str
    path: str
    body: bytes = b""


class Tally(NamedTuple):
    """How many credentials were revoked, and the answers to requests that were sent after the
    revocation.
    """

    revoked: int
    sent_afterwards: int
    accepted: int


class Hammer:
    """``clients`` that send one request after the other, each over several connections in turn."""

    def __init__(self, host: str, port: int, path: str, *, clients: int = 8) -> None:
        self._path = path
        self._clients = [
            [Connection(host, port) for _ in range(CONNECTIONS_EACH)] for _ in range(clients)
        ]
        self._control = Connection(host, port)
        self._credential = ""
        self._revoked_at: float | None = None
        self._progress = asyncio.Condition()
        self._before: set[int] = set()
        self._after: dict[int, list[int]] = {}

    async def run(self, revocations: Sequence[Revocation], operator: str) -> Tally:
        """Revoke one credential after the other as ``operator`` while all clients use it."""
        sent = accepted = 0
        async with self._clients_running():
            for revocation in revocations:
                await self._begin(revocation.credential)
                status = await self._control.status(
                    revocation.method, revocation.path, operator, revocation.body
                )
                self._revoked_at = time.perf_counter()
                assert status in (200, 204), status
                async with self._progress:
                    await self._progress.wait_for(lambda: len(self._after) == len(self._clients))
                answers = [status for statuses in self._after.values() for status in statuses]
                sent += len(answers)
                accepted += answers.count(200)
        return Tally(len(revocations), sent, accepted)

    async def _begin(self, credential: str) -> None:
        """Hand out a credential, and wait until every client was accepted with it."""
        self._credential, self._revoked_at, self._before, self._after = (
            credential,
            None,
            set(),
            {},
        )
        async with self._progress:
            await self._progress.wait_for(lambda: len(self._before) == len(self._clients))

    @contextlib.asynccontextmanager
    async def _clients_running(self) -> AsyncIterator[None]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._client(number)) for number in range(len(self._clients))
                ]
                yield
                for task in tasks:
                    task.cancel()
        finally:
            for connection in [
                self._control,
                *(one for connections in self._clients for one in connections),
            ]:
                connection.close()

    async def _client(self, number: int) -> None:
        turn = 0
        while True:
            credential, sent_at = self._credential, time.perf_counter()
            if not credential:
                async with self._progress:
                    await self._progress.wait_for(lambda: self._credential)
                continue
            turn += 1
            status = await self._clients[number][turn % CONNECTIONS_EACH].status(
                "GET", self._path, credential
            )
            if credential == self._credential:
                async with self._progress:
                    self._note(number, status, sent_at)
                    self._progress.notify_all()

    def _note(self, number: int, status: int, sent_at: float) -> None:
        if self._revoked_at is not None and sent_at > self._revoked_at:
            self._after.setdefault(number, []).append(status)
        elif self._revoked_at is None and status == 200:
            self._before.add(number)
