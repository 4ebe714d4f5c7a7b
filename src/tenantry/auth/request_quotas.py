"""Count the requests of tenants against the feature that counts them, over all processes together.

A process accepts a request only against a share that it has reserved in the database, as with rate
limits. Shares of a quota are valid until they are used, and so the counters must survive a crash of
the database.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import psycopg

from tenantry.auth import entitlements_store as store
from tenantry.auth.entitlements import MOST_AT_ONCE, TellUse, periods_of
from tenantry.auth.entitlements_store import Addition, MeteredUse
from tenantry.common.clock import Clock, from_epoch
from tenantry.db.batcher import Batcher
from tenantry.db.database import Lane
from tenantry.domain.access import AccessPhase
from tenantry.domain.entitlements import Usage, UsagePeriod, limit_of
from tenantry.domain.errors import (
    AuthUnavailableError,
    DatabaseUnavailableError,
    FeatureNotGrantedError,
    QuotaExceededError,
)
from tenantry.domain.features import Feature
from tenantry.domain.permissions import Mode, RequestPrincipal
from tenantry.domain.quota_notices import UseChange
from tenantry.domain.request_quotas import QuotaShare
from tenantry.domain.telemetry import SILENT, Telemetry

INTERVAL: Final = 1.0
"""Seconds between returns of idle shares."""
_MOST_TRIES: Final = 3

logger = logging.getLogger(__name__)


class _Request(NamedTuple):
    """A request that waits for its share."""

    use: MeteredUse
    share: QuotaShare
    phase: AccessPhase


class _Return(NamedTuple):
    """Shares that are no longer needed."""

    released: Sequence[Addition]


class RequestQuotas:
    """Counts requests against the quotas of their tenants. `run` returns idle shares."""

    def __init__(
        self,
        lane: Lane,
        feature: Feature,
        clock: Clock,
        tell: Sequence[TellUse] = (),
        telemetry: Telemetry = SILENT,
    ) -> None:
        """``feature`` is the one of the catalog that counts requests; ``tell`` report used
        quotas.
        """
        self._telemetry = telemetry
        self._tell = tell
        deadline = lane.timeouts.rate_limits
        self._lane = lane
        self._feature = feature
        self._clock = clock
        self._shares: dict[MeteredUse, QuotaShare] = {}
        self._batcher: Batcher[_Request | _Return, bool] = Batcher(
            self._serve,
            max_items=MOST_AT_ONCE,
            start_timeout=deadline,
            deadline=deadline,
            metrics=lane.metrics,
        )

    def count_locally(self, principal: RequestPrincipal) -> bool:
        """Count a request against the reserved share; return False without one: then use `count`.

        Raises `QuotaExceededError` when the quota is known to be used up.
        """
        share = self._share_of(principal)
        second = self._second()
        if share.take(second):
            return True
        if share.is_exhausted(second):
            raise self._refuse(share)
        return False

    async def count(self, principal: RequestPrincipal) -> None:
        """Count a request, and reserve a share. Raises `QuotaExceededError` and
        `AuthUnavailableError`.
        """
        for _ in range(_MOST_TRIES):
            share = self._share_of(principal)
            use = self._use_of(principal)
            if await self._submit(_Request(use, share, principal.access_phase)):
                return
            if share.is_exhausted(self._second()):
                raise self._refuse(share)
        raise AuthUnavailableError("Requests cannot be counted. Try again shortly.")

    async def _submit(self, request: _Request) -> bool:
        try:
            return await self._batcher.submit(request)
        except (DatabaseUnavailableError, psycopg.Error) as error:
            raise AuthUnavailableError("Requests cannot be counted. Try again shortly.") from error

    async def run(self) -> None:
        """Return idle shares every `INTERVAL` seconds, until canceled."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.return_idle()

    async def return_idle(self) -> None:
        """Return the shares of tenants without a request in the last seconds, and forget them."""
        second = self._second()
        idle = [use for use, share in self._shares.items() if share.is_idle(second)]
        await self._return({use: self._shares.pop(use) for use in idle})

    async def close(self) -> None:
        """Wait for the queries under way, and return all shares."""
        await self._batcher.close()
        shares, self._shares = self._shares, {}
        await self._return(shares)
        await self._batcher.close()

    async def _return(self, shares: Mapping[MeteredUse, QuotaShare]) -> None:
        released = [_released(use, share) for use, share in shares.items() if share.left]
        try:
            for start in range(0, len(released), MOST_AT_ONCE):
                await self._batcher.submit(_Return(released[start : start + MOST_AT_ONCE]))
        except (DatabaseUnavailableError, psycopg.Error) as error:
            logger.warning("unused shares of quotas are not returned: %s", error)

    def _second(self) -> int:
        return int(self._clock().timestamp())

    def _use_of(self, principal: RequestPrincipal) -> MeteredUse:
        return MeteredUse(principal.org_id, principal.mode, self._feature.id)

    def _share_of(self, principal: RequestPrincipal) -> QuotaShare:
        value = principal.feature_access.given.get(self._feature.id)
        if value is None:
            raise FeatureNotGrantedError(self._feature.id)
        use, limit = self._use_of(principal), limit_of(value)
        share = self._shares.get(use)
        if share is None:
            share = self._shares[use] = QuotaShare(limit)
        elif share.limit != limit:
            share.set_limit(limit)
        return share

    def _refuse(self, share: QuotaShare) -> QuotaExceededError:
        self._telemetry.quota_exceeded(self._feature.id)
        reset = from_epoch(share.period.end).isoformat().replace("+00:00", "Z")
        return QuotaExceededError(
            f"The {share.limit:,} requests of the feature {self._feature.id!r} are used up until "
            f"{reset}. Change to a plan with more."
        )

    async def _serve(self, batch: Sequence[_Request | _Return]) -> list[bool]:
        now = self._clock()
        second = int(now.timestamp())
        requests = [each for each in batch if isinstance(each, _Request)]
        waiting = Counter(request.use for request in requests)
        shares = {request.use: request.share for request in requests}
        limits = {use: share.limit for use, share in shares.items()}
        returned = _returned(batch, shares)
        periods, reserved = await self._reserve(shares, requests, returned, now)
        # only now: what was not committed must not be used
        for use, share in shares.items():
            share.receive(periods[use], reserved[use], waiting[use], second)
            if share.limit != limits[use]:
                share.set_limit(share.limit)  # it was reserved under the former limit
        return [isinstance(each, _Return) or each.share.take(second) for each in batch]

    async def _reserve(
        self,
        shares: Mapping[MeteredUse, QuotaShare],
        requests: Sequence[_Request],
        returned: Sequence[Addition],
        now: datetime,
    ) -> tuple[dict[MeteredUse, UsagePeriod], dict[MeteredUse, int]]:
        """Take what is ``returned`` from the counters, add what each share needs for the
        ``requests`` that wait, and commit. Return the periods, and what was added.
        """
        second = int(now.timestamp())
        waiting = Counter(request.use for request in requests)
        phases = {request.use: request.phase for request in requests}
        limits = {use: share.limit for use, share in shares.items()}
        async with self._lane.use() as connection:
            periods = await periods_of(connection, dict.fromkeys(shares, self._feature), now)
            usages = await store.return_and_lock(connection, returned, periods)
            reserved = {
                use: share.wanted(usages[use], waiting[use], second)
                for use, share in shares.items()
            }
            changes = list(_changes(usages, reserved, limits, phases))
            for tell in self._tell:
                await tell(connection, changes, now)
            await store.add(connection, _additions(reserved, periods), {}, now)
        return periods, reserved


def _returned(
    batch: Sequence[_Request | _Return], shares: Mapping[MeteredUse, QuotaShare]
) -> list[Addition]:
    """Return what a batch returns, with the rest of the shares that it renews, which this
    releases.
    """
    returned = [_released(use, share) for use, share in shares.items() if share.left]
    for each in batch:
        if isinstance(each, _Return):
            returned += each.released
    return returned


def _additions(
    reserved: Mapping[MeteredUse, int], periods: Mapping[MeteredUse, UsagePeriod]
) -> list[Addition]:
    return [(use, periods[use], number) for use, number in reserved.items() if number]


def _changes(
    usages: Mapping[MeteredUse, Usage],
    reserved: Mapping[MeteredUse, int],
    limits: Mapping[MeteredUse, int | None],
    phases: Mapping[MeteredUse, AccessPhase],
) -> Iterator[UseChange]:
    """Yield what reserved shares change of the use in live mode."""
    for use, number in reserved.items():
        if use.mode is Mode.LIVE:
            before = usages[use]
            after = before._replace(used=before.used + number)
            yield UseChange(use.org_id, use.feature, before, after, limits[use], phases[use])


def _released(use: MeteredUse, share: QuotaShare) -> Addition:
    return use, share.period, share.release()
