"""Letting a request in, and telling its sender what is left (draft-ietf-httpapi-ratelimit-headers-10)."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from tenantry.auth.admission import Admission, Admitted
from tenantry.domain.access import Principal
from tenantry.domain.errors import RateLimitedError
from tenantry.domain.projects import Window
from tenantry.domain.rate_limits import WINDOW, Policy, Standing
from tenantry.integrations.oidc.tokens import Claims
from tenantry.server.asgi_types import CALLER, Scope
from tenantry.server.problems import Header

_STANDING: Final = "tenantry.standing"
_KNOWN_POLICIES: Final = 1024


async def admit(
    admission: Admission, scope: Scope, header: Callable[[bytes], bytes | None], window: Window | None = None
) -> Admitted:
    """Let a request in, given its headers. Who sent it, and where they stand for `headers_of`, is kept in the scope.

    Raises the errors of `Admission.admit`.
    """
    client = scope.get("client")

    def note(caller: Principal) -> None:
        scope[CALLER] = caller

    try:
        admitted = await admission.admit(
            header(b"authorization"), header(b"x-organization-id"), client[0] if client else None, window, note
        )
    except RateLimitedError as error:
        scope[_STANDING] = error.standing
        raise
    if admitted.standing:
        scope[_STANDING] = admitted.standing
    return admitted


async def authenticate_again(admission: Admission, scope: Scope, header: Callable[[bytes], bytes | None]) -> Principal:
    """The caller of a request that was admitted, as of now. Raises the errors of authentication."""
    client = scope.get("client")
    caller = await admission.authenticate_again(
        header(b"authorization"), header(b"x-organization-id"), client[0] if client else None
    )
    scope[CALLER] = caller
    return caller


async def admit_user(admission: Admission, scope: Scope, claims: Claims, what: str, limit: int) -> None:
    """Count a user's request that is for no tenant, as `Admission.count_user` does; the standing is kept as above."""
    try:
        scope[_STANDING] = await admission.count_user(claims, what, limit)
    except RateLimitedError as error:
        scope[_STANDING] = error.standing
        raise


def headers_of(scope: Scope) -> tuple[Header, ...]:
    """The header fields of the answer to a request that has limits; none for any other."""
    standing: Standing | None = scope.get(_STANDING)
    return rate_headers(standing) if standing else ()


def rate_headers(standing: Standing) -> tuple[Header, ...]:
    """``RateLimit-Policy`` and ``RateLimit``."""
    if not standing:
        return ()
    if len(standing) == 1:
        (quota,) = standing
        left = _LEFT[quota.policy] % (quota.remaining, quota.reset)
        return _policies(quota.policy, quota.limit), (b"ratelimit", left)
    left = b", ".join([_LEFT[quota.policy] % (quota.remaining, quota.reset) for quota in standing])
    return _policies(*[part for quota in standing for part in (quota.policy, quota.limit)]), (b"ratelimit", left)


@lru_cache(_KNOWN_POLICIES)
def _policies(*parts: Policy | int) -> Header:
    """The field for these policies and their limits, in turn."""
    items = [f'"{policy}";q={limit};w={WINDOW}' for policy, limit in zip(parts[::2], parts[1::2], strict=True)]
    return b"ratelimit-policy", ", ".join(items).encode()


_LEFT: Final = {policy: f'"{policy}";r=%d;t=%d'.encode() for policy in Policy}
