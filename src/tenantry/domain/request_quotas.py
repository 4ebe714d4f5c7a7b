"""Quotas of requests: the shares that a process reserves of a tenant's quota, so that most requests
need no query.
"""

from typing import Final

from tenantry.domain.entitlements import Usage, UsagePeriod, remaining_of

IDLE_SECONDS: Final = 60
"""After so many seconds without a request a process returns its share."""
_PARTS: Final = 100
_LARGEST_SHARE: Final = 10_000
_GROWTH: Final = 8
_LONG: Final = 30
"""Seconds for which a share should last."""
_NEVER: Final = -_LONG
_NO_PERIOD: Final = UsagePeriod(_NEVER, _NEVER)


class QuotaShare:
    """The requests of a tenant that one process may still accept in a period.

    They are counted as used when they are reserved: a process that is killed loses them, and no
    failure allows more than the quota. So a share is at most a hundredth of the remaining
    quota. It begins with one request, and grows until it lasts for half a minute.
    """

    __slots__ = (
        "_exhausted_in",
        "_reserved_in",
        "_step",
        "_valid_until",
        "left",
        "limit",
        "period",
        "used_in",
    )

    def __init__(self, limit: int | None) -> None:
        """``limit`` is None without one."""
        self.limit = limit
        self.left = 0
        self.period = _NO_PERIOD
        """The period of which the share was reserved."""
        self.used_in = _NEVER
        """The second of the last request."""
        self._step = 1
        self._reserved_in = _NEVER
        self._exhausted_in = _NEVER
        self._valid_until = _NEVER

    def set_limit(self, limit: int | None) -> None:
        """Set the limit of another plan. The share of the former limit is no longer valid."""
        self.limit = limit
        self._valid_until = _NEVER

    def take(self, second: int) -> bool:
        """Use one request of the share; return False if another share must be reserved."""
        self.used_in = second
        if self.left == 0 or second >= self._valid_until:
            return False
        self.left -= 1
        return True

    def is_exhausted(self, second: int) -> bool:
        """Whether the quota was used up in this second already."""
        return self._exhausted_in == second and second < self._valid_until

    def is_idle(self, second: int) -> bool:
        """Whether the share has not been used lately; also after the clock was set back."""
        return not 0 <= second - self.used_in < IDLE_SECONDS

    def release(self) -> int:
        """Give up the share; return how many requests of its period it still had."""
        unused = self.left
        self.left = 0
        return unused

    def wanted(self, usage: Usage, waiting: int, second: int) -> int:
        """Return how many requests to reserve for ``waiting`` ones and for later ones, of what is
        left.
        """
        self._step = self._next_step(second)
        remaining = remaining_of(self.limit, usage.used)
        if remaining is None:
            return max(waiting, self._step)
        return min(max(waiting, min(self._step, remaining // _PARTS)), remaining)

    def receive(self, period: UsagePeriod, reserved: int, waiting: int, second: int) -> None:
        """Add what was reserved for ``waiting`` requests and for later ones."""
        self.period = period
        self.left += reserved
        self._valid_until = period.end
        self._reserved_in = second
        self._exhausted_in = second if reserved < waiting else _NEVER

    def _next_step(self, second: int) -> int:
        lasted = second - self._reserved_in
        return min(self._step * _GROWTH, _LARGEST_SHARE) if lasted < _LONG else self._step
