# Generated from _async/_pager.py by sdk/make_sync.py: edit that file.
"""Lists that fetch their pages on demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from tenantry_sdk._models import Page
from tenantry_sdk._request import Call
from tenantry_sdk._sync._engine import Engine

T = TypeVar("T")


class Pager(Generic[T]):
    """All items of a list; pages are fetched on demand. Each iteration fetches them again."""

    def __init__(self, engine: Engine, path: str, query: dict[str, str], kind: Any) -> None:  # noqa: ANN401
        self._engine = engine
        self._path = path
        self._query = query
        self._kind = Page[kind]

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            for item in page.data:
                yield item

    def pages(self) -> Iterator[Page[T]]:
        """Iterate over the pages, each with the cursor of the next one."""
        query = self._query
        while True:
            page = self._page(query)
            yield page
            if page.next_cursor is None:
                return
            query = {**query, "cursor": page.next_cursor}

    def first_page(self) -> Page[T]:
        """Fetch a single page, the one at the given cursor."""
        return self._page(self._query)

    def _page(self, query: dict[str, str]) -> Page[T]:
        response = self._engine.send(Call("GET", self._path, query))
        page: Page[T] = response.parse(self._kind)
        return page
