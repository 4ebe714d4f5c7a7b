"""Enforce the rate limits of plans: requests are counted in a window of a minute."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from tenantry.auth import rate_limits_store as store
from tenantry.auth.share_counting import Requests, ShareCounter
from tenantry.common.clock import Clock
from tenantry.db.database import Lane
from tenantry.domain.access import limits_of
from tenantry.domain.errors import RateLimitedError
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import Catalog
from tenantry.domain.rate_limits import (
    NEAR_DATABASE,
    Policy,
    RateLimitStatus,
    RateShare,
    RateSubject,
    quota_of,
)
from tenantry.domain.shares import ShareGrant, ShareTerms, take
from tenantry.domain.telemetry import SILENT, Telemetry

_NAMES: Final = {Policy.TENANT: "organization", Policy.KEY: "credential"}


class RateLimiter(ShareCounter[RateSubject]):
    """Counts requests against the limits of their tenants' plans. A crash of the database forgets
    the last minute.
    """

    def __init__(
        self,
        lane: Lane,
        catalog: Catalog,
        clock: Clock,
        telemetry: Telemetry = SILENT,
        terms: ShareTerms = NEAR_DATABASE,
    ) -> None:
        super().__init__(lane, clock, terms, "rate limits")
        self._catalog = catalog
        self._telemetry = telemetry

    def count_locally(self, principal: RequestPrincipal) -> RateLimitStatus | None:
        """Count a request against the reserved shares; return None without any: then use `count`.

        Raises `RateLimitedError` when a limit is known to be reached.
        """
        shares = self._shares_of(principal)
        return self._count_locally(shares) if shares else ()

    async def count(self, principal: RequestPrincipal) -> RateLimitStatus:
        """Count a request, and reserve new shares for it. Raises `RateLimitedError`,
        `AuthUnavailableError`.
        """
        return await self._count(lambda: self._shares_of(principal))

    async def count_user(self, name: str, limit: int) -> RateLimitStatus:
        """Count a user's request outside any tenant under ``name``, ``limit`` a minute. Raises as
        `count` does.
        """

        def shares() -> list[RateShare]:
            return [self._share(Policy.KEY, name, limit, "")]

        return self._count_locally(shares()) or await self._count(shares)

    def _count_locally(self, shares: Sequence[RateShare]) -> RateLimitStatus | None:
        second = self._second()
        if take(shares, second):
            return _status_of(shares, second)
        self._check_exhausted(shares, second)
        return None

    async def _count(self, shares_of: Callable[[], list[RateShare]]) -> RateLimitStatus:
        counted = await self._wait(shares_of)
        return _status_of(counted.shares, counted.second)

    def _shares_of(self, principal: RequestPrincipal) -> list[RateShare]:
        limits = limits_of(principal.access_phase, self._catalog)
        of_tenant = limits.requests_per_minute
        of_key = limits.requests_per_minute_per_key
        of_itself = principal.requests_per_minute
        if of_itself is not None:
            of_key = of_itself if of_key is None else min(of_key, of_itself)
        shares: list[RateShare] = []
        if of_tenant is None and of_key is None:
            return shares
        tenant = subject_of_tenant(principal.org_id)
        if of_tenant is not None:
            shares.append(self._share(Policy.TENANT, tenant, of_tenant, ""))
        if of_key is not None:
            own = f"{principal.kind} {principal.org_id} {principal.id}"
            shares.append(self._share(Policy.KEY, own, of_key, tenant))
        return shares

    def _share(self, policy: Policy, name: str, limit: int, within: str) -> RateShare:
        share = self._shares.get(name)
        if share is None:
            return self._new_share(name, RateSubject(policy, name, within), limit)
        if share.limit != limit:
            share.set_limit(limit)
        return share

    async def _reserve(
        self, requests: Requests[RateSubject], now: datetime
    ) -> Mapping[RateShare, ShareGrant]:
        second = int(now.timestamp())
        asked = list(requests.values())
        async with self._lane.use() as connection:
            granted = await store.take(connection, asked, second, self._terms.seconds)
        return {share: granted[share.subject.name] for share in requests}

    def _refusal(self, shares: Sequence[RateShare], second: int) -> RateLimitedError:
        """Make the error with the known quotas of this second."""
        used_up = [share for share in shares if share.is_exhausted(second)]
        for share in used_up:
            self._telemetry.rate_limited(share.subject.policy)
        known = [share for share in shares if share in used_up or share.is_valid(second)]
        resets = (
            quota_of(share, second).reset
            for share in shares
            if share in used_up or share.seems_exhausted(second)
        )
        return RateLimitedError(_text_of(used_up), _status_of(known, second), max(resets))


def subject_of_tenant(tenant_id: str) -> str:
    """Return the subject under which a tenant's requests are counted."""
    return f"tenant {tenant_id}"


def _text_of(reached: Sequence[RateShare]) -> str:
    return " ".join(
        f"The {_NAMES[share.subject.policy]}'s {share.limit} requests per minute are used up."
        for share in reached
    )


def _status_of(shares: Sequence[RateShare], second: int) -> RateLimitStatus:
    if len(shares) == 1:
        return (quota_of(shares[0], second),)
    return tuple([quota_of(share, second) for share in shares])
