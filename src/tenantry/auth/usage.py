"""Read how many requests the API keys of a tenant sent."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Final, Generic, TypeVar

import msgspec

from tenantry.audit.trail_store import read_names
from tenantry.auth import usage_store as store
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS, TransactionScope, of_tenant
from tenantry.db.database import Database
from tenantry.domain.errors import ValidationError
from tenantry.domain.permissions import ACCEPTED_MODES, RequestPrincipal
from tenantry.domain.usage import (
    ALL_USERS,
    MOST_COUNTS,
    RecentUsage,
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
RECENT_DAYS: Final = 7
_EXPORTED_AT_ONCE: Final = 100
"""Hours or days, if keys are not told apart: there may be thousands of them."""
OTHER_KEYS: Final = "others"
"""The group of all keys that have none of their own."""
Group = TypeVar("Group")


class UsageSeries(msgspec.Struct, frozen=True):
    """Numbers of requests, one for each of ``times``, oldest first."""

    times: tuple[datetime, ...]
    numbers: tuple[int, ...]
    complete_until: datetime

    @property
    def total(self) -> int:
        return sum(self.numbers)


class GroupedUsage(msgspec.Struct, Generic[Group], frozen=True):
    """The requests of API keys by hour or day, oldest first, in groups: by the key's id, or by
    outcome.
    """

    times: tuple[datetime, ...]
    numbers: Mapping[Group, tuple[int, ...]]
    """One number for each of ``times``, of every group."""
    complete_until: datetime


class KeyUsage(msgspec.Struct, frozen=True):
    """The requests of the busiest API keys by hour or day, of `ALL_USERS` and of `OTHER_KEYS`; and
    the names of these keys by id.
    """

    usage: GroupedUsage[str]
    names: Mapping[str, str]


class ExportedUsage(msgspec.Struct, frozen=True):
    """A part of an export: counts, and the names of their keys by id."""

    counts: Sequence[UsageCount]
    names: Mapping[str, str]


@dataclass(frozen=True)
class UsageService:
    """Reads the usage of a tenant. Callers check the scope ``usage:read``; usage has no test mode:
    every function raises `ModeMismatchError` for a test-mode principal.
    """

    database: Database
    clock: Clock

    async def read(self, principal: RequestPrincipal, wanted: UsageQuery) -> UsageReport:
        """Read counts of the principal's tenant. Raises `ValidationError` if they are more than
        `MOST_COUNTS`.
        """
        return await self._read(_of_its_own(principal, wanted), of_tenant(principal.org_id))

    async def read_any(self, wanted: UsageQuery) -> UsageReport:
        """Read counts of any tenant, or of all. Raises `ValidationError` as `read`."""
        return await self._read(wanted, ACROSS_TENANTS)

    async def _read(self, wanted: UsageQuery, scope: TransactionScope) -> UsageReport:
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            # before the counts: a process may write in between
            complete_until = await store.complete_until(connection, self.clock())
            async with connection.within(scope):
                counts = await store.read(connection, wanted, MOST_COUNTS + 1)
        if len(counts) > MOST_COUNTS:
            text = f"has more than {MOST_COUNTS:,} counts: ask for a shorter time, or by day"
            raise ValidationError(("since", text))
        return UsageReport(counts, complete_until)

    async def recent_of_tenants(self, tenants: Collection[str]) -> dict[str, RecentUsage]:
        """Read the requests of tenants in the last `RECENT_DAYS`, today included, by tenant."""
        since = latest(UsageInterval.DAY, RECENT_DAYS, self.clock())[0]
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await store.recent_of_tenants(connection, tenants, since)

    async def recent_hours(self, principal: RequestPrincipal) -> UsageSeries:
        """Read the requests of the tenant in each of the last 24 hours, with the present one."""
        times = latest(UsageInterval.HOUR, _HOURS, self.clock())
        report = await self.in_total(principal, UsageInterval.HOUR, times)
        return UsageSeries(times, series(report.data, times), report.complete_until)

    async def days_of_keys(
        self, principal: RequestPrincipal, key_ids: Sequence[str]
    ) -> GroupedUsage[str]:
        """Read the requests of these API keys on each of the last 30 days, today included."""
        times = latest(UsageInterval.DAY, _DAYS, self.clock())
        wanted = _since(UsageInterval.DAY, times, by_key=True, key_ids=tuple(key_ids))
        report = await self.read(principal, wanted)
        return _grouped(report, times, key_ids, attrgetter("key_id"))

    async def busiest_keys(self, principal: RequestPrincipal, most: int) -> list[str]:
        """Return the ids of the keys with the most requests in the last 30 days, the busiest first;
        keys without requests are left out.
        """
        times = latest(UsageInterval.DAY, _DAYS, self.clock())
        wanted = _of_its_own(principal, _since(UsageInterval.DAY, times))
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await store.busiest_keys(connection, wanted, most)

    async def outcomes_of_key(
        self, principal: RequestPrincipal, key_id: str
    ) -> GroupedUsage[RequestOutcome]:
        """Read the requests of one API key on each of the last 30 days, by outcome."""
        times = latest(UsageInterval.DAY, _DAYS, self.clock())
        return await self.by_outcome(principal, UsageInterval.DAY, times, (key_id,))

    async def in_total(
        self, principal: RequestPrincipal, interval: UsageInterval, times: Sequence[datetime]
    ) -> UsageReport:
        """Read the tenant's requests at these consecutive times."""
        return await self.read(principal, _since(interval, times))

    async def by_outcome(
        self,
        principal: RequestPrincipal,
        interval: UsageInterval,
        times: tuple[datetime, ...],
        key_ids: tuple[str, ...] | None = None,
    ) -> GroupedUsage[RequestOutcome]:
        """Read the tenant's requests at these consecutive times by outcome; only those of some
        keys, if given.
        """
        wanted = _since(interval, times, by_outcome=True, key_ids=key_ids)
        report = await self.read(principal, wanted)
        return _grouped(report, times, RequestOutcome, attrgetter("outcome"))

    async def by_key(
        self,
        principal: RequestPrincipal,
        interval: UsageInterval,
        times: tuple[datetime, ...],
        most: int,
    ) -> KeyUsage:
        """Read the tenant's requests at these consecutive times by key: the ``most`` busiest ones,
        the busiest first.
        """
        wanted = _of_its_own(principal, _since(interval, times))
        scope = of_tenant(principal.org_id)
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            complete_until = await store.complete_until(connection, self.clock())
            async with connection.within(scope):
                busiest = await store.busiest_keys(connection, wanted, most)
                groups = (*busiest, ALL_USERS)
                of_groups = msgspec.structs.replace(wanted, by_key=True, key_ids=groups)
                counts = await store.read(connection, of_groups, None)
                everything = await store.read(connection, wanted, None)
                names = await read_names(connection, principal.org_id, busiest)
        usage = _grouped(
            UsageReport(counts, complete_until),
            times,
            groups,
            lambda count: count.key_id or ALL_USERS,
        )
        shown = [sum(numbers) for numbers in zip(*usage.numbers.values(), strict=True)]
        total = series(everything, times)
        others = tuple(number - part for number, part in zip(total, shown, strict=True))
        numbers = {**usage.numbers, OTHER_KEYS: others}
        return KeyUsage(msgspec.structs.replace(usage, numbers=numbers), names)

    async def export(
        self, principal: RequestPrincipal, wanted: UsageQuery
    ) -> AsyncIterator[ExportedUsage]:
        """Read all counts of the tenant in parts, oldest first: each is so small that other
        requests do not wait for it.
        """
        wanted = _of_its_own(principal, wanted)
        step = wanted.interval.length * (1 if wanted.by_key else _EXPORTED_AT_ONCE)
        names = dict[str, str]()
        since = wanted.since
        while since < wanted.until:
            until = min(since + step, wanted.until)
            part = msgspec.structs.replace(wanted, since=since, until=until)
            yield await self._export_part(principal.org_id, part, names)
            since = until

    async def _export_part(
        self, org_id: str, part: UsageQuery, names: dict[str, str]
    ) -> ExportedUsage:
        """Read a part; ``names`` are those that are known, and get those that are not."""
        async with self.database.transaction(of_tenant(org_id)) as connection:
            counts = await store.read(connection, part, None)
            unknown = {count.key_id for count in counts if count.key_id} - names.keys()
            if unknown:
                found = await read_names(connection, org_id, unknown)
                names.update({key_id: found.get(key_id, "") for key_id in unknown})
        return ExportedUsage(counts, names)


def _of_its_own(principal: RequestPrincipal, wanted: UsageQuery) -> UsageQuery:
    """Return the query of the principal's tenant alone. Raises `ModeMismatchError`."""
    principal.require_mode(ACCEPTED_MODES["live"])
    return msgspec.structs.replace(wanted, org_id=principal.org_id, by_tenant=False)


def _grouped(
    report: UsageReport,
    times: tuple[datetime, ...],
    groups: Iterable[Group],
    group_of: Callable[[UsageCount], Group],
) -> GroupedUsage[Group]:
    """Return the counts of a report by their group, each of which is one of ``groups``."""
    counts: dict[Group, list[UsageCount]] = {group: [] for group in groups}
    for count in report.data:
        counts[group_of(count)].append(count)
    numbers = {group: series(found, times) for group, found in counts.items()}
    return GroupedUsage(times, numbers, report.complete_until)


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
