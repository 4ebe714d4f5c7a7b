"""Lists, a page at a time."""

from typing import Generic, TypeVar

import msgspec

Row = TypeVar("Row")


class Page(msgspec.Struct, Generic[Row], frozen=True, rename="camel"):
    """One page of a list; ``next_cursor`` is null on the last."""

    data: list[Row]
    next_cursor: str | None
