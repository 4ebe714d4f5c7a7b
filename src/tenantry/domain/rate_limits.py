"""Rate limits: the remaining quota of a caller, and the shares of a limit that a process reserves
and returns.

A limit of N allows at most N requests in any `WINDOW` seconds. Requests are counted by whole
seconds of the Unix epoch, so each counts as long as any 60 seconds could contain it: for `SLOTS`
seconds, including its own.
"""

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

WINDOW: Final = 60
"""Seconds."""
SLOTS: Final = WINDOW + 1
"""Seconds that are counted together."""
USER_REQUESTS_PER_MINUTE: Final = 600
"""Of one user in all tenants, on routes that need no tenant: no plan has a limit for them."""
USER_CREATIONS_PER_MINUTE: Final = 60
"""Of tenants, by one user."""
_SHARES_OF_A_LIMIT: Final = 100
_CAN_BE_SPARED: Final = 2 * _SHARES_OF_A_LIMIT
_NEVER: Final = -SLOTS


class Policy(StrEnum):
    """Whether a limit counts all requests of a tenant, or those of one key or user."""

    TENANT = "tenant"
    KEY = "key"


class Quota(msgspec.Struct, frozen=True, gc=False):
    """The remaining requests of one limit, as far as this process knows; ``reset`` is when more
    become available.
    """

    policy: Policy
    limit: int
    remaining: int
    reset: int


RateLimitStatus = tuple[Quota, ...]
"""A caller's quotas, the tenant's first; empty without limits."""


class ShareGrant(NamedTuple):
    """The answer to a `ShareRequest`: ``number`` requests granted, ``total`` counted now including
    these.

    ``frees_at`` is the counted second whose end in the window allows further requests.
    """

    number: int
    total: int
    frees_at: int


class ShareRequest(NamedTuple):
    """A request of a process for ``wanted`` more requests of a subject under ``limit``.

    It returns the ``unused`` part of the share of the second ``taken_in``. Of the wanted,
    ``missing`` are for requests that wait, and are needed of the subject ``within`` as well, which
    is asked for as many fewer as this one cannot grant.
    """

    subject: str
    limit: int
    wanted: int
    taken_in: int
    unused: int
    missing: int = 0
    within: str = ""


class Share:
    """The requests that one process may accept under one limit, in one second.

    A share is valid in the second in which it was granted. It is as large as the requests accepted
    in the second before, and doubles while it is used up, to at most a hundredth of the limit: so
    much a process may withhold from others.
    """

    __slots__ = (
        "__weakref__",
        "_exhausted_in",
        "_step",
        "_taken",
        "_unusable",
        "free",
        "frees_at",
        "left",
        "limit",
        "policy",
        "second",
        "subject",
        "within",
    )

    def __init__(self, policy: Policy, subject: str, limit: int, within: str = "") -> None:
        """``within`` is the subject that counts the same requests together with others."""
        self.policy = policy
        self.subject = subject
        self.within = within
        self.limit = limit
        self.second = _NEVER
        """The second in which the share is valid."""
        self.left = 0
        self.free = 0
        """The part of the limit that was available at the last answer."""
        self.frees_at = _NEVER
        self._unusable = 0
        self._taken = 0
        self._step = 1
        self._exhausted_in = _NEVER

    @property
    def unused(self) -> int:
        """The granted requests that were not accepted."""
        return self.left + self._unusable

    def set_limit(self, limit: int) -> None:
        """Set the limit of another plan. A share of a higher limit is no longer valid."""
        if limit < self.limit:
            self._unusable += self.left
            self.left = 0
        self.free = max(0, self.free + limit - self.limit)
        self.limit = limit
        self._exhausted_in = _NEVER

    def is_available(self, second: int) -> bool:
        """Whether a request may be accepted now."""
        return self.left > 0 and self.second == second

    def is_exhausted(self, second: int) -> bool:
        """Whether no request can be granted in this second."""
        return self.limit == 0 or (self._exhausted_in == second and self.left == 0)

    def seems_exhausted(self, second: int) -> bool:
        """Whether the last answer, perhaps of an earlier second, left nothing for this second.

        Other processes may have returned some since, so this is no reason to reject a request.
        """
        return self.free == 0 and self.unused == 0 and self.frees_at + SLOTS > second

    def refund(self, second: int) -> None:
        """Return one request of ``second`` to the share; after that second it stays counted."""
        if self.second == second:
            self.left += 1

    def should_prefetch(self, second: int) -> bool:
        """Whether to request a share before it is needed: it was used a second ago, and the limit
        is large.
        """
        return (
            self.limit >= _CAN_BE_SPARED and self.second == second - 1 and self._taken > self.unused
        )

    def request(self, second: int, demand: int) -> ShareRequest | None:
        """Return the request for so many waiting requests (0 to prefetch); None if the share
        suffices.

        Discards the rest of an earlier second; `receive` must follow.
        """
        prefetch = self.should_prefetch(second)
        available = self.left if self.second == second else 0
        gone = 0 if self.second == second else self.unused
        if demand <= available and not gone and not prefetch:
            return None
        self._step = self._next_step(second)
        missing = max(0, demand - available)
        wanted = max(missing, self._step) if missing or prefetch else 0
        request = ShareRequest(
            self.subject, self.limit, wanted, self.second, gone, missing, self.within
        )
        if self.second != second:
            self.left = self._unusable = self._taken = 0
        return request

    def receive(self, second: int, granted: ShareGrant) -> None:
        """Add the grant for the request that `Share.request` returned in ``second``."""
        if self.second != second:
            self.second = second
            self.left = self._taken = 0
        self.left += granted.number
        self._taken += granted.number
        self.free = max(0, self.limit - granted.total)
        self.frees_at = granted.frees_at
        if self.free == 0:
            self._exhausted_in = second

    def release(self) -> ShareRequest:
        """Return the request that releases the whole share, valid or not."""
        request = ShareRequest(self.subject, self.limit, 0, self.second, self.unused)
        self._taken -= self.unused
        self.free = min(self.limit, self.free + self.unused)
        self.left = self._unusable = 0
        return request

    def quota(self, second: int) -> Quota:
        """Return the remaining quota; other processes may have used some of it."""
        if self.limit == 0:
            return Quota(self.policy, 0, 0, WINDOW)
        reset = self.frees_at + SLOTS - second
        return Quota(self.policy, self.limit, self.left + self.free, max(1, reset))

    def _next_step(self, second: int) -> int:
        most = max(1, self.limit // _SHARES_OF_A_LIMIT)
        if self.second == second:
            return min(self._step * 2, most)
        used = self._taken - self.unused if self.second == second - 1 else 0
        return max(1, min(used + used // 4, most))
