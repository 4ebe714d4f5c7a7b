"""Lists, a page at a time."""

from datetime import datetime
from typing import Generic, TypeVar

import msgspec

Row = TypeVar("Row")


class Page(msgspec.Struct, Generic[Row], frozen=True, rename="camel"):
    """One page of a list; ``next_cursor`` is null on the last."""

    data: list[Row]
    next_cursor: str | None


class Count(msgspec.Struct, frozen=True):
    """How many there are; with ``and_more`` there are more than this ``number``, and nobody has counted them."""

    number: int
    and_more: bool = False


class Room(msgspec.Struct, frozen=True):
    """How many things of a kind a tenant has, and how many its plan allows; None is no limit."""

    used: Count
    most: int | None

    @property
    def is_full(self) -> bool:
        """Whether the plan is known to allow no more."""
        return self.most is not None and self.used.number >= self.most


def count_up_to(number: int, most: int) -> Count:
    """The count of something of which one more than ``most`` were counted at the most."""
    return Count(min(number, most), number > most)


class SoughtPage(Page[Row], Generic[Row], frozen=True):
    """One page of a list for which only so many rows were looked at, whether or not they fit.

    Where it ends for that, ``looked_at`` is how many these were, ``looked_back_to`` the moment of the last of them, and
    ``next_cursor`` leads on there.
    """

    looked_at: int = 0
    looked_back_to: datetime | None = None
