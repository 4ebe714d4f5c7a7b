# Generated from _async/_events.py by sdk/make_sync.py: edit that file.
"""The change feed: its pages, and following it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tenantry_sdk._events import ChangeEvent, EventPage, page_of
from tenantry_sdk._log import logger
from tenantry_sdk._options import CallOptions
from tenantry_sdk._request import Call, Strings, listed, query
from tenantry_sdk._retry import may_pass, wait_before
from tenantry_sdk._sync._compat import sleep
from tenantry_sdk._sync._engine import Engine
from tenantry_sdk._sync._resources import Resource
from tenantry_sdk.errors import APIError, TenantryError

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PATH: Final = "/api/v1/operator/events"
_NOW: Final = "now"
_LONGEST_WAIT: Final = 20
_EARLY: Final = 0.5
"""Before this share of the wait, an empty answer is early."""


class ChangeEvents(Resource):
    """The changes of all tenants, in an order that a reader can continue from."""

    def list(
        self,
        *,
        after: str | None = None,
        types: Strings | None = None,
        org_id: str | None = None,
        limit: int | None = None,
        wait: int = 0,
        **options: Unpack[CallOptions],
    ) -> EventPager:
        """List the events after a cursor until now, in pages of at most ``limit``.

        ``after`` is the ``next_cursor`` of a page, the id of an event, or ``now``, whose
        ``first_page()`` has a cursor of later changes; without it the list begins with the oldest
        event that is kept. ``types`` are types such as ``api_key.revoked``, or all of a kind, such
        as ``member.*``; without them the events are all but ``audit.*``. ``wait`` is how many
        seconds, at most 20, the service waits for the first event of a page; the time limits of a
        request count from then on.

        A page raises `CursorExpiredError` if events after the cursor are not kept any more.
        """
        filters = _filters(types, org_id, limit)
        return EventPager(self._engine.with_options(options), after, wait, filters)

    def follow(
        self,
        *,
        after: str | None = None,
        types: Strings | None = None,
        org_id: str | None = None,
        limit: int | None = None,
        wait: int = _LONGEST_WAIT,
        **options: Unpack[CallOptions],
    ) -> EventFollower:
        """Return the events as they come, without an end: iterate over the result.

        The arguments are those of `list`. The options apply to each request, except ``retries``: it
        retries for as long as the service is unreachable.
        """
        if wait < 1:
            raise ValueError("wait must be 1 to 20 seconds")
        engine = self._engine.with_options({**options, "retries": 0})
        return EventFollower(engine, after, wait, _filters(types, org_id, limit))


class EventPager:
    """The events from a cursor until now; pages are fetched on demand. Each iteration fetches them
    again. `operator.events.follow` continues without an end.
    """

    def __init__(
        self, engine: Engine, after: str | None, wait: int, filters: dict[str, str]
    ) -> None:
        self._engine = engine
        self._after = after
        self._wait = wait
        self._filters = filters

    def __iter__(self) -> Iterator[ChangeEvent]:
        for page in self.pages():
            for event in page.data:
                yield event

    def pages(self) -> Iterator[EventPage]:
        """Iterate over the pages. The last one is empty; later changes follow its
        ``next_cursor``.
        """
        page = self.first_page()
        yield page
        while page.data:
            page = _read(self._engine, page.next_cursor, self._wait, self._filters)
            yield page

    def first_page(self) -> EventPage:
        """Fetch a single page, the one at the given cursor."""
        return _read(self._engine, self._after, self._wait, self._filters)

    def __repr__(self) -> str:
        return f"<EventPager of {_PATH}>"


class EventFollower:
    """The events of the change feed as they come, without an end.

    Iterate over it, or over its `pages`. It asks again after a lost connection and after 408, 429,
    502, 503 and 504, for as long as they last, and neither repeats nor leaves out an event. To
    continue after a restart of your program, store `cursor` together with the effect of the event,
    and pass it as ``after``. One loop at a time may iterate; another one continues after `cursor`.
    """

    def __init__(
        self, engine: Engine, cursor: str | None, wait: int, filters: dict[str, str]
    ) -> None:
        self._engine = engine
        self._cursor = cursor
        self._wait = wait
        self._filters = filters
        self._failures = 0

    @property
    def cursor(self) -> str | None:
        """The place after the last event or page that you got; before the first one, ``after``.

        It also moves on while there are no events for you.
        """
        return self._cursor

    def __repr__(self) -> str:
        return f"<EventFollower at {self._cursor}>"

    def __iter__(self) -> Iterator[ChangeEvent]:
        for page in self.pages():
            for event in page.data:
                self._cursor = event.id
                yield event
            self._cursor = page.next_cursor

    def pages(self) -> Iterator[EventPage]:
        """Iterate over pages of at least one event, and over an empty page whenever there was no
        event for ``wait`` seconds.
        """
        while True:
            page = self._next_page()
            self._cursor = page.next_cursor
            yield page

    def _next_page(self) -> EventPage:
        while True:
            # "now" must become a place at once: an answer that is lost later would move it
            wait = 0 if self._cursor == _NOW else self._wait
            began = time.monotonic()
            try:
                page = _read(self._engine, self._cursor, wait, self._filters)
            except TenantryError as error:
                if not may_pass(error):
                    raise
                self._pause(error)
                continue
            if page.data or time.monotonic() - began >= wait * _EARLY:
                self._failures = 0
            else:
                self._pause(None)  # the process that answered is stopping
            return page

    def _pause(self, error: TenantryError | None) -> None:
        self._failures += 1
        retry_after = error.retry_after if isinstance(error, APIError) else None
        seconds = wait_before(self._failures, retry_after, backoff=self._engine.backoff)
        reason = "the service is stopping" if error is None else error
        logger.warning("The change feed is read again in %.1f s: %s", seconds, reason)
        sleep(seconds)


def _read(engine: Engine, after: str | None, wait: int, filters: dict[str, str]) -> EventPage:
    parameters = {**query(after=after, wait=wait or None), **filters}
    return page_of(engine.send(Call("GET", _PATH, parameters, wait=wait)))


def _filters(types: Strings | None, org_id: str | None, limit: int | None) -> dict[str, str]:
    patterns = None if types is None else ",".join(listed(types, "types"))
    return query(types=patterns, org_id=org_id, limit=limit)
