"""Rate limits: what a caller has left of each, and the shares of them that a process takes and gives back.

A limit of N says: in no `WINDOW` seconds are more than N requests let through. Requests are counted by whole seconds
of the Unix epoch, so each counts for as long as any 60 seconds could hold it: for `SLOTS` seconds, its own among them.
"""

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

WINDOW: Final = 60
"""Seconds."""
SLOTS: Final = WINDOW + 1
"""Seconds that count together."""
_SHARES_OF_A_LIMIT: Final = 100
_CAN_BE_SPARED: Final = 2 * _SHARES_OF_A_LIMIT
_NEVER: Final = -SLOTS


class Policy(StrEnum):
    """Whose requests a limit counts: all of a tenant's together, or those of one key or user."""

    TENANT = "tenant"
    KEY = "key"


class Quota(msgspec.Struct, frozen=True, gc=False):
    """What is left of one limit, as far as this process knows; after ``reset`` seconds more comes back."""

    policy: Policy
    limit: int
    remaining: int
    reset: int


RateLimitStatus = tuple[Quota, ...]
"""Where a caller stands with each of its limits, the tenant's first; empty where there are none."""


class Granted(NamedTuple):
    """What came of a taking: ``number`` requests, ``total`` counted now with these, and the second that frees more.

    ``relief`` is the counted second whose end in the window lets further requests through.
    """

    number: int
    total: int
    relief: int


class Taking(NamedTuple):
    """What a process asks of one subject's count: ``wanted`` more requests under ``limit``.

    What was ``unused`` of the share of the second ``taken_in`` goes back with it. Of the wanted, ``missing`` are for
    requests that wait, and must be had of the subject ``within`` as well: that subject is asked for as many fewer as
    cannot be granted here.
    """

    subject: str
    limit: int
    wanted: int
    taken_in: int
    unused: int
    missing: int = 0
    within: str = ""


class Share:
    """The requests that one process may let through under one limit, in one second.

    A share is good in the second that it was taken in. It is as large as what the second before let through, and grows
    while it is used up, to a hundredth of the limit: that is what a process may hold that others lack.
    """

    __slots__ = ("_shut_in", "_spoiled", "_step", "_taken", "free", "held", "left", "limit", "policy", "relief",
                 "second", "subject", "within")  # fmt: skip

    def __init__(self, policy: Policy, subject: str, limit: int, within: str = "") -> None:
        """``within`` is the subject that counts the same requests together with those of others."""
        self.policy = policy
        self.subject = subject
        self.within = within
        self.limit = limit
        self.second = _NEVER
        """The second in which the share is good."""
        self.left = 0
        self.free = 0
        """What nobody had taken at the last look."""
        self.relief = _NEVER
        self.held = 0
        """How many requests wait for this share, and how many takings of it are under way."""
        self._spoiled = 0
        self._taken = 0
        self._step = 1
        self._shut_in = _NEVER

    @property
    def unused(self) -> int:
        """What has been taken and not let through."""
        return self.left + self._spoiled

    @property
    def has_expired(self) -> bool:
        """Whether nothing counts any more that was taken of it; so it is with a new one."""
        return self.second == _NEVER

    def expire(self) -> None:
        """What was taken is past the window."""
        self.second = _NEVER

    def set_limit(self, limit: int) -> None:
        """The plan has changed. What was taken under a higher limit is let through no more."""
        if limit < self.limit:
            self._spoiled += self.left
            self.left = 0
        self.free = max(0, self.free + limit - self.limit)
        self.limit = limit
        self._shut_in = _NEVER

    def has_some(self, second: int) -> bool:
        """Whether a request may be let through now."""
        return self.left > 0 and self.second == second

    def is_shut(self, second: int) -> bool:
        """Whether there is nothing more to be had in this second."""
        return self.limit == 0 or (self._shut_in == second and self.left == 0)

    def is_used_up(self, second: int) -> bool:
        """Whether nothing is to be had in this second, going by the last look, which may be of an earlier one.

        As others may have given back meanwhile, this is no ground to refuse a request.
        """
        return self.free == 0 and self.unused == 0 and self.relief + SLOTS > second

    def put_back(self, second: int) -> None:
        """A request that this share of ``second`` was counted for does not come. Too late, it stays counted."""
        if self.second == second:
            self.left += 1

    def is_foreseen(self, second: int) -> bool:
        """Whether to take a share before anybody waits for it: it was used a second ago, and others can spare it."""
        return self.limit >= _CAN_BE_SPARED and self.second == second - 1 and self._taken > self.unused

    def ask(self, second: int, demand: int) -> Taking | None:
        """What to take for so many waiting requests, none of them if it is foreseen; None if the share has enough.

        From here on what was left of an earlier second is gone; `receive` follows.
        """
        foreseen = self.is_foreseen(second)
        at_hand = self.left if self.second == second else 0
        gone = 0 if self.second == second else self.unused
        if demand <= at_hand and not gone and not foreseen:
            return None
        self._step = self._next_step(second)
        missing = max(0, demand - at_hand)
        wanted = max(missing, self._step) if missing or foreseen else 0
        taking = Taking(self.subject, self.limit, wanted, self.second, gone, missing, self.within)
        if self.second != second:
            self.left = self._spoiled = self._taken = 0
        return taking

    def receive(self, second: int, granted: Granted) -> None:
        """What `ask` asked for in ``second`` has been taken."""
        if self.second != second:
            self.second = second
            self.left = self._taken = 0
        self.left += granted.number
        self._taken += granted.number
        self.free = max(0, self.limit - granted.total)
        self.relief = granted.relief
        if self.free == 0:
            self._shut_in = second

    def surrender(self) -> Taking:
        """Give everything back, also what is good still."""
        taking = Taking(self.subject, self.limit, 0, self.second, self.unused)
        self._taken -= self.unused
        self.free = min(self.limit, self.free + self.unused)
        self.left = self._spoiled = 0
        return taking

    def quota(self, second: int) -> Quota:
        """What is left of the limit. As others take too, it may be less."""
        if self.limit == 0:
            return Quota(self.policy, 0, 0, WINDOW)
        reset = self.relief + SLOTS - second
        return Quota(self.policy, self.limit, self.left + self.free, max(1, reset))

    def _next_step(self, second: int) -> int:
        most = max(1, self.limit // _SHARES_OF_A_LIMIT)
        if self.second == second:
            return min(self._step * 2, most)
        used = self._taken - self.unused if self.second == second - 1 else 0
        return max(1, min(used + used // 4, most))
