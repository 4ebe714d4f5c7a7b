"""Letting a request in: who sent it, and whether its tenant's limits let it through. The one door for every caller."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tenantry.auth.authentication import Authenticator
from tenantry.auth.failed_authentication_throttle import Refusals
from tenantry.auth.rate_limits import RateLimiter
from tenantry.common.timeouts import DEFAULT_TIMEOUTS
from tenantry.domain.access import Principal
from tenantry.domain.errors import AuthUnavailableError, DomainError
from tenantry.domain.projects import Window
from tenantry.domain.rate_limits import Standing
from tenantry.integrations.oidc.claims import Claims


class Admitted(msgspec.Struct, frozen=True):
    """Who was let in, what is left of their limits, and the projects asked for, as `Authenticated` has them."""

    principal: Principal
    standing: Standing
    projects: Sequence[str] = ()


class Admission:
    """Authenticates, then counts. Refused credentials leave at the pace of ``refusals``."""

    def __init__(
        self,
        authenticator: Authenticator,
        limiter: RateLimiter,
        *,
        deadline: float = DEFAULT_TIMEOUTS.request,
        monotonic: Callable[[], float] = time.monotonic,
        refused: Callable[[str, str], None] = lambda _kind, _reason: None,
    ) -> None:
        """A request must be counted ``deadline`` seconds after it came in.

        ``monotonic`` returns seconds that never go back. ``refused`` is as `Refusals` has it.
        """
        self._authenticator = authenticator
        self._limiter = limiter
        self._deadline = deadline
        self._monotonic = monotonic
        self.refusals = Refusals(refused)

    async def admit(
        self,
        authorization: bytes | None,
        organization: bytes | None,
        address: str | None,
        window: Window | None = None,
        known: Callable[[Principal], None] = lambda _: None,
    ) -> Admitted:
        """Let a request in, from its ``Authorization`` and ``X-Organization-Id`` headers and its client's address.

        ``window`` says which projects to look up on the way; ``known`` is told who it is before they are counted.
        Raises the errors of authentication (CONTRACT 5), `RateLimitedError` with the caller's standing, and
        `AuthUnavailableError` when nobody can tell: a request that cannot be counted is not let in.
        """
        began = self._monotonic()
        try:
            found = await self._authenticator.authenticate(authorization, organization, address, window)
        except DomainError as error:
            await self.refusals.hold(error, kind_of(authorization))
            raise
        principal = found.principal
        known(principal)
        standing = self._limiter.count_at_once(principal)
        if standing is None:
            standing = await self._count(principal, self._deadline - (self._monotonic() - began))
        return Admitted(principal, standing, found.projects)

    async def authenticate_again(
        self, authorization: bytes | None, organization: bytes | None, address: str | None
    ) -> Principal:
        """The principal of a request that was let in before, as of now; the request is not counted again.

        Raises the errors of authentication (CONTRACT 5).
        """
        async with self.refusals.of(kind_of(authorization)):
            return (await self._authenticator.authenticate(authorization, organization, address)).principal

    async def count_user(self, claims: Claims, what: str, limit: int) -> Standing:
        """Count a user's request that is for no tenant, such as creating one: ``limit`` of ``what`` a minute.

        Raises `RateLimitedError` and `AuthUnavailableError`.
        """
        return await _in_time(
            self._limiter.count_user(f"{what} {claims.issuer} {claims.subject}", limit), self._deadline
        )

    async def _count(self, principal: Principal, seconds: float) -> Standing:
        return await _in_time(self._limiter.count(principal), seconds)


async def _in_time(counting: Awaitable[Standing], seconds: float) -> Standing:
    try:
        async with asyncio.timeout(seconds):
            return await counting
    except TimeoutError as error:
        raise AuthUnavailableError("The database is too slow to count requests. Try again shortly.") from error


def kind_of(authorization: bytes | None) -> str:
    """What sort of credential an ``Authorization`` header holds: ``api_key``, ``token`` or ``none``."""
    if not authorization:
        return "none"
    return "api_key" if b" svc_" in authorization else "token"
