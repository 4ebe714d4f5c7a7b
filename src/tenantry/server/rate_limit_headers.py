"""The RateLimit headers of a response (draft-ietf-httpapi-ratelimit-headers-10)."""

from functools import lru_cache
from typing import Final

from tenantry.domain.rate_limits import WINDOW, Policy, RateLimitStatus
from tenantry.server.asgi_types import Header

_CACHED_POLICIES: Final = 1024


def rate_headers(status: RateLimitStatus) -> tuple[Header, ...]:
    """Return the rate limit headers of a response; none if its request has no limits."""
    if not status:
        return ()
    remaining = b", ".join(
        [_REMAINING[quota.policy] % (quota.remaining, quota.reset) for quota in status]
    )
    return _policies(*[part for quota in status for part in (quota.policy, quota.limit)]), (
        b"ratelimit",
        remaining,
    )


@lru_cache(_CACHED_POLICIES)
def _policies(*parts: Policy | int) -> Header:
    items = [
        f'"{policy}";q={limit};w={WINDOW}'
        for policy, limit in zip(parts[::2], parts[1::2], strict=True)
    ]
    return b"ratelimit-policy", ", ".join(items).encode()


_REMAINING: Final = {policy: f'"{policy}";r=%d;t=%d'.encode() for policy in Policy}
