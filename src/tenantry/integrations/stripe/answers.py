"""Answers of the provider's API: lists page by page, and malformed answers."""

import logging
import re
from collections.abc import AsyncGenerator, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from tenantry.common.encoding import NOT_JSON
from tenantry.domain.errors import ProviderUnavailableError
from tenantry.integrations.stripe.connection import ProviderConnection, TooLargeError

NO_WORD: Final = "unknown"
_MOST_PER_PAGE: Final = 100
"""The most objects on a page."""
_SAFE_WORD: Final = re.compile(r"[\w.\[\]-]{1,100}", re.ASCII)

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)


class ListBody(msgspec.Struct):
    data: list[msgspec.Raw]
    has_more: bool


class ObjectId(msgspec.Struct):
    id: str


class ListPage(NamedTuple):
    """A page of a list: its objects as JSON, and the second of the provider's clock in which it was
    requested.
    """

    objects: list[bytes]
    sent_at: int
    request_id: str | None


async def read_pages(
    connection: ProviderConnection,
    path: str,
    params: Mapping[str, object],
    after: str | None = None,
) -> AsyncGenerator[ListPage, None]:
    """Request a list page by page, from the beginning or ``after`` an object.

    Pages are smaller where those before were too large. Raises `RequestRejectedError`, and
    `ProviderUnavailableError` for a malformed page.
    """
    limit = _MOST_PER_PAGE
    while True:
        try:
            response = await connection.send(
                "GET", path, {**params, "limit": limit, "starting_after": after}
            )
        except TooLargeError:
            if limit == 1:
                raise
            limit = max(1, limit // 10)
            continue
        try:
            objects, last = _decode_page(response.body, after)
        except NOT_JSON as error:
            raise malformed(f"{path}: {error}", response.request_id) from None
        yield ListPage(objects, response.sent_at, response.request_id)
        if last is None:
            return
        after = last


def _decode_page(body: bytes, after: str | None) -> tuple[list[bytes], str | None]:
    """Return the objects of a page, and the id of its last one if the list continues ``after`` it.

    Raises one of `NOT_JSON` for a malformed page.
    """
    page = msgspec.json.decode(body, type=ListBody)
    objects = list(map(bytes, page.data))
    if not all(each.startswith(b"{") for each in objects):
        raise msgspec.ValidationError("not a list of objects")
    if not page.has_more:
        return objects, None
    last = msgspec.json.decode(objects[-1], type=ObjectId).id if objects else None
    if last in (None, "", after):
        raise msgspec.ValidationError("the list does not continue")
    return objects, last


def decode_answer(kind: type[Answer], raw: bytes, path: str, request_id: str | None) -> Answer:
    """Decode an answer, or an object of one. Raises `ProviderUnavailableError` for a malformed
    one.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except NOT_JSON as error:
        raise malformed(f"{path}: {error}", request_id) from None


async def read_object(
    connection: ProviderConnection, kind: type[Answer], path: str, params: Mapping[str, object]
) -> Answer:
    """Return an object of the provider. Raises `RequestRejectedError`, and
    `ProviderUnavailableError` for a malformed one.
    """
    response = await connection.send("GET", path, params)
    return decode_answer(kind, response.body, path, response.request_id)


def malformed(why: str, request_id: str | None = None) -> ProviderUnavailableError:
    """Log why an answer cannot be used, and return the error to raise."""
    logger.warning(
        "the payment provider's answer cannot be used: %s, request %s", why, safe_word(request_id)
    )
    return ProviderUnavailableError("The payment provider's answer cannot be used.")


def safe_word(value: object) -> str:
    """Return a plain word as it is, so that no message or address gets into logs and answers."""
    return value if isinstance(value, str) and _SAFE_WORD.fullmatch(value) else NO_WORD
