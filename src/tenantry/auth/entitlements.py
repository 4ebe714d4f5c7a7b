"""The features of a principal's tenant, and the consumption of metered ones: each is decided under
a lock, so that all processes together never exceed a quota.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from tenantry.auth import entitlements_store as store
from tenantry.auth.authentication import NO_ISSUER, check_key, check_user
from tenantry.auth.authentication_store import UserAccessRow, UserQuery, find_user_access
from tenantry.auth.entitlements_store import ConsumptionKey, KeptConsumption, Locked
from tenantry.common.clock import Clock
from tenantry.db.batcher import Batcher
from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database, Lane
from tenantry.db.idempotency_store import Claim, KeptAnswer
from tenantry.domain.entitlements import (
    NO_BILLING,
    Consumed,
    Entitlement,
    Usage,
    UsagePeriod,
    consumable_feature,
    consume,
    consumed_of,
    entitlement_of,
    features_of,
    given_value,
    known_feature,
    limit_of,
    period_at,
)
from tenantry.domain.errors import (
    ConsumptionGivenBackError,
    DomainError,
    QuotaExceededError,
    UnknownConsumptionError,
)
from tenantry.domain.features import Feature
from tenantry.domain.permissions import Mode, PrincipalKind, RequestPrincipal
from tenantry.domain.plans import Catalog
from tenantry.domain.quota_notices import MeteredUse, UseChange
from tenantry.domain.quotas import Quota
from tenantry.domain.telemetry import SILENT, Telemetry

MOST_AT_ONCE: Final = 128
"""The most requests of a batch: each may hold a lock, of which PostgreSQL has a fixed number."""

TellUse = Callable[[Connection, Sequence[UseChange], datetime], Awaitable[None]]
"""Reports used quotas in the transaction that counts, given the changes and the time."""


class Consumption(NamedTuple):
    """A request to consume ``amount`` of a feature whose ``limit`` is None without one."""

    principal: RequestPrincipal
    use: MeteredUse
    feature: Feature
    limit: int | None
    amount: int
    claim: Claim | None

    @property
    def key(self) -> ConsumptionKey | None:
        """The idempotency key of the request, if it has one."""
        if self.claim is None:
            return None
        return ConsumptionKey(*self.use, self.claim.key)


class EntitlementService:
    """The entitlements of principals. Live and test use are counted apart, each up to the limit.

    Requests that consume at the same time share a transaction, and are decided in their order.
    """

    def __init__(
        self,
        database: Database,
        lane: Lane,
        catalog: Catalog,
        clock: Clock,
        tell: Sequence[TellUse] = (),
        telemetry: Telemetry = SILENT,
    ) -> None:
        """``tell`` report used quotas."""
        self._telemetry = telemetry
        self._tell = tell
        self._database = database
        self._lane = lane
        self._catalog = catalog
        self._clock = clock
        self._batcher: Batcher[Consumption, Consumed] = Batcher(
            self._serve,
            max_items=MOST_AT_ONCE,
            start_timeout=lane.timeouts.batch_start,
            deadline=lane.timeouts.batch,
            metrics=lane.metrics,
        )

    async def list_all(self, principal: RequestPrincipal) -> list[Entitlement]:
        """Return every feature of the catalog, in its order."""
        return await self._entitlements(principal, list(self._catalog.features.values()))

    async def get(self, principal: RequestPrincipal, name: str) -> Entitlement:
        """Return one feature. Raises `UnknownFeatureError`."""
        [entitlement] = await self._entitlements(principal, [known_feature(name, self._catalog)])
        return entitlement

    async def quotas(self, principal: RequestPrincipal) -> list[Quota]:
        """Return the metered features that the tenant has, in the order of the catalog."""
        given = features_of(principal.access_phase, self._catalog)
        metered = [
            feature
            for feature in self._catalog.features.values()
            if feature.type == "metered" and feature.id in given
        ]
        usages = await self._usages(principal, metered) if metered else {}
        return [
            Quota(feature, limit_of(given[feature.id]), usages[feature.id]) for feature in metered
        ]

    async def consume(
        self, principal: RequestPrincipal, name: str, amount: int, claim: Claim | None
    ) -> Consumed:
        """Consume some of a metered feature; the request of a ``claim`` is counted once.

        Raises `UnknownFeatureError`, `FeatureNotMeteredError`, `FeatureNotGrantedError`,
        `QuotaExceededError` if less is left, `IdempotencyMismatchError`,
        `ConsumptionGivenBackError`, and `DatabaseUnavailableError`, after which it may be counted.
        """
        feature = consumable_feature(name, self._catalog)
        value = given_value(feature, principal.access_phase, self._catalog)
        use = MeteredUse(principal.org_id, principal.mode, feature.id)
        request = Consumption(principal, use, feature, limit_of(value), amount, claim)
        try:
            return await self._batcher.submit(request)
        except QuotaExceededError:
            self._telemetry.quota_exceeded(feature.id)
            raise

    async def give_back(self, principal: RequestPrincipal, name: str, key: str) -> Consumed:
        """Give back what the consumption with an idempotency key took, once, to the counter of its
        own period; return the use in the present one. Repeated, it returns the first answer.

        Raises `UnknownConsumptionError` if no consumption of the last 24 hours has the key, and
        `DatabaseUnavailableError`, after which it may be given back.
        """
        feature = self._catalog.features.get(name)
        if feature is None:
            raise UnknownConsumptionError
        use = MeteredUse(principal.org_id, principal.mode, name)
        consumption_key = ConsumptionKey(*use, key)
        now = self._clock()
        # The API's role may change no counter.
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            found = await store.lock_and_find(connection, consumption_key, now)
            if found is None:
                raise UnknownConsumptionError
            if found.given_back is not None:
                return msgspec.json.decode(found.given_back, type=Consumed)
            returned = [(use, found.period_start, found.taken)]
            periods = await periods_of(connection, {use: feature}, now)
            usages = await store.return_and_lock(connection, returned, periods)
            limit = limit_of(features_of(principal.access_phase, self._catalog).get(name))
            answer = consumed_of(usages[use], limit)
            await store.mark_given_back(connection, consumption_key, msgspec.json.encode(answer))
        return answer

    async def close(self) -> None:
        """Wait until what was begun is counted."""
        await self._batcher.close()

    async def _entitlements(
        self, principal: RequestPrincipal, features: Sequence[Feature]
    ) -> list[Entitlement]:
        metered = [feature for feature in features if feature.type == "metered"]
        usages = await self._usages(principal, metered) if metered else {}
        return [
            entitlement_of(
                feature,
                principal.access_phase,
                self._catalog,
                usages.get(feature.id),
            )
            for feature in features
        ]

    async def _usages(
        self, principal: RequestPrincipal, metered: Sequence[Feature]
    ) -> dict[str, Usage]:
        org_id = principal.org_id
        uses = {MeteredUse(org_id, principal.mode, feature.id): feature for feature in metered}
        async with self._database.transaction(of_tenant(org_id)) as connection:
            periods = await periods_of(connection, uses, self._clock())
            usages = await store.read(connection, periods)
        return {use.feature: usage for use, usage in usages.items()}

    async def _serve(self, batch: Sequence[Consumption]) -> list[Consumed | Exception]:
        now = self._clock()
        uses = {each.use: each.feature for each in batch}
        keys = {key for each in batch if (key := each.key) is not None}
        async with self._lane.use() as connection:
            periods = await periods_of(connection, uses, now)
            callers = {each.principal.id for each in batch if _is_key(each.principal)}
            locked = await store.lock_and_read(connection, periods, keys, callers, now)
            users = await _find_users(connection, batch)
            decisions = _Decisions(locked, users, self._clock())
            answers = [decisions.decide(each) for each in batch]
            changes = list(decisions.changes())
            await write_use(connection, changes, self._tell, now, consumed=decisions.consumed)
        return answers


def _is_key(principal: RequestPrincipal) -> bool:
    return principal.kind is PrincipalKind.API_KEY


async def _find_users(
    connection: Connection, batch: Sequence[Consumption]
) -> dict[UserQuery, UserAccessRow]:
    """Return the access that the users of a batch have now."""
    queries = list({_user_of(each.principal) for each in batch if not _is_key(each.principal)})
    if not queries:
        return {}
    found = await find_user_access(connection, queries)
    return {query: row for query, rows in zip(queries, found, strict=True) for row in rows}


def _user_of(principal: RequestPrincipal) -> UserQuery:
    return UserQuery(principal.issuer or NO_ISSUER, principal.id, principal.org_id)


async def periods_of(
    connection: Connection, uses: Mapping[MeteredUse, Feature], now: datetime
) -> dict[MeteredUse, UsagePeriod]:
    """Return the current period of each use."""
    tenants = {use.org_id for use, feature in uses.items() if feature.usage_period != "month"}
    billing = await store.billing_now(connection, tenants, now) if tenants else {}
    return {
        use: period_at(feature, now, billing.get(use.org_id, NO_BILLING))
        for use, feature in uses.items()
    }


async def write_use(
    connection: Connection,
    changes: Sequence[UseChange],
    tell: Sequence[TellUse],
    now: datetime,
    *,
    consumed: Mapping[ConsumptionKey, KeptConsumption],
) -> None:
    """Report what a transaction changes of the use in live mode, write it, and commit."""
    live = [change for change in changes if change.use.mode is Mode.LIVE]
    for report in tell:
        await report(connection, live, now)
    await store.add(connection, changes, consumed, now)


class _Decisions:
    """Decides the requests of a batch one after another, on what the database had before."""

    def __init__(
        self,
        locked: Locked,
        users: Mapping[UserQuery, UserAccessRow],
        now: datetime,
    ) -> None:
        self._callers = locked.callers
        self._users = users
        self._now = now
        self._before = locked.usages
        self._usages = dict(locked.usages)
        self._last: dict[MeteredUse, Consumption] = {}
        self._first = locked.first
        self.consumed: dict[ConsumptionKey, KeptConsumption] = {}
        """The first consumptions with a key."""

    def decide(self, each: Consumption) -> Consumed | Exception:
        """Return the answer to a request, or its error."""
        try:
            self._check_caller(each.principal)
            return self._repeated(each) or self._consume(each)
        except DomainError as error:
            return error

    def changes(self) -> Iterator[UseChange]:
        """Yield what the requests so far change of each use."""
        for use, last in self._last.items():
            before, after = self._before[use], self._usages[use]
            yield UseChange(use, before, after, last.limit, last.principal.access_phase)

    def _check_caller(self, principal: RequestPrincipal) -> None:
        """Raise the error of a caller that lost its access while the request waited (CONTRACT
        8.2).
        """
        if _is_key(principal):
            check_key(self._callers.get(principal.id), self._now)
        else:
            check_user(principal, self._users.get(_user_of(principal)))

    def _repeated(self, each: Consumption) -> Consumed | None:
        """Return the answer of the request that this one repeats, if any."""
        if each.claim is None or each.key is None:
            return None
        first = self._first.get(each.key) or self.consumed.get(each.key)
        if first is None:
            return None
        if first.given_back is not None:
            raise ConsumptionGivenBackError
        return first.answer.repeat(each.claim, Consumed)

    def _consume(self, each: Consumption) -> Consumed:
        before = self._usages[each.use]
        usage = consume(before, each.limit, each.amount, each.feature.id)
        self._usages[each.use] = usage
        self._last[each.use] = each
        answer = consumed_of(usage, each.limit)
        if each.claim is not None and each.key is not None:
            kept, taken = KeptAnswer.of(each.claim, answer), usage.used - before.used
            self.consumed[each.key] = KeptConsumption(kept, taken, usage.period.start)
        return answer
