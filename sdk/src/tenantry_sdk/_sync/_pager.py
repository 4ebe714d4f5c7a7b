# Generated from _async/_pager.py by sdk/make_sync.py: edit that file.
"""Lists that fetch their pages on demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from tenantry_sdk._request import Call
from tenantry_sdk._response import Model
from tenantry_sdk._sync._engine import Engine

T = TypeVar("T")

_FETCH: Final = "_fetch"


class Page(Model, Generic[T], frozen=True, kw_only=True):
    """A page of a list. ``next_cursor`` is None on the last one."""

    data: list[T]
    """The items of the page."""
    next_cursor: str | None
    """The cursor of the next page, for the argument ``cursor`` of the list."""

    @property
    def has_next(self) -> bool:
        """Whether there is another page."""
        return self.next_cursor is not None

    def next(self) -> Page[T]:
        """Fetch the next page. Raises `RuntimeError` on the last one: check `has_next`."""
        if not self.has_next:
            raise RuntimeError("There is no next page: check has_next first.")
        page: Page[T] = vars(self)[_FETCH](self.next_cursor)
        return page


class Pager(Generic[T]):
    """All items of a list; pages are fetched on demand. Each iteration fetches them again."""

    def __init__(self, engine: Engine, path: str, query: dict[str, str], kind: type[T]) -> None:
        self._engine = engine
        self._path = path
        self._query = query
        self._kind: type[Page[T]] = Page[kind]  # type: ignore[valid-type]

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            for item in page.data:
                yield item

    def pages(self) -> Iterator[Page[T]]:
        """Iterate over the pages, each with the cursor of the next one."""
        page = self.first_page()
        yield page
        while page.has_next:
            page = page.next()
            yield page

    def first_page(self) -> Page[T]:
        """Fetch a single page, the one at the given cursor."""
        return self._page(self._query)

    def __repr__(self) -> str:
        return f"<Pager of {self._path}>"

    def _page(self, query: dict[str, str]) -> Page[T]:
        response = self._engine.send(Call("GET", self._path, query))
        page = response.parse(self._kind)
        vars(page)[_FETCH] = self._after
        return page

    def _after(self, cursor: str) -> Page[T]:
        return self._page({**self._query, "cursor": cursor})
