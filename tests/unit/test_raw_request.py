"""Reading the bodies of hot routes."""

from collections.abc import Iterable
from typing import Any

import pytest

from tenantry.domain.errors import PayloadTooLargeError
from tenantry.http.raw import MAX_BODY, ClientGoneError, RawRequest


def request(messages: Iterable[dict[str, Any]], **headers: str) -> RawRequest:
    queue = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(queue)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return RawRequest({"path": "/", "headers": raw}, receive, "request-1")


def part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_parts_make_one_body() -> None:
    assert await request([part(b"a", more=True), part(b"", more=True), part(b"b")]).body() == b"ab"


async def test_body_at_the_limit_is_read() -> None:
    assert len(await request([part(b"x" * MAX_BODY)]).body()) == MAX_BODY


async def test_body_past_the_limit_is_refused_without_reading_on() -> None:
    with pytest.raises(PayloadTooLargeError):
        await request([part(b"x" * MAX_BODY, more=True), part(b"x", more=True)]).body()


@pytest.mark.parametrize("length", [str(MAX_BODY + 1), "9" * 5000])
async def test_length_past_the_limit_is_refused_before_anything_is_read(length: str) -> None:
    with pytest.raises(PayloadTooLargeError):
        await request([], content_length=length).body()


async def test_client_that_hangs_up_is_told_apart_from_one_that_has_sent_all() -> None:
    with pytest.raises(ClientGoneError):
        await request([part(b"half", more=True), {"type": "http.disconnect"}]).body()
