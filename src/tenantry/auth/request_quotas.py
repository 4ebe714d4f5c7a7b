"""Count the requests of tenants against the feature that counts them: in its periods.

Shares of a quota are valid until they are used, and so the counters must survive a crash of the
database.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from tenantry.auth import entitlements_store as store
from tenantry.auth.entitlements import TellUse, periods_of, write_use
from tenantry.auth.share_counting import Requests, ShareCounter
from tenantry.common.clock import Clock, from_epoch
from tenantry.db.database import Lane
from tenantry.domain.access import AccessPhase
from tenantry.domain.errors import FeatureNotGrantedError, QuotaExceededError
from tenantry.domain.features import LARGEST_VALUE, Feature
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.quota_notices import MeteredUse, UseChange
from tenantry.domain.request_quotas import TERMS, grant_of
from tenantry.domain.shares import Share, ShareGrant, take
from tenantry.domain.telemetry import SILENT, Telemetry


class QuotaSubject(NamedTuple):
    """The requests of a tenant in a mode, and the access of the last one that had to wait."""

    use: MeteredUse
    phase: AccessPhase


QuotaShare = Share[QuotaSubject]


class RequestQuotas(ShareCounter[QuotaSubject]):
    """Counts requests against the quotas of their tenants."""

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
        super().__init__(lane, clock, TERMS, "quotas")
        self._feature = feature
        self._tell = tell
        self._telemetry = telemetry

    def count_locally(self, principal: RequestPrincipal) -> bool:
        """Count a request against the reserved share; return False without one: then use `count`.

        Raises `QuotaExceededError` when the quota is known to be used up.
        """
        shares = self._shares_of(principal)
        second = self._second()
        if take(shares, second):
            return True
        self._check_exhausted(shares, second)
        return False

    async def count(self, principal: RequestPrincipal) -> None:
        """Count a request, and reserve a share. Raises `QuotaExceededError` and
        `AuthUnavailableError`.
        """

        def shares() -> list[QuotaShare]:
            [share] = self._shares_of(principal)
            share.subject = share.subject._replace(phase=principal.access_phase)
            return [share]

        await self._wait(shares)

    def _shares_of(self, principal: RequestPrincipal) -> list[QuotaShare]:
        value = principal.feature_access.given.get(self._feature.id)
        if value is None:
            raise FeatureNotGrantedError(self._feature.id)
        limit = LARGEST_VALUE if value is True else value
        name = (principal.org_id, principal.mode)
        share = self._shares.get(name)
        if share is None:
            share = self._new_share(name, self._subject_of(principal), limit)
        elif share.limit != limit:
            share.set_limit(limit)
        return [share]

    def _subject_of(self, principal: RequestPrincipal) -> QuotaSubject:
        use = MeteredUse(principal.org_id, principal.mode, self._feature.id)
        return QuotaSubject(use, principal.access_phase)

    async def _reserve(
        self, requests: Requests[QuotaSubject], now: datetime
    ) -> Mapping[QuotaShare, ShareGrant]:
        wanted = {share: request for share, request in requests.items() if request.wanted}
        returned = [
            (request.subject.use, request.counted_in, request.unused)
            for request in requests.values()
            if request.unused
        ]
        if not wanted and not returned:
            return {}
        uses = dict.fromkeys([each.subject.use for each in wanted.values()], self._feature)
        async with self._lane.use() as connection:
            periods = await periods_of(connection, uses, now)
            before = await store.return_and_lock(connection, returned, periods)
            granted = {
                share: grant_of(request, before[request.subject.use])
                for share, request in wanted.items()
            }
            changes = []
            for share, request in wanted.items():
                use, phase = request.subject
                after = before[use]._replace(used=granted[share].total)
                changes.append(UseChange(use, before[use], after, request.limit, phase))
            await write_use(connection, changes, self._tell, now, consumed={})
        return granted

    def _refusal(
        self,
        shares: Sequence[QuotaShare],
        second: int,  # noqa: ARG002  # the share says when the next period begins
    ) -> QuotaExceededError:
        [share] = shares
        self._telemetry.quota_exceeded(self._feature.id)
        reset = from_epoch(share.resets_at).isoformat().replace("+00:00", "Z")
        return QuotaExceededError(
            f"The {share.limit:,} requests of the feature {self._feature.id!r} are used up until "
            f"{reset}. Change to a plan with more.",
            needed=self._feature.id,
        )
