"""Lists that fetch their pages on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Generic, TypeVar

from tenantry_sdk._async._engine import AsyncEngine
from tenantry_sdk._request import Call
from tenantry_sdk._response import Model

T = TypeVar("T")

_FETCH: Final = "_fetch"


class AsyncPage(Model, Generic[T], frozen=True, kw_only=True):
    """A page of a list. ``next_cursor`` is None on the last one."""

    data: list[T]
    """The items of the page."""
    next_cursor: str | None
    """The cursor of the next page, for the argument ``cursor`` of the list."""

    @property
    def has_next(self) -> bool:
        """Whether there is another page."""
        return self.next_cursor is not None

    async def next(self) -> AsyncPage[T]:
        """Fetch the next page. Raises `RuntimeError` on the last one: check `has_next`."""
        if not self.has_next:
            raise RuntimeError("There is no next page: check has_next first.")
        page: AsyncPage[T] = await vars(self)[_FETCH](self.next_cursor)
        return page


class AsyncPager(Generic[T]):
    """All items of a list; pages are fetched on demand. Each iteration fetches them again."""

    def __init__(
        self, engine: AsyncEngine, path: str, query: dict[str, str], kind: type[T]
    ) -> None:
        self._engine = engine
        self._path = path
        self._query = query
        self._kind: type[AsyncPage[T]] = AsyncPage[kind]  # type: ignore[valid-type]

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for item in page.data:
                yield item

    async def pages(self) -> AsyncIterator[AsyncPage[T]]:
        """Iterate over the pages, each with the cursor of the next one."""
        page = await self.first_page()
        yield page
        while page.has_next:
            page = await page.next()
            yield page

    async def first_page(self) -> AsyncPage[T]:
        """Fetch a single page, the one at the given cursor."""
        return await self._page(self._query)

    def __repr__(self) -> str:
        return f"<AsyncPager of {self._path}>"

    async def _page(self, query: dict[str, str]) -> AsyncPage[T]:
        response = await self._engine.send(Call("GET", self._path, query))
        page = response.parse(self._kind)
        vars(page)[_FETCH] = self._after
        return page

    async def _after(self, cursor: str) -> AsyncPage[T]:
        return await self._page({**self._query, "cursor": cursor})
