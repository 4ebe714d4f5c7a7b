"""Answers of the payment provider's API: errors as domain errors, and lists page by page."""

import logging
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tenantry.common.clock import EPOCH_MAX
from tenantry.common.encoding import NOT_JSON
from tenantry.domain.errors import (
    DomainError,
    IdempotencyInFlightError,
    IdempotencyMismatchError,
    ProviderRefusedError,
    ProviderUnavailableError,
)

if TYPE_CHECKING:
    from stripe import StripeError

_SAFE_WORD: Final = re.compile(r"[\w.\[\]-]{1,100}", re.ASCII)
_NO_WORD: Final = "unknown"

_log = logging.getLogger(__name__)


def refusal(error: "StripeError") -> DomainError:
    """What an error means to our callers; the log says enough to find the request at the provider."""
    status = error.http_status or 0
    kind, code, parameter = _words(error, "type"), _words(error, "code"), _words(error, "param")
    request_id = _word(error.request_id)
    _log.warning(
        "the payment provider did not do as asked: %s, status %d, type %s, code %s, parameter %s, request %s",
        type(error.__cause__ or error).__name__, status, kind, code, parameter, request_id,
    )  # fmt: skip
    if code == "idempotency_key_in_use":
        return IdempotencyInFlightError("A request with this Idempotency-Key is still being carried out.")
    if kind == "idempotency_error":
        return IdempotencyMismatchError("This Idempotency-Key was used with another request body.")
    if not HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR or _is_passing(status, code):
        return ProviderUnavailableError("The payment provider is out of reach. Try again shortly.")
    if status == HTTPStatus.UNAUTHORIZED:
        return ProviderRefusedError(
            "The payment provider does not accept this service's API key (PROVIDER_SECRET_KEY).", of_key=True
        )
    if status == HTTPStatus.FORBIDDEN:
        return ProviderRefusedError(
            "The payment provider does not let this service's API key (PROVIDER_SECRET_KEY) do this: it lacks a "
            f"permission ({code}, request {request_id}).",
            of_key=True,
        )
    return ProviderRefusedError(
        f"The payment provider refused the request (status {status}, {code}, request {request_id})."
    )


def unusable(why: str, request_id: str | None = None) -> ProviderUnavailableError:
    """The error for an answer that is not what it must be; ``why``, which holds nothing of it, goes to the log."""
    _log.warning("the payment provider's answer cannot be used: %s, request %s", why, _word(request_id))
    return ProviderUnavailableError("The payment provider's answer cannot be used.")


def is_unknown_customer(error: "StripeError") -> bool:
    """Whether the provider says that it has no such customer."""
    return _words(error, "code") == "resource_missing" and _words(error, "param") in ("customer", _NO_WORD)


def _is_passing(status: int, code: str) -> bool:
    """Whether the same request may well succeed later: rate limits, old and new, and locks."""
    return status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.CONFLICT) or code == "rate_limit"


def _words(error: "StripeError", name: str) -> str:
    body = error.json_body
    details = body.get("error") if isinstance(body, dict) else None
    return _word(details.get(name) if isinstance(details, dict) else None)


def _word(value: object) -> str:
    """The value if it is a plain word, so that no message and no address gets into logs and answers."""
    return value if isinstance(value, str) and _SAFE_WORD.fullmatch(value) else _NO_WORD


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
