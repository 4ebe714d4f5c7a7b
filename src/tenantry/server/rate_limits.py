"""Rate limits over HTTP (draft-ietf-httpapi-ratelimit-headers-10), and of the refusals of anonymous clients."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

from tenantry.auth.admission import Admission, Admitted
from tenantry.db.pagination import Window
from tenantry.domain.access import Principal
from tenantry.domain.errors import RateLimitedError
from tenantry.domain.rate_limits import WINDOW, Policy, RateLimitStatus
from tenantry.integrations.oidc.tokens import Claims
from tenantry.server.asgi_types import CALLER, CLAIMS, OPERATOR, OUTCOME, Header, Scope
from tenantry.server.problems import CREDENTIAL

PER_SECOND: Final = 200  # refusals of anonymous requests that a process sends in a second
BURST: Final = 50
LONGEST: Final = 2.0  # maximum wait of one of them, in seconds
_AUTHENTICATED: Final = (CALLER, CLAIMS, OPERATOR)
_STATUS: Final = "tenantry.rate_limit_status"
_CACHED_POLICIES: Final = 1024


def is_anonymous(scope: Scope) -> bool:
    """Whether a request had no credential, neither a valid nor a rejected one."""
    return not any(key in scope for key in _AUTHENTICATED) and scope.get(OUTCOME) not in CREDENTIAL


async def admit(
    admission: Admission, scope: Scope, header: Callable[[bytes], bytes | None], window: Window | None = None
) -> Admitted:
    """Authenticate and count a request; store caller and status in the scope. Raises as `Admission.admit`."""
    client = scope.get("client")
    address = client[0] if client else None
    note = partial(scope.__setitem__, CALLER)
    try:
        admitted = await admission.admit(header(b"authorization"), header(b"x-organization-id"), address, window, note)
    except RateLimitedError as error:
        scope[_STATUS] = error.rate_limits
        raise
    if admitted.rate_limits:
        scope[_STATUS] = admitted.rate_limits
    return admitted


async def authenticate_again(admission: Admission, scope: Scope, header: Callable[[bytes], bytes | None]) -> Principal:
    """Authenticate an admitted request as of now. Raises the errors of authentication."""
    client = scope.get("client")
    caller = await admission.authenticate_again(
        header(b"authorization"), header(b"x-organization-id"), client[0] if client else None
    )
    scope[CALLER] = caller
    return caller


async def admit_user(admission: Admission, scope: Scope, claims: Claims, what: str, limit: int) -> None:
    """Count a user's request that concerns no tenant (`Admission.count_user`), and store the status in the scope."""
    try:
        scope[_STATUS] = await admission.count_user(claims, what, limit)
    except RateLimitedError as error:
        scope[_STATUS] = error.rate_limits
        raise


def headers_of(scope: Scope) -> tuple[Header, ...]:
    """Return the rate limit headers of a response; none if its request has no limits."""
    return rate_headers(scope[_STATUS]) if _STATUS in scope else ()


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
