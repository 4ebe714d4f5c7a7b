"""Reading the provider's lists page by page, from the bytes of its answers."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tenantry.common.clock import EPOCH_MAX
from tenantry.common.json import NOT_JSON
from tenantry.integrations.stripe.refusals import unusable

if TYPE_CHECKING:
    from stripe import StripeClient, StripeResponse

MOST_PER_PAGE: Final = 100
"""The most that the provider puts on a page."""


class _List(msgspec.Struct):
    data: list[msgspec.Raw]
    has_more: bool


class _Entry(msgspec.Struct):
    id: str


_list: Final = msgspec.json.Decoder(_List)
_entry: Final = msgspec.json.Decoder(_Entry)


class Page(NamedTuple):
    """One page of a list: its objects as they were written, and what the answer's headers say.

    ``next_after`` is the id after which the next page begins; None on the last page.
    """

    objects: list[bytes]
    next_after: str | None
    date: str | None
    request_id: str | None


async def read_page(client: "StripeClient", path: str, params: Mapping[str, object], after: str | None = None) -> Page:
    """Ask for the page that begins ``after`` this id, or for the first one.

    Raises the errors of the provider's package, and `ProviderUnavailableError` for an answer that is not a page.
    """
    answer: StripeResponse = await client.raw_request_async(
        "get", path, **params, limit=MOST_PER_PAGE, starting_after=after
    )
    try:
        page = _list.decode(answer.body)
        next_after = _entry.decode(page.data[-1]).id if page.has_more and page.data else None
    except NOT_JSON as error:
        raise unusable(f"{path}: {error}", answer.request_id) from None
    if page.has_more and next_after in (None, "", after):
        raise unusable(f"{path}: the list does not go on", answer.request_id)
    return Page([bytes(raw) for raw in page.data], next_after, answer.headers.get("date"), answer.request_id)


def second_asked(date: str | None, elapsed: float, asked: datetime) -> int:
    """A second of the provider's clock that was not over when we asked, or an earlier one, since the Unix epoch.

    ``date`` is the header of an answer that took ``elapsed`` seconds. The provider wrote it after we had asked,
    and within that time. Where it is missing or no date, the moment by our own clock counts: ``asked``.
    """
    try:
        answered = parsedate_to_datetime(date or "")
    except (ValueError, OverflowError):
        return int(asked.timestamp())
    if answered.tzinfo is None:
        answered = answered.replace(tzinfo=UTC)  # the old form of the header names no zone and means UTC
    second = int(answered.timestamp()) - math.ceil(elapsed)
    return second if 0 <= second <= EPOCH_MAX else int(asked.timestamp())
