"""Rate limits over HTTP: headers and answers, and the throttle of anonymous clients."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from time import monotonic
from typing import Final

from tenantry.auth.authentication import Admission, Admitted
from tenantry.common.clock import Pace
from tenantry.domain.access import Principal
from tenantry.domain.errors import RateLimitedError
from tenantry.domain.projects import Window
from tenantry.domain.rate_limits import WINDOW, Policy, RateLimitStatus
from tenantry.integrations.oidc.tokens import Claims
from tenantry.server.asgi_types import CALLER, CLAIMS, OPERATOR, OUTCOME, Scope
from tenantry.server.problems import CREDENTIAL, Header

PER_SECOND: Final = 200
"""Refusals of strangers that leave a process in a second."""
AT_ONCE: Final = 50
LONGEST: Final = 2.0
"""Seconds that one of them waits at most."""
_KNOWN: Final = (CALLER, CLAIMS, OPERATOR)


def is_stranger(scope: Scope) -> bool:
    """Whether who sent this request has shown no credential, neither a good one nor one that was refused for itself."""
    return not any(mark in scope for mark in _KNOWN) and scope.get(OUTCOME) not in CREDENTIAL


class AnonymousThrottle:
    """Holds what is refused to somebody who has shown no credential: an unknown address, a signature that is not right.

    It is what `services.refusals` does for credentials, for the same reason, with a pace of its own: so that no flood
    of the one makes those of the other wait.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._pace = Pace(PER_SECOND, at_once=AT_ONCE, longest=LONGEST)
        self._now = now
        self.waiting = 0
        """Refusals that wait for their turn."""

    async def hold(self) -> None:
        """Wait for the turn of a refusal."""
        if seconds := self._pace.wait(self._now()):
            self.waiting += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                self.waiting -= 1


# Letting a request in, and telling its sender what is left (draft-ietf-httpapi-ratelimit-headers-10)


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
    standing: RateLimitStatus | None = scope.get(_STANDING)
    return rate_headers(standing) if standing else ()


def rate_headers(standing: RateLimitStatus) -> tuple[Header, ...]:
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
