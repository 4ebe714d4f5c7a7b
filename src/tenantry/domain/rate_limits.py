"""Rate limits: who is limited, what remains of a limit, and the terms of its shares.

A limit of N allows at most N requests in any `WINDOW` seconds. Requests are counted by whole
seconds of the Unix epoch, so each counts as long as any 60 seconds could contain it: for `SLOTS`
seconds, including its own.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec

from tenantry.domain.shares import Share, ShareTerms

WINDOW: Final = 60
"""Seconds."""
SLOTS: Final = WINDOW + 1
"""Seconds that are counted together."""
USER_REQUESTS_PER_MINUTE: Final = 600
"""Of one user in all tenants, on routes that need no tenant: no plan has a limit for them."""
USER_CREATIONS_PER_MINUTE: Final = 60
"""Of tenants, by one user."""
NEAR_DATABASE: Final = ShareTerms(seconds=1, parts=100, growth=2, window=SLOTS)
"""A share is valid in one second, in which it counts."""
DISTANT_DATABASE: Final = ShareTerms(seconds=5, parts=20, growth=8, window=SLOTS)
"""For a process that must not wait for the database in each second. The requests of a share count
in its last second.
"""


MOST_REQUESTS_PER_MINUTE: Final = 1_000_000
RequestsPerMinute = Annotated[
    int,
    msgspec.Meta(
        ge=1,
        le=MOST_REQUESTS_PER_MINUTE,
        description="The key's own limit of requests a minute; null for none.",
        examples=[120],
    ),
]
"""The limit of one key in a request."""


def request_rate_faults(limit: int) -> Iterator[str]:
    """Yield what is wrong with the limit of one key."""
    if not 1 <= limit <= MOST_REQUESTS_PER_MINUTE:
        yield f"must be from 1 to {MOST_REQUESTS_PER_MINUTE:,}"


def is_faster(limit: int | None, other: int | None) -> bool:
    """Whether a limit allows more than another one; None is no limit."""
    return other is not None and (limit is None or limit > other)


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


class RateSubject(NamedTuple):
    """The requests of a tenant, of one key, or of one user, by their ``name`` in the counts.

    ``within`` is the name of the subject that counts the same requests together with others.
    """

    policy: Policy
    name: str
    within: str = ""


RateShare = Share[RateSubject]


def quota_of(share: RateShare, second: int) -> Quota:
    """Return the remaining quota; other processes may have used some of it."""
    if share.limit == 0:
        return Quota(share.subject.policy, 0, 0, WINDOW)
    remaining = share.left + share.free
    return Quota(share.subject.policy, share.limit, remaining, max(1, share.resets_at - second))
