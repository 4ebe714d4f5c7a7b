"""Rate limits over HTTP (draft-ietf-httpapi-ratelimit-headers-10)."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

from tenantry.auth.admission import Admission, Admitted
from tenantry.db.pagination import Window
from tenantry.domain.access import Principal
from tenantry.domain.rate_limits import WINDOW, Policy, RateLimitStatus
from tenantry.server.asgi_types import CALLER, RATE_LIMITS, Header, Scope

_CACHED_POLICIES: Final = 1024


async def admit(
    admission: Admission, scope: Scope, header: Callable[[bytes], bytes | None], window: Window | None = None
) -> Admitted:
    """Authenticate and count a request; store caller and status in the scope. Raises as `Admission.admit`."""
    client = scope.get("client")
    address = client[0] if client else None
    note = partial(scope.__setitem__, CALLER)
    admitted = await admission.admit(header(b"authorization"), header(b"x-organization-id"), address, window, note)
    scope[RATE_LIMITS] = admitted.rate_limits
    return admitted


async def authenticate_again(admission: Admission, scope: Scope, header: Callable[[bytes], bytes | None]) -> Principal:
    """Authenticate an admitted request as of now. Raises the errors of authentication."""
    client = scope.get("client")
    caller = await admission.authenticate_again(
        header(b"authorization"), header(b"x-organization-id"), client[0] if client else None
    )
    scope[CALLER] = caller
    return caller


def headers_of(scope: Scope) -> tuple[Header, ...]:
    """Return the rate limit headers of a response; none if its request has no limits."""
    return rate_headers(scope.get(RATE_LIMITS, ()))


def rate_headers(status: RateLimitStatus) -> tuple[Header, ...]:
    if not status:
        return ()
    remaining = b", ".join([_REMAINING[quota.policy] % (quota.remaining, quota.reset) for quota in status])
    return _policies(*[part for quota in status for part in (quota.policy, quota.limit)]), (b"ratelimit", remaining)


@lru_cache(_CACHED_POLICIES)
def _policies(*parts: Policy | int) -> Header:
    items = [f'"{policy}";q={limit};w={WINDOW}' for policy, limit in zip(parts[::2], parts[1::2], strict=True)]
    return b"ratelimit-policy", ", ".join(items).encode()


_REMAINING: Final = {policy: f'"{policy}";r=%d;t=%d'.encode() for policy in Policy}
