"""Lists that fetch their pages on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from tenantry_sdk._async._engine import AsyncEngine
from tenantry_sdk._models import Page
from tenantry_sdk._request import Call

T = TypeVar("T")


class AsyncPager(Generic[T]):
    """All items of a list; pages are fetched on demand. Each iteration fetches them again."""

    def __init__(self, engine: AsyncEngine, path: str, query: dict[str, str], kind: Any) -> None:  # noqa: ANN401
        self._engine = engine
        self._path = path
        self._query = query
        self._kind = Page[kind]

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for item in page.data:
                yield item

    async def pages(self) -> AsyncIterator[Page[T]]:
        """Iterate over the pages, each with the cursor of the next one."""
        query = self._query
        while True:
            page = await self._page(query)
            yield page
            if page.next_cursor is None:
                return
            query = {**query, "cursor": page.next_cursor}

    async def first_page(self) -> Page[T]:
        """Fetch a single page, the one at the given cursor."""
        return await self._page(self._query)

    async def _page(self, query: dict[str, str]) -> Page[T]:
        response = await self._engine.send(Call("GET", self._path, query))
        page: Page[T] = response.parse(self._kind)
        return page
