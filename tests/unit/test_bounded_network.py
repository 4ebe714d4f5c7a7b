"""What is read of a peer's response, and how much of it at a time."""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import Any, Final

import httpcore2
import pytest

from tenantry.integrations.bounded_network import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_INTERIM_HEADS,
    BoundedNetwork,
    ResponseLimitError,
)

OK: Final = b"HTTP/1.1 200 OK\r\n"
CHUNKED: Final = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
MALFORMED: Final = "the response is malformed"
TOO_LONG: Final = "too many bytes around the body"
TOO_MANY_HEADERS: Final = f"more than {MAX_HEADERS} headers"
TOO_MANY_HEADS: Final = f"more than {MAX_INTERIM_HEADS} heads with a status of 1xx"


class Peer(httpcore2.AsyncNetworkBackend, httpcore2.AsyncNetworkStream):
    """A peer that sends these parts without ever letting the reader wait."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts: Iterator[bytes] = iter(parts)
        self._left = b""
        self.sent = 0
        self.connections = 0

    async def connect_tcp(self, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        self.connections += 1
        return self

    async def read(self, max_bytes: int, *_: Any, **__: Any) -> bytes:
        found = self._left or next(self._parts, b"")
        part, self._left = found[:max_bytes], found[max_bytes:]
        self.sent += len(part)
        return part

    async def write(self, *_: Any, **__: Any) -> None:
        pass

    async def aclose(self) -> None:
        pass

    def get_extra_info(self, info: str) -> Any:
        return False if info == "is_readable" else None


async def answer_of(peer: Peer) -> httpcore2.Response:
    async with httpcore2.AsyncConnectionPool(network_backend=BoundedNetwork(peer)) as pool:
        return await pool.request("GET", "http://peer.example/")


HOSTILE: Final[dict[str, tuple[Iterable[bytes], str]]] = {
    "endless 100": (repeat(CONTINUE * 999), TOO_MANY_HEADS),
    "endless 103": (repeat(b"HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\n"), TOO_MANY_HEADS),
    "endless headers": (chain([OK], repeat(b"a: b\r\n")), TOO_MANY_HEADERS),
    "endless head": (chain([OK], repeat(b"a: " + b"x" * 999 + b"\r\n")), TOO_LONG),
    "endless header": (chain([OK, b"a: "], repeat(b"x" * 99_999)), TOO_LONG),
    "endless name": (chain([OK], repeat(b"x" * 99_999)), TOO_LONG),
    "endless extension": (chain([CHUNKED, b"1;"], repeat(b"x" * 99_999)), TOO_LONG),
    "extensions": (chain([CHUNKED], repeat(b"1;" + b"x" * 9_999 + b"\r\ny\r\n", 9)), TOO_LONG),
    "endless trailer": (chain([CHUNKED, b"0\r\n"], repeat(b"a: b\r\n")), TOO_MANY_HEADERS),
    "spaces": ([OK + b"a:" + b" " * 90_000 + b"\0\r\n\r\n"], TOO_LONG),
    "few spaces": ([OK + b"a:" + b" " * 9_000 + b"\0\r\n\r\n"], MALFORMED),
    "spaces of a chunk": ([CHUNKED + b"1;" + b" " * 9_000 + b"\n\r\nx\r\n0\r\n\r\n"], MALFORMED),
    "another protocol": ([b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"], MALFORMED),
}


async def test_little_is_read_of_a_hostile_response() -> None:
    for name, (parts, error) in HOSTILE.items():
        peer = Peer(parts)
        with pytest.raises(httpcore2.RemoteProtocolError) as caught:
            await answer_of(peer)
        assert str(caught.value) == error, name
        assert isinstance(caught.value, ResponseLimitError) == (error != MALFORMED), name
        assert peer.sent <= 2 * MAX_HEAD_BYTES, name


ORDINARY: Final[dict[str, tuple[list[bytes], bytes]]] = {
    "a length": ([OK + b"Content-Length: 3\r\n\r\nabc"], b"abc"),
    "a length, in bytes": ([bytes([each]) for each in OK + b"Content-Length: 2\r\n\r\nab"], b"ab"),
    "chunks": ([CHUNKED + b"1;x=y\r\na\r\n", b"2\r\nb", b"c\r\n0\r\nExpires: 0\r\n\r\n"], b"abc"),
    "no chunk": ([CHUNKED + b"0\r\n\r\n"], b""),
    "until it closes": ([b"HTTP/1.0 200 OK\r\n\r\na", b"bc"], b"abc"),
    "heads before": ([CONTINUE * MAX_INTERIM_HEADS + OK + b"Content-Length: 1\r\n\r\na"], b"a"),
    "many headers": ([OK + b"a: b\r\n" * (MAX_HEADERS - 1) + b"Content-Length: 1\r\n\r\na"], b"a"),
    "more than it says": ([OK + b"Content-Length: 2\r\n\r\nok\r\n"], b"ok"),
    "another response": ([(OK + b"Content-Length: 2\r\n\r\nok") * 2], b"ok"),
    "no content": ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
}


async def test_ordinary_response_is_read() -> None:
    for name, (parts, body) in ORDINARY.items():
        assert (await answer_of(Peer(parts))).content == body, name


async def test_headers_are_kept_without_the_spaces_around_them() -> None:
    head = b"HTTP/1.1 429 Too Many\r\nRetry-After:   7 \r\nX-Empty:\r\nContent-Length: 0\r\n\r\n"
    answer = await answer_of(Peer([head]))
    assert answer.status == 429
    assert answer.extensions["reason_phrase"] == b"Too Many"
    assert answer.headers == [(b"Retry-After", b"7"), (b"X-Empty", b""), (b"Content-Length", b"0")]


async def test_response_that_ends_early_is_an_error() -> None:
    for parts in ([OK + b"Content-Length: 3\r\n\r\nab"], [CHUNKED + b"1\r\na\r\n"], [OK], []):
        with pytest.raises(httpcore2.RemoteProtocolError):
            await answer_of(Peer(parts))


async def test_other_tasks_have_turns_while_a_response_is_read() -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    size = 120 * 1024
    answer = await answer_of(Peer([CHUNKED + b"1\r\nx\r\n" * size + b"0\r\n\r\n"]))
    other.cancel()
    assert len(answer.content) == size
    assert turns >= 6 * size // MAX_HEAD_BYTES


async def test_connection_is_used_again_unless_more_came_than_the_response() -> None:
    ordinary = OK + b"Content-Length: 2\r\n\r\nok"
    for first, connections in ((ordinary, 1), (ordinary + b"more", 2), (ordinary * 2, 2)):
        peer = Peer([first, ordinary])
        async with httpcore2.AsyncConnectionPool(network_backend=BoundedNetwork(peer)) as pool:
            for _ in range(2):
                assert (await pool.request("GET", "http://peer.example/")).content == b"ok"
        assert peer.connections == connections
