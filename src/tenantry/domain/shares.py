"""Shares of limits: the requests that a process reserves in the database, and then accepts by
itself.

The database counts requests when they are reserved, in a moving window or in a period. So no
failure allows more than the limit; a process that is killed loses its shares.
"""

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

Subject = TypeVar("Subject")
"""What requests are counted under."""

IDLE_SECONDS: Final = 60
"""After so many seconds without a request a process returns a share that is still valid."""
NEVER: Final = -1000
"""A second before all others."""


class ShareTerms(NamedTuple):
    """How much of a limit a process reserves at a time, and for how long."""

    seconds: int
    """How long a share should last. In a window it is valid for so long."""
    parts: int
    """A share is at most one of so many parts of the limit: so much a process may withhold from
    others.
    """
    growth: int
    """How many times as large the next share is if one is used up within its seconds."""
    window: int = 0
    """For how many seconds requests count; 0 in a period, in which a share is valid until the end
    of the period, and is not renewed before it is used up.
    """


class ShareRequest(NamedTuple, Generic[Subject]):
    """A request of a process for ``wanted`` more requests of a subject under ``limit``.

    It returns the ``unused`` part of the share that counts in the second or period ``counted_in``.
    Of the wanted, ``missing`` are for requests that wait.
    """

    subject: Subject
    limit: int
    wanted: int
    counted_in: int
    unused: int
    missing: int = 0


class ShareGrant(NamedTuple):
    """The answer to a `ShareRequest`: ``number`` requests granted, ``total`` counted now including
    these.

    They count in the second or period ``counted_in``, and may be accepted through the second
    ``until``. At ``resets_at`` the limit allows further requests.
    """

    number: int
    total: int
    counted_in: int
    until: int
    resets_at: int


class Share(Generic[Subject]):
    """The requests that one process may accept under one limit.

    A share is as large as the use of the one before, and grows each time it is used up early.
    """

    __slots__ = (
        "__weakref__",
        "_exhausted_in",
        "_kept",
        "_step",
        "_taken",
        "_unusable",
        "counted_in",
        "free",
        "left",
        "limit",
        "resets_at",
        "since",
        "subject",
        "terms",
        "until",
        "used_in",
    )

    def __init__(self, subject: Subject, limit: int, terms: ShareTerms) -> None:
        self.subject = subject
        self.limit = limit
        self.terms = terms
        self.left = 0
        self.since = NEVER
        """The first second in which the share is valid."""
        self.until = NEVER
        """The last one."""
        self.counted_in = NEVER
        self.used_in = NEVER
        """The second of the last accepted request."""
        self.free = 0
        """The part of the limit that was available at the last answer."""
        self.resets_at = NEVER
        self._unusable = 0
        self._kept: int | None = None
        """While a valid share is renewed, the part that this returned and asked for again. It stays
        usable.
        """
        self._taken = 0
        self._step = 1
        self._exhausted_in = NEVER

    @property
    def unused(self) -> int:
        """The granted requests that were not accepted."""
        return self.left + self._unusable

    def set_limit(self, limit: int) -> None:
        """Set the limit of another plan. A share of a higher limit is no longer valid."""
        if limit < self.limit:
            self._invalidate()
        self.free = max(0, self.free + limit - self.limit)
        self.limit = limit
        self._exhausted_in = NEVER

    def _invalidate(self) -> None:
        self._unusable += self.left
        self.left = 0

    def is_valid(self, second: int) -> bool:
        return self.since <= second <= self.until

    def is_idle(self, second: int) -> bool:
        """Whether the share has ended, or has not been used lately."""
        return not self.is_valid(second) or second - self.used_in >= IDLE_SECONDS

    def is_exhausted(self, second: int) -> bool:
        """Whether no request can be granted in this second."""
        return self.limit == 0 or (self._exhausted_in == second and self.left == 0)

    def seems_exhausted(self, second: int) -> bool:
        """Whether the last answer, perhaps of an earlier second, left nothing for this second.

        Other processes may have returned some since, so this is no reason to reject a request.
        """
        return self.free == 0 and self.unused == 0 and self.resets_at > second

    def refund(self, second: int) -> None:
        """Return one request of ``second`` to the share; that of an earlier share stays counted."""
        if self._kept is None and self.is_valid(second):
            self.left += 1

    def should_renew(self, second: int) -> bool:
        """Whether to request a share of a window before it is needed: this one was used, is about
        to end or just ended, and the limit is large.
        """
        if not self.terms.window or self.limit < 2 * self.terms.parts or self._used <= 0:
            return False
        if self.since < second <= self.until:
            return self._is_running_out(second)
        return self.until == second - 1

    def _is_running_out(self, second: int) -> bool:
        """Whether the share ends within the next second, or will be used up then at this pace."""
        used_in = second - self.since
        return second >= self.until - 1 or 2 * self.left * used_in < 3 * self._used

    def request(self, second: int, demand: int) -> ShareRequest[Subject] | None:
        """Return the request for so many waiting requests (0 to renew); None if the share suffices.

        It gives back the rest of the share, and asks for what is valid of it again. In a window
        that stays usable meanwhile. `receive` or `forfeit` must follow.
        """
        renews = self.should_renew(second)
        available = self.left if self.is_valid(second) else 0
        if demand <= available and not renews and not self._is_left_over(second):
            return None
        missing = max(0, demand - available)
        wanted = self._wanted(second, missing, renews=renews)
        unused, again = self._give_back(second, available)
        missing = missing and missing + again
        return ShareRequest(
            self.subject, self.limit, wanted + again, self.counted_in, unused, missing
        )

    def _is_left_over(self, second: int) -> bool:
        """Whether some of the share were not accepted before it ended."""
        return self.unused > 0 and not self.is_valid(second)

    def _wanted(self, second: int, missing: int, *, renews: bool) -> int:
        """Return how many further requests to reserve, of which so many are ``missing``."""
        self._step = self._next_step(second, is_used_up=missing > 0)
        return max(missing, self._step) if missing or renews else 0

    def _give_back(self, second: int, valid: int) -> tuple[int, int]:
        """Give back the unused rest of the share; return how many these are, and how many of them
        are ``valid`` and asked for again. In a window the valid ones stay usable, and what was
        granted in this second is kept.
        """
        if self.terms.window and self.since == second:
            return 0, 0
        unused = self.unused
        self._unusable = 0
        if self.terms.window and valid:
            self._kept = valid
        else:
            self.left = self._taken = 0
        return unused, valid

    def receive(self, request: ShareRequest[Subject], second: int, granted: ShareGrant) -> None:
        """Add the grant for the ``request`` that `request` returned in ``second``."""
        if (self.since, self.counted_in) != (second, granted.counted_in):
            self._begin(second, granted)
        self.left = max(0, self.left + granted.number)
        self._taken += granted.number
        self.free = max(0, self.limit - granted.total)
        self.resets_at = granted.resets_at
        if request.limit > self.limit:
            self._invalidate()
        elif self.free == 0:
            self._exhausted_in = second

    def _begin(self, second: int, granted: ShareGrant) -> None:
        """Begin a share with its grant. That contains what was kept of the former one, of which
        some may be used by now.
        """
        self.left = 0 if self._kept is None else self.left - self._kept
        self._kept = None
        self._taken = 0
        self.since = second
        self.until = granted.until
        self.counted_in = granted.counted_in

    def forfeit(self) -> None:
        """Give up what a request that failed may have returned."""
        if self._kept is not None:
            self.left = 0
            self._kept = None

    def release(self) -> ShareRequest[Subject]:
        """Return the request that releases the whole share, valid or not."""
        request = ShareRequest(self.subject, self.limit, 0, self.counted_in, self.unused)
        self._taken -= self.unused
        self.free = min(self.limit, self.free + self.unused)
        self.left = self._unusable = 0
        return request

    @property
    def _used(self) -> int:
        return self._taken - self.unused

    def _next_step(self, second: int, *, is_used_up: bool) -> int:
        seconds = self.terms.seconds
        most = max(1, self.limit // self.terms.parts)
        if is_used_up and self.is_valid(second) and second - self.since < seconds:
            return min(self._step * self.terms.growth, most)
        used = self._used_in_its_seconds(second) if second - self.until <= seconds else 0
        return max(1, min(used + used // 4, most))

    def _used_in_its_seconds(self, second: int) -> int:
        """Return how much of the share was used in as many seconds as it should last."""
        seconds = self.terms.seconds
        lasted = min(second, self.until + 1) - self.since
        return self._used * seconds // max(seconds, lasted)


def take(shares: Sequence[Share[Subject]], second: int) -> bool:
    """Accept a request by one of each share; return False, and use none, if a share is missing."""
    for share in shares:
        if share.left <= 0 or not share.since <= second <= share.until:
            return False
    for share in shares:
        share.left -= 1
        share.used_in = second
    return True
