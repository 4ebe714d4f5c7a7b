"""Lists in pages, and counts of their rows."""

from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

import msgspec

Row = TypeVar("Row")


class Window(NamedTuple):
    """A page of a tenant's projects: up to ``limit`` after a position, newest first."""

    limit: int
    after_at: datetime | None = None
    after_id: str | None = None


class Page(msgspec.Struct, Generic[Row], frozen=True, rename="camel"):
    """One page of a list; ``next_cursor`` is null on the last."""

    data: list[Row]
    next_cursor: str | None


class SearchPage(Page[Row], Generic[Row], frozen=True):
    """One page of a bounded search, which examines only so many rows.

    Where it ends for that reason, ``looked_at`` is their number, ``looked_back_to`` the time of the last of them, and
    ``next_cursor`` continues there.
    """

    looked_at: int = 0
    looked_back_to: datetime | None = None


class Count(msgspec.Struct, frozen=True):
    """A number of rows; with ``and_more`` there are more than ``number``."""

    number: int
    and_more: bool = False


def count_up_to(number: int, most: int) -> Count:
    """Return the count of rows of which at most ``most`` + 1 were counted."""
    return Count(min(number, most), number > most)


class PlanLimit(msgspec.Struct, frozen=True):
    """A tenant's use of a plan's limit; None is no limit."""

    used: Count
    most: int | None

    @property
    def is_full(self) -> bool:
        """Whether the plan allows no more."""
        return self.most is not None and self.used.number >= self.most
