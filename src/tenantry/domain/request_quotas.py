"""Quotas of requests: how much a process gets of what is left."""

from typing import Final, TypeVar

from tenantry.domain.entitlements import Usage
from tenantry.domain.shares import ShareGrant, ShareRequest, ShareTerms

Subject = TypeVar("Subject")

TERMS: Final = ShareTerms(seconds=30, parts=100, growth=8)
_LARGEST_SHARE: Final = 10_000


def grant_of(request: ShareRequest[Subject], usage: Usage) -> ShareGrant:
    """Return what a process gets: at most a hundredth of the remaining quota, and one for each
    request that waits, as long as any is left.
    """
    remaining = max(0, request.limit - usage.used)
    most = min(remaining // TERMS.parts, _LARGEST_SHARE)
    number = min(max(request.missing, min(request.wanted, most)), remaining)
    period = usage.period
    return ShareGrant(
        number,
        total=usage.used + number,
        counted_in=period.start,
        until=period.end - 1,
        resets_at=period.end,
    )
