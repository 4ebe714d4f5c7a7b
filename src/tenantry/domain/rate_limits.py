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
_NEVER: Final = -SLOTS


class ShareTerms(NamedTuple):
    """How much of a limit a process reserves at a time, and how long that is valid."""

    seconds: int
    """How long a share is valid. Its requests count in the last of these seconds."""
    parts: int
    """A share is at most one of so many parts of the limit: so much a process may withhold from
    others.
    """
    growth: int
    """How many times as large the next share is if one is used up while it is valid."""


NEAR_DATABASE: Final = ShareTerms(seconds=1, parts=100, growth=2)
DISTANT_DATABASE: Final = ShareTerms(seconds=5, parts=20, growth=8)
"""For a process that must not wait for the database in each second."""


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
    """The requests that one process may accept under one limit, for some seconds.

    A share is valid for the seconds of its `ShareTerms`. It is as large as the use of the one
    before, and grows each time it is used up.
    """

    __slots__ = (
        "__weakref__",
        "_exhausted_in",
        "_kept",
        "_step",
        "_taken",
        "_unusable",
        "free",
        "frees_at",
        "left",
        "limit",
        "policy",
        "since",
        "subject",
        "terms",
        "until",
        "within",
    )

    def __init__(
        self,
        policy: Policy,
        subject: str,
        limit: int,
        within: str = "",
        terms: ShareTerms = NEAR_DATABASE,
    ) -> None:
        """``within`` is the subject that counts the same requests together with others."""
        self.terms = terms
        self.policy = policy
        self.subject = subject
        self.within = within
        self.limit = limit
        self.since = _NEVER
        """The first second in which the share is valid."""
        self.until = _NEVER
        """The last one, in which its requests count."""
        self.left = 0
        self.free = 0
        """The part of the limit that was available at the last answer."""
        self.frees_at = _NEVER
        self._unusable = 0
        self._kept: int | None = None
        """While a valid share is renewed, the part that this returned and asked for again. It stays
        usable.
        """
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
        return self.left > 0 and self.since <= second <= self.until

    def is_valid(self, second: int) -> bool:
        return self.since <= second <= self.until

    def is_exhausted(self, second: int) -> bool:
        """Whether no request can be granted in this second."""
        return self.limit == 0 or (self._exhausted_in == second and self.left == 0)

    def seems_exhausted(self, second: int) -> bool:
        """Whether the last answer, perhaps of an earlier second, left nothing for this second.

        Other processes may have returned some since, so this is no reason to reject a request.
        """
        return self.free == 0 and self.unused == 0 and self.frees_at + SLOTS > second

    def refund(self, second: int) -> None:
        """Return one request of ``second`` to the share; that of an earlier share stays counted."""
        if self._kept is None and self.is_valid(second):
            self.left += 1

    def should_renew(self, second: int) -> bool:
        """Whether to request a share before it is needed: this one was used, is about to end or
        just ended, and the limit is large.
        """
        if self.limit < 2 * self.terms.parts or self._used <= 0:
            return False
        if self.since < second <= self.until:
            return self._is_running_out(second)
        return self.until == second - 1

    def _is_running_out(self, second: int) -> bool:
        """Whether the share ends within the next second, or will be used up then at this pace."""
        used_in = second - self.since
        return second >= self.until - 1 or 2 * self.left * used_in < 3 * self._used

    def request(self, second: int, demand: int) -> ShareRequest | None:
        """Return the request for so many waiting requests (0 to renew); None if the share suffices.

        It returns the rest of a share that was granted in an earlier second. While that share is
        valid, its rest is asked for again, and stays usable. `receive` or `forfeit` must follow.
        """
        renews = self.should_renew(second)
        available = self.left if self.is_valid(second) else 0
        if demand <= available and not renews and not self._is_left_over(second):
            return None
        missing = max(0, demand - available)
        self._step = self._next_step(second, is_used_up=missing > 0)
        wanted = max(missing, self._step) if missing or renews else 0
        gone = 0 if self.since == second else self._give_back(second)
        kept = self._kept or 0
        return ShareRequest(
            self.subject,
            self.limit,
            wanted + kept,
            self.until,
            gone,
            missing and missing + kept,
            self.within,
        )

    def _is_left_over(self, second: int) -> bool:
        """Whether some of the share were not accepted before it ended."""
        return self.unused > 0 and not self.is_valid(second)

    def _give_back(self, second: int) -> int:
        """Give back the unused rest of the share, and return how many these are. What is still
        valid stays usable.
        """
        unused = self.unused
        self._unusable = 0
        if self.is_valid(second):
            self._kept = self.left
        else:
            self.left = self._taken = 0
        return unused

    def receive(self, second: int, granted: ShareGrant) -> None:
        """Add the grant for the request that `Share.request` returned in ``second``."""
        if self.since != second:
            self._begin(second)
        self.left = max(0, self.left + granted.number)
        self._taken += granted.number
        self.free = max(0, self.limit - granted.total)
        self.frees_at = granted.frees_at
        if self.free == 0:
            self._exhausted_in = second

    def _begin(self, second: int) -> None:
        """Begin a share with its grant. That contains what was kept of the former one, of which
        some may be used by now.
        """
        self.left = 0 if self._kept is None else self.left - self._kept
        self._kept = None
        self._taken = 0
        self.since = second
        self.until = second + self.terms.seconds - 1

    def forfeit(self) -> None:
        """Give up what a request that failed may have returned."""
        if self._kept is not None:
            self.left = 0
            self._kept = None

    def release(self) -> ShareRequest:
        """Return the request that releases the whole share, valid or not."""
        request = ShareRequest(self.subject, self.limit, 0, self.until, self.unused)
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

    @property
    def _used(self) -> int:
        return self._taken - self.unused

    def _next_step(self, second: int, *, is_used_up: bool) -> int:
        most = max(1, self.limit // self.terms.parts)
        if is_used_up and self.is_valid(second):
            return min(self._step * self.terms.growth, most)
        used = self._used if second - self.until <= self.terms.seconds else 0
        return max(1, min(used + used // 4, most))
