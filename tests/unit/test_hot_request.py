"""Requests of hot routes."""

from collections.abc import Iterable
from typing import Any

import pytest

from tenantry.domain.errors import PayloadTooLargeError
from tenantry.server.asgi_types import MAX_BODY, ClientGoneError, HotRequest
from tests.support.cases import cases

GONE = {"type": "http.disconnect"}


def request(messages: Iterable[dict[str, Any]] = (), *headers: tuple[bytes, bytes]) -> HotRequest:
    """A request with these messages; receiving more is an error."""
    queue = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(queue)

    return HotRequest({"path": "/", "headers": list(headers)}, receive)


def parts(*bodies: bytes, end: bool = True) -> list[dict[str, Any]]:
    """The messages of a body in parts; without ``end`` the body is incomplete."""
    last = len(bodies) if end else 0
    return [
        {"type": "http.request", "body": body, "more_body": number != last}
        for number, body in enumerate(bodies, start=1)
    ]


def length(value: bytes) -> tuple[bytes, bytes]:
    return b"content-length", value


@cases("bodies", [(b"",), (b"a", b"", b"bc"), (b"x" * MAX_BODY,)])
async def test_parts_make_one_body(bodies: tuple[bytes, ...]) -> None:
    assert await request(parts(*bodies)).body() == b"".join(bodies)


@cases("said", [(), (length(b"1"),), (length(b"nonsense"),)])
async def test_body_over_the_limit_is_rejected_for_any_content_length(
    said: tuple[tuple[bytes, bytes], ...],
) -> None:
    with pytest.raises(PayloadTooLargeError):
        await request(parts(b"x" * (MAX_BODY + 1)), *said).body()


async def test_body_over_the_limit_is_not_read_completely() -> None:
    with pytest.raises(PayloadTooLargeError):
        await request(parts(b"x" * MAX_BODY, b"x", end=False)).body()


@pytest.mark.parametrize("said", [b"%d" % (MAX_BODY + 1), b"9" * 5000])
async def test_length_over_the_limit_is_rejected_before_reading(said: bytes) -> None:
    with pytest.raises(PayloadTooLargeError):
        await request((), length(said)).body()


async def test_disconnect_is_distinguished_from_a_complete_body() -> None:
    with pytest.raises(ClientGoneError):
        await request([*parts(b"half", end=False), GONE]).body()


def test_several_headers_of_one_name_are_joined() -> None:
    several = request((), (b"x", b"1"), (b"y", b"2"), (b"x", b"3"))
    assert (several.header(b"x"), several.header(b"y"), several.header(b"z")) == (
        b"1, 3",
        b"2",
        None,
    )
