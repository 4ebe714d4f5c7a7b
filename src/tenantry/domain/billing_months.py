"""The months from billing day to billing day of a subscription, in UTC."""

from calendar import monthrange
from datetime import MAXYEAR, datetime
from typing import Final

import msgspec

from tenantry.common.clock import EPOCH_MAX, from_epoch

Month = tuple[int, int]
"""A month: its first second since the Unix epoch, and the first one after it."""
SETTLED_AFTER: Final = 62 * 86_400
"""Seconds after an anchor from which on only its own billing days count: a month that ran when it
came, and the rest up to its first billing day after that.
"""
_MONTHS: Final = 12


class BillingMonths(msgspec.Struct, frozen=True, omit_defaults=True):
    """The months of a subscription whose billing days follow from its ``anchor``, a second since
    the Unix epoch (the provider's ``billing_cycle_anchor``).

    ``running`` is the month that ran when the anchor changed. It ends as it was to end; what is
    left up to the next billing day is a month of its own. None once it has no effect any more.
    """

    anchor: int
    running: Month | None = None

    def at(self, second: float) -> Month:
        """Return the month that runs at a second."""
        start, end = _month_of(self.anchor, second)
        if self.running is None or second < self.running[0]:
            return start, end
        return self.running if second < self.running[1] else (max(start, self.running[1]), end)

    def moved_to(self, anchor: int, second: int) -> "BillingMonths":
        """Return the months after an event of this second that reports an anchor.

        An anchor that the provider resets is the second of the reset. So an event that is lost
        between makes no difference.
        """
        running = self.running if anchor == self.anchor else self.at(min(anchor, second))
        if running is None or second >= _billing_day_from(anchor, running[1]):
            return BillingMonths(anchor)
        return BillingMonths(anchor, running)


def unclipped(anchor: int, day: int) -> int:
    """Return an anchor of the billing days that an ``anchor`` means for a wanted day of the month:
    the first one may be in a month that lacks it, and the month before such a one has it.
    """
    first = from_epoch(anchor)
    if day <= first.day or first.day < monthrange(first.year, first.month)[1]:
        return anchor
    earlier = from_epoch(_billing_day(first, -1))
    return int(earlier.replace(day=day).timestamp())


def _billing_day_from(anchor: int, second: int) -> int:
    """Return the first billing day at a second or after it."""
    start, end = _month_of(anchor, second)
    return start if start == second else end


def _month_of(anchor: int, second: float) -> Month:
    first, now = from_epoch(anchor), from_epoch(int(second))
    months = (now.year - first.year) * _MONTHS + now.month - first.month
    if _billing_day(first, months) > second:
        months -= 1
    return _billing_day(first, months), _billing_day(first, months + 1)


def _billing_day(first: datetime, months: int) -> int:
    """Return the billing day so many months after the ``first``: always counted from that, because
    from 28 February one would not get back to the 31st.
    """
    year, month = divmod(first.year * _MONTHS + first.month - 1 + months, _MONTHS)
    if year > MAXYEAR:
        return EPOCH_MAX
    day = min(first.day, monthrange(year, month + 1)[1])
    return int(first.replace(year=year, month=month + 1, day=day).timestamp())
