"""Read how many requests the API keys of a tenant sent."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from tenantry.auth import usage_store as store
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS, TransactionScope, of_tenant
from tenantry.db.database import Database
from tenantry.domain.errors import ValidationError
from tenantry.domain.permissions import ACCEPTED_MODES, RequestPrincipal
from tenantry.domain.usage import (
    MOST_COUNTS,
    RequestOutcome,
    UsageCount,
    UsageInterval,
    UsageQuery,
    UsageReport,
    latest,
    series,
)

_HOURS: Final = 24
_DAYS: Final = 30


class UsageSeries(msgspec.Struct, frozen=True):
    """Numbers of requests, one for each of ``times``, oldest first."""

    times: tuple[datetime, ...]
    numbers: tuple[int, ...]
    complete_until: datetime

    @property
    def total(self) -> int:
        return sum(self.numbers)


class KeyUsage(msgspec.Struct, frozen=True):
    """The requests of API keys by day, oldest first."""

    times: tuple[datetime, ...]
    numbers: Mapping[str, tuple[int, ...]]
    """One number for each of ``times``, by the key's id."""
    complete_until: datetime


class OutcomeUsage(msgspec.Struct, frozen=True):
    """The requests of one API key by day and outcome, oldest first."""

    times: tuple[datetime, ...]
    numbers: Mapping[RequestOutcome, tuple[int, ...]]
    """One number for each of ``times``, of every outcome."""
    complete_until: datetime


class UsageService:
    """Reads the usage of a tenant. Callers check the scope ``usage:read``; usage has no test mode:
    every function raises `ModeMismatchError` for a test-mode principal.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def read(self, principal: RequestPrincipal, wanted: UsageQuery) -> UsageReport:
        """Read counts of the principal's tenant. Raises `ValidationError` if they are more than
        `MOST_COUNTS`.
        """
        principal.require_mode(ACCEPTED_MODES["live"])
        org_id = principal.org_id
        of_its_own = msgspec.structs.replace(wanted, org_id=org_id, by_tenant=False)
        return await self._read(of_its_own, of_tenant(org_id))

    async def read_any(self, wanted: UsageQuery) -> UsageReport:
        """Read counts of any tenant, or of all. Raises `ValidationError` as `read`."""
        return await self._read(wanted, ACROSS_TENANTS)

    async def _read(self, wanted: UsageQuery, scope: TransactionScope) -> UsageReport:
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            # before the counts: a process may write in between
            complete_until = await store.complete_until(connection, self._clock())
            async with connection.within(scope):
                counts = await store.read(connection, wanted, MOST_COUNTS + 1)
        if len(counts) > MOST_COUNTS:
            text = f"has more than {MOST_COUNTS:,} counts: ask for a shorter time, or by day"
            raise ValidationError(("since", text))
        return UsageReport(counts, complete_until)

    async def recent_hours(self, principal: RequestPrincipal) -> UsageSeries:
        """Read the requests of the tenant in each of the last 24 hours, with the present one."""
        times = latest(UsageInterval.HOUR, _HOURS, self._clock())
        report = await self.read(principal, _since(UsageInterval.HOUR, times))
        return UsageSeries(times, series(report.data, times), report.complete_until)

    async def days_of_keys(self, principal: RequestPrincipal, key_ids: Sequence[str]) -> KeyUsage:
        """Read the requests of these API keys on each of the last 30 days, today included."""
        times = latest(UsageInterval.DAY, _DAYS, self._clock())
        counts: dict[str, list[UsageCount]] = {key_id: [] for key_id in key_ids}
        wanted = _since(UsageInterval.DAY, times, by_key=True, key_ids=tuple(key_ids))
        report = await self.read(principal, wanted)
        for count in report.data:
            if isinstance(count.key_id, str):
                counts[count.key_id].append(count)
        numbers = {key_id: series(found, times) for key_id, found in counts.items()}
        return KeyUsage(times, numbers, report.complete_until)

    async def busiest_keys(self, principal: RequestPrincipal, most: int) -> list[str]:
        """Return the ids of the keys with the most requests in the last 30 days, the busiest first;
        keys without requests are left out.
        """
        principal.require_mode(ACCEPTED_MODES["live"])
        org_id = principal.org_id
        since = latest(UsageInterval.DAY, _DAYS, self._clock())[0]
        async with self._database.transaction(of_tenant(org_id)) as connection:
            return await store.busiest_keys(connection, org_id, since, most)

    async def outcomes_of_key(self, principal: RequestPrincipal, key_id: str) -> OutcomeUsage:
        """Read the requests of one API key on each of the last 30 days, by outcome."""
        times = latest(UsageInterval.DAY, _DAYS, self._clock())
        counts: dict[RequestOutcome, list[UsageCount]] = {outcome: [] for outcome in RequestOutcome}
        wanted = _since(UsageInterval.DAY, times, by_outcome=True, key_ids=(key_id,))
        report = await self.read(principal, wanted)
        for count in report.data:
            if isinstance(count.outcome, RequestOutcome):
                counts[count.outcome].append(count)
        numbers = {outcome: series(found, times) for outcome, found in counts.items()}
        return OutcomeUsage(times, numbers, report.complete_until)


def _since(
    interval: UsageInterval,
    times: Sequence[datetime],
    *,
    by_key: bool = False,
    by_outcome: bool = False,
    key_ids: tuple[str, ...] | None = None,
) -> UsageQuery:
    return UsageQuery(
        interval=interval,
        since=times[0],
        until=times[-1] + interval.length,
        by_key=by_key,
        by_outcome=by_outcome,
        key_ids=key_ids,
    )
