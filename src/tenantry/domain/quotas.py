"""Quotas for people: how much is left of a metered feature, and how long that lasts."""

from datetime import datetime
from typing import Final, NamedTuple

from tenantry.common.clock import from_epoch
from tenantry.domain.entitlements import Usage, remaining_of
from tenantry.domain.features import Feature

_NEARLY: Final = 80
"""Percent. The owner gets a mail at the same mark (`quota_notices`)."""
_SHORTEST_MEASURED: Final = 3600
"""Seconds of a period after which its use says something of the rest."""


class Quota(NamedTuple):
    """A metered feature that a tenant has, and its use in this period; ``limit`` is None without
    one.
    """

    feature: Feature
    limit: int | None
    usage: Usage

    @property
    def used(self) -> int:
        return self.usage.used

    @property
    def remaining(self) -> int | None:
        """The rest in this period; None without a limit."""
        return remaining_of(self.limit, self.used)

    @property
    def resets_at(self) -> datetime:
        """When the next period begins."""
        return from_epoch(self.usage.period.end)

    @property
    def is_used_up(self) -> bool:
        return self.remaining == 0

    @property
    def is_nearly_used_up(self) -> bool:
        """Whether at least 80 percent are used."""
        return self.limit is not None and self.used * 100 >= self.limit * _NEARLY

    def runs_out_at(self, now: datetime) -> datetime | None:
        """Return when nothing is left, if use goes on as it was on average since the period began.

        None if that is not before the next period, is so already, or the period began less than an
        hour ago.
        """
        passed = now.timestamp() - self.usage.period.start
        if not self.remaining or not self.used or passed < _SHORTEST_MEASURED:
            return None
        end = now.timestamp() + self.remaining * passed / self.used
        return from_epoch(int(end)) if end < self.usage.period.end else None
