"""Requests to a stopping process: sent byte by byte, over persistent connections."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import psutil

from tests.support import events
from tests.support.commands import SECRETS
from tests.support.deployment import Deployment
from tests.support.http_line import Line
from tests.support.signing import PATH, signature

LIST: Final = b"/api/v1/projects"


def asking(path: bytes, credential: str = "") -> bytes:
    """A GET."""
    authorization = f"Authorization: Bearer {credential}\r\n" if credential else ""
    return b"GET %b HTTP/1.1\r\nHost: a\r\n%b\r\n" % (path, authorization.encode())


async def ask(line: Line, path: bytes, credential: str = "") -> tuple[int, dict[str, str], bytes]:
    """The answer to a GET."""
    await line.send(asking(path, credential))
    return await line.answer()


Connect = Callable[[Deployment], Awaitable[Line]]


@asynccontextmanager
async def connecting() -> AsyncIterator[Connect]:
    """Makes connections, which are closed after the block."""
    lines: list[Line] = []

    async def to(deployment: Deployment) -> Line:
        lines.append(await Line.to(deployment.base_url))
        return lines[-1]

    yield to
    for line in lines:
        line.close()


class Upload:
    """An event of which the last byte is not sent yet: a request under way, for as long as
    wanted.
    """

    def __init__(self, line: Line, event_id: str) -> None:
        now = int(time.time())
        self._line = line
        self._body = events.body(events.updated(event_id=event_id, created=now))
        self._signature = signature(self._body, secret=SECRETS["PROVIDER_WEBHOOK_SECRET"], at=now)

    async def begin(self) -> None:
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: a\r\nProvider-Signature: {self._signature}\r\n"
            f"Content-Length: {len(self._body)}\r\n\r\n"
        )
        await self._line.send(head.encode() + self._body[:-1])

    async def end(self) -> tuple[int, dict[str, str], bytes]:
        await self._line.send(self._body[-1:])
        return await self._line.answer()


def listens(process: psutil.Process) -> bool:
    """Whether a process is one that serves."""
    return any(
        connection.status == psutil.CONN_LISTEN for connection in process.net_connections("tcp")
    )
