"""Answers of the provider's API: lists page by page, their times, and malformed answers."""

import logging
import math
import re
import time
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

import msgspec

from tenantry.common.clock import EPOCH_MAX, Clock, system_clock
from tenantry.common.encoding import NOT_JSON
from tenantry.domain.errors import ProviderUnavailableError
from tenantry.integrations.stripe.connection import ProviderConnection, TooLargeError

NO_WORD: Final = "unknown"
_MOST_PER_PAGE: Final = 100
"""The most objects on a page."""
_SAFE_WORD: Final = re.compile(r"[\w.\[\]-]{1,100}", re.ASCII)

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
    clock: Clock = system_clock,
    after: str | None = None,
) -> AsyncGenerator[ListPage, None]:
    """Request a list page by page, from the beginning or ``after`` an object.

    Pages are smaller where those before were too large. Raises `RequestRejectedError`, and
    `ProviderUnavailableError` for a malformed page.
    """
    limit = _MOST_PER_PAGE
    while True:
        now, started = clock(), time.monotonic()
        wanted = {
            **params,
            "limit": limit,
            "starting_after": after,
        }
        try:
            response = await connection.send("GET", path, wanted)
        except TooLargeError:
            if limit == 1:
                raise
            limit = max(1, limit // 10)
            continue
        sent_at = second_sent(
            response.headers.get("date"),
            time.monotonic() - started,
            now,
        )
        try:
            objects, last = _decode_page(response.body, after)
        except NOT_JSON as error:
            raise malformed(f"{path}: {error}", response.request_id) from None
        yield ListPage(objects, sent_at, response.request_id)
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


def second_sent(
    date: str | None,
    elapsed: float,
    sent_at: datetime,
) -> int:
    """Return the second of the provider's clock in which a request was sent, or an earlier one
    (Unix time).

    ``date`` is the header of a response that took ``elapsed`` seconds: the provider wrote it within
    that time. Where it is missing or malformed, our own clock counts: ``sent_at``.
    """
    try:
        answered = parsedate_to_datetime(date or "")
    except (ValueError, OverflowError):
        return int(sent_at.timestamp())
    if answered.tzinfo is None:
        # the old form of the header names no zone and means UTC
        answered = answered.replace(tzinfo=UTC)
    second = int(answered.timestamp()) - math.ceil(elapsed)
    return second if 0 <= second <= EPOCH_MAX else int(sent_at.timestamp())


def malformed(why: str, request_id: str | None = None) -> ProviderUnavailableError:
    """Log why an answer cannot be used, and return the error to raise."""
    logger.warning(
        "the payment provider's answer cannot be used: %s, request %s", why, safe_word(request_id)
    )
    return ProviderUnavailableError("The payment provider's answer cannot be used.")


def safe_word(value: object) -> str:
    """Return a plain word as it is, so that no message or address gets into logs and answers."""
    return value if isinstance(value, str) and _SAFE_WORD.fullmatch(value) else NO_WORD
