"""The page of a list that an address asks for; `numbered_pager` of templates writes addresses."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from tenantry.dashboard.context import PageContext
from tenantry.db.numbered_pages import PageRequest
from tenantry.db.pagination import decode_cursor

_LAST: Final = "last"
_MOST_DIGITS: Final = 6


def requested_page(ctx: PageContext, size: int) -> PageRequest:
    """Return the page of ``size`` rows that the query asks for: by ``cursor`` the rows older than
    it, by ``before`` those newer; ``page`` is a number or "last"; ``day`` is in UTC.

    A number or day that is none means the first page. Raises `InvalidCursorError`.
    """
    if cursor := ctx.query("cursor"):
        return PageRequest(size, after=decode_cursor(cursor))
    if before := ctx.query("before"):
        return PageRequest(size, before=decode_cursor(before))
    if day := ctx.query("day"):
        return PageRequest(size, until=_end_of_day(day))
    number = ctx.query("page")
    if number == _LAST:
        return PageRequest(size, is_last=True)
    return PageRequest(size, number=_page_number(number))


def _page_number(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return max(1, int(text)) if is_number else 1


def _end_of_day(text: str) -> datetime | None:
    try:
        return datetime.combine(date.fromisoformat(text) + timedelta(days=1), time(), UTC)
    except (ValueError, OverflowError):
        return None
