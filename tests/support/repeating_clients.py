"""Clients that send the requests of `largest_requests` to every address, and judge the answers."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tenantry.api.guards import Credential
from tests.support.app import OPERATOR_TOKEN
from tests.support.counting_work import CountedCalls
from tests.support.dashboard import OLIVIA, Dashboard
from tests.support.repetition import SMALL_FORM, Repetition, largest_requests
from tests.support.routes import Address, addresses

MOST_CALLS: Final = 30_000
"""More than the same request without what it repeats: a few milliseconds of work."""
MOST_ANONYMOUS_BYTES: Final = 65_536
ROUTES_OF_A_REFUSAL: Final = 5
DOCUMENTS: Final = frozenset({"/docs", "/api/v1/openapi.json", "/metrics"})
"""The answers that are larger for a client that accepts no compression."""
_ACCEPT_ENCODING: Final = ("Accept-Encoding", "gzip")
_STREAM: Final = "/orgs/x/events/stream"
_PLAIN: Final = Repetition("nothing")
_READ_BYTES: Final = 2**20
_REDIRECT: Final = 303
_CLIENT_ERRORS: Final = range(400, 500)
_NOT_SET_UP: Final = 501


class RepeatingClients:
    """A client without a credential, and one with that of each address."""

    def __init__(self, dashboard: Dashboard, session: str) -> None:
        """``session`` is the cookie of a user who has signed in."""
        bearer = f"Bearer {dashboard.token(OLIVIA)}"
        self._netloc = urlsplit(dashboard.url).netloc
        self._credentials = {
            Credential.SESSION: ("Cookie", session),
            Credential.OPERATOR: ("Authorization", f"Bearer {OPERATOR_TOKEN}"),
            Credential.USER: ("Authorization", bearer),
            Credential.CALLER: ("Authorization", bearer),
        }

    async def try_all(self) -> list[str]:
        """Send every request to every address; return what is wrong with the answers.

        The server refuses a head before it looks for the route, so these go to one address of
        `ROUTES_OF_A_REFUSAL`, and to all of hot routes, which have another dispatcher.
        """
        wrong: list[str] = []
        for number, address in enumerate(addresses()):
            with_refusals = address.is_hot or number % ROUTES_OF_A_REFUSAL == 0
            requests = [
                each
                for each in largest_requests(address.method)
                if with_refusals or not _is_refused_by_its_head(each)
            ]
            for credential in {None, address.credential}:
                wrong += [line async for line in self._try(address, credential, requests)]
        return wrong

    async def _try(
        self, address: Address, credential: Credential | None, requests: Sequence[Repetition]
    ) -> AsyncIterator[str]:
        plain: int | None = None
        for repetition in requests:
            if credential is None and not _concerns_anyone(address, repetition):
                continue
            if plain is None:
                for first in (_PLAIN, SMALL_FORM):  # the first page compiles its template
                    await self._send(address, credential, first)
                _, plain = await self._send(address, credential, _PLAIN)
            answer, calls = await self._send(address, credential, repetition)
            for deviation in _deviations(address, credential, repetition, answer, calls - plain):
                yield f"{address.method} {address.path}, {credential}, {repetition.name}: {deviation}"

    async def _send(
        self, address: Address, credential: Credential | None, repetition: Repetition
    ) -> tuple["Answer", int]:
        """Return the answer, and the number of calls that it took."""
        own = (
            None if credential is None or address.path == _STREAM else self._credentials[credential]
        )
        target = repetition.target(address.path.replace("/orgs/x", "/orgs/acme"))
        request = _encode(address.method, target, self._netloc, own, repetition)
        with CountedCalls() as calls:
            answer = await self._exchange(request)
        return answer, calls.number

    async def _exchange(self, request: bytes) -> "Answer":
        reader, writer = await asyncio.open_connection(*self._netloc.split(":"), limit=_READ_BYTES)
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"\ncontent-length: (\d+)", head)
        body = await (
            _chunked(reader) if b"\ntransfer-encoding: chunked" in head else _known(reader, length)
        )
        writer.close()
        return Answer(int(head.split(b" ", 2)[1]), body)


async def _known(reader: asyncio.StreamReader, length: re.Match[bytes] | None) -> bytes:
    return await reader.readexactly(int(length[1]) if length else 0)


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    return b"".join(parts)


class Answer(NamedTuple):
    status: int
    body: bytes


def _encode(
    method: str, target: str, host: str, own: tuple[str, str] | None, repetition: Repetition
) -> bytes:
    """Encode a request; a header that repeats something takes the place of the caller's own."""
    repeated = {name for name, _ in repetition.headers}
    headers = [("Host", host), *repetition.headers]
    if not _repeats_encodings(repetition):
        headers.append(_ACCEPT_ENCODING)
    if own is not None and own[0] not in repeated:
        headers.append(own)
    if method != "GET":
        headers.append(("Content-Length", str(len(repetition.body))))
    lines = [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""]).encode() + repetition.body


def _is_refused_by_its_head(repetition: Repetition) -> bool:
    return bool(repetition.refusal) and not repetition.body


def _concerns_anyone(address: Address, repetition: Repetition) -> bool:
    """Whether a request without a credential comes farther than to the check of it: a form does, to
    be sent again.
    """
    return address.credential is None or bool(repetition.body)


def _deviations(
    address: Address,
    credential: Credential | None,
    repetition: Repetition,
    answer: Answer,
    calls: int,
) -> Iterator[str]:
    if calls > MOST_CALLS:
        yield f"{calls} calls"
    if not _is_expected(address, repetition, answer.status):
        yield f"{answer.status} {answer.body[:200]!r}"
    may_be_large = address.path in DOCUMENTS and _repeats_encodings(repetition)
    if credential is None and not may_be_large and len(answer.body) > MOST_ANONYMOUS_BYTES:
        yield f"{len(answer.body)} bytes"


def _repeats_encodings(repetition: Repetition) -> bool:
    name, _ = _ACCEPT_ENCODING
    return any(header == name for header, _ in repetition.headers)


def _is_expected(address: Address, repetition: Repetition, status: int) -> bool:
    if _is_refused_by_its_head(repetition) and not address.is_hot:
        return status == repetition.refusal
    if repetition.refusal and repetition.body and not address.is_hot:
        # most addresses refuse the request for another reason
        return status in _CLIENT_ERRORS or status in (_REDIRECT, _NOT_SET_UP)
    return status < _CLIENT_ERRORS.stop or status == _NOT_SET_UP
