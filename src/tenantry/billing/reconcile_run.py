"""One run over tenants: which of them to compare with the provider, in which order, and what was
found.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from typing import Final

import msgspec

from tenantry.billing import reconcile_store as store
from tenantry.billing.batch_store import read_accounts
from tenantry.billing.reconcile_store import LinkedTenant
from tenantry.billing.subscription_survey import SubscriptionSurvey
from tenantry.billing.tenant_comparison import (
    Comparison,
    MovedSubscription,
    Purpose,
    TenantComparer,
)
from tenantry.common.clock import from_epoch
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.domain.billing.events import KNOWN_TYPES
from tenantry.domain.billing.ledger import BillingAccount
from tenantry.domain.billing.state import UNBEGUN_OR_OVER
from tenantry.domain.errors import DatabaseUnavailableError, DomainError, ProviderRefusedError

EVENTS_KEPT: Final = timedelta(days=30)
"""How long the provider lists an event (its documentation of the events list)."""

_AT_ONCE: Final = 4
_TENANT_ID: Final = attrgetter("tenant_id")
_PAGE: Final = 200
_SKEW: Final = timedelta(hours=1)
"""The most by which the provider's clock and ours may differ."""


class RunObserver(msgspec.Struct, frozen=True):
    """What is called during a run.

    ``compared`` gets the number of tenants done since the last call, ``listed`` that of
    subscriptions read; ``found`` each tenant that has drifted or could not be compared, before its
    missed events are known. If ``stops`` returns True, the run ends after the tenants in flight,
    with the missed events of those that it has repaired.
    """

    compared: Callable[[int], None] = lambda _: None
    listed: Callable[[int], None] = lambda _: None
    found: Callable[[Comparison], None] = lambda _: None
    stops: Callable[[], bool] = lambda: False


NO_OBSERVER: Final = RunObserver()
Groups = AsyncGenerator[Sequence[LinkedTenant], None]


@dataclass(eq=False)
class ReconcileRun:
    """Compares tenants, and keeps what it has found so far.

    `of_account`, `of_named` and `of_each` are sources of a `LedgerRun`, and `compare` is what it
    does: they yield groups of tenants, and an empty one where a run can end. ``since`` is the
    second since which missed events may explain the drift. Methods raise the errors of
    `TenantComparer`, and keep what they have found before.
    """

    comparer: TenantComparer
    survey: SubscriptionSurvey
    dry_run: bool
    observer: RunObserver
    since: int = field(init=False)

    def __post_init__(self) -> None:
        self.since = int(self.comparer.clock().timestamp())
        self._database = self.comparer.database
        self._compared: dict[str, Comparison] = {}
        self._troubled: dict[str, Comparison] = {}
        self._unchanged = 0

    @property
    def drifted(self) -> list[Comparison]:
        """The tenants that have drifted, by id."""
        found = filter(attrgetter("has_drifted"), self._compared.values())
        return sorted(found, key=_TENANT_ID)

    @property
    def troubled(self) -> list[Comparison]:
        """The tenants that could not be compared, by id."""
        return sorted(self._troubled.values(), key=_TENANT_ID)

    @property
    def compared(self) -> int:
        """The number of tenants compared."""
        return self._unchanged + len(self._compared)

    async def of_account(self) -> Groups:
        """List all subscriptions, and yield those tenants alone that may differ.

        Then yield all tenants of which the list has less than their state says.
        """
        if not self.survey.is_read:
            async with aclosing(self._listed()) as groups:
                async for group in groups:
                    yield group
        async with aclosing(self._linked_pages()) as pages:
            async for tenants in pages:
                for group in await self._less_than_expected(tenants):
                    yield group
                yield []
                await self._confirm(tenants)

    async def of_named(self, tenants: Sequence[LinkedTenant]) -> Groups:
        """Yield these tenants, to ask the provider about each customer.

        Then list all subscriptions for those that have no living one: another customer, without a
        link, may have it.
        """
        for group in _groups([each for each in tenants if each.may_have_subscription]):
            yield group
        without = await self._without_subscription(tenants)
        if not without:
            return
        self.survey.only = {tenant.id for tenant in without}
        async with aclosing(self._listed()) as groups:
            async for group in groups:
                yield group
        for group in await self._less_than_expected(without):
            yield group
        await self._confirm(without)

    async def of_each(self, tenants: Sequence[LinkedTenant]) -> Groups:
        """Yield these tenants."""
        for group in _groups(tenants):
            yield group

    async def compare(self, group: Sequence[LinkedTenant], /, *, dry_run: bool) -> None:
        """Ask the provider about these tenants, and about those whose subscriptions have moved."""
        if not group:
            return
        purpose: Purpose = "dry run" if dry_run else "repair"
        moved = await self._compare_group(group, purpose)
        self.observer.compared(len(group))
        while moved and not self.observer.stops():
            others = self._undecided(await self._others_of(moved))
            moved = await self._compare_group(others, purpose) if others else []

    async def _linked_pages(self) -> Groups:
        after = ""
        while True:
            # a tenant that ended between the two statements would make the page look like the last
            async with self._database.transaction(ACROSS_TENANTS, is_snapshot=True) as connection:
                page = await store.linked_tenants(connection, after, _PAGE)
            if page:
                yield page
            if len(page) < _PAGE:
                return
            after = page[-1].id

    async def _without_subscription(self, tenants: Sequence[LinkedTenant]) -> list[LinkedTenant]:
        """Return those of these tenants that have no living subscription."""
        ids = [tenant.id for tenant in tenants]
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            accounts = await read_accounts(connection, ids, self.comparer.policy)
        without = {account.tenant_id for account in accounts if not _has_subscription(account)}
        return [tenant for tenant in tenants if tenant.id in without]

    async def _listed(self) -> Groups:
        """Read the list, and yield the tenants of each page that may differ."""
        survey = self.survey
        subscriptions = self.comparer.provider.every_subscription(survey.after)
        async with aclosing(subscriptions) as pages:
            async for page in pages:
                doubtful = await survey.doubtful_on(page)
                self.observer.listed(len(page))
                for group in _groups(self._undecided(doubtful)):
                    yield group
                yield []
                # only now: all doubtful ones are compared
                survey.after = page[-1].id if page else None
        survey.is_read = True

    async def _less_than_expected(
        self, tenants: Sequence[LinkedTenant]
    ) -> list[Sequence[LinkedTenant]]:
        """Return those of these tenants of which the list has less than expected."""
        return _groups(await self.survey.doubtful_among(self._not_asked(tenants)))

    async def _confirm(self, tenants: Sequence[LinkedTenant]) -> None:
        """Count these tenants as compared, of which the list has what was expected."""
        confirmed = [tenant.id for tenant in self._not_asked(tenants)]
        self._unchanged += len(confirmed)
        self.observer.compared(len(confirmed))
        if not self.dry_run:
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                await store.mark_compared(connection, confirmed, self.survey.begun_at)

    def _not_asked(self, tenants: Iterable[LinkedTenant]) -> list[LinkedTenant]:
        return [tenant for tenant in tenants if tenant.id not in self.survey.asked]

    async def _compare_group(
        self, group: Sequence[LinkedTenant], purpose: Purpose
    ) -> list[MovedSubscription]:
        """Compare tenants at the same time; return the subscriptions that have moved from them or
        to them.

        Others may have been repaired when an error that is not about its tenant is raised.
        """
        moved = list[MovedSubscription]()
        results = await self._compare(group, purpose)
        for tenant, result in zip(group, results, strict=True):
            if isinstance(result, Comparison):
                self._add_with_others(tenant, result)
                moved += result.moved
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return moved

    def _add_with_others(self, tenant: LinkedTenant, result: Comparison) -> None:
        self.survey.asked[tenant.id].update(tenant.all_customers)
        for comparison in (result, *result.others):
            self._add(comparison, self._missed_since(tenant))

    async def _compare(
        self, group: Sequence[LinkedTenant], purpose: Purpose
    ) -> list[Comparison | BaseException]:
        """Compare tenants at the same time. Raises what the provider answers to all of them.

        An error about its tenant becomes the trouble of its comparison; another one is in the place
        of the comparison.
        """
        comparing = [self.comparer.compare(tenant, purpose) for tenant in group]
        results = await asyncio.gather(*comparing, return_exceptions=True)
        refusals = [result for result in results if _is_refusal(result)]
        if len(refusals) == len(group):
            await self._raise_common(refusals)
        return [
            Comparison(tenant.id, trouble=str(result)) if _is_refusal(result) else result
            for tenant, result in zip(group, results, strict=True)
        ]

    async def _raise_common(self, refusals: Iterable[object]) -> None:
        """Raise what the provider answers to any request, if these refusals are not about their
        tenants.
        """
        for refusal in refusals:
            if isinstance(refusal, ProviderRefusedError) and refusal.of_key:
                raise refusal  # the request below may not need the missing permission
        now = int(self.comparer.clock().timestamp())
        listing = self.comparer.provider.events_since(now, KNOWN_TYPES)
        async with aclosing(listing) as events:
            await anext(events, None)

    async def _others_of(self, moved: Iterable[MovedSubscription]) -> list[LinkedTenant]:
        """Return the other tenants of subscriptions that have moved, each with the customers of
        these too.
        """
        customers = defaultdict[str, set[str]](set)
        for tenant_id, customer_id in moved:
            customers[tenant_id].add(customer_id)
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            found = await store.tenants_by_id(connection, customers)
        return [tenant.with_listed(customers[tenant.id], ()) for tenant in found]

    def _undecided(self, tenants: Iterable[LinkedTenant]) -> list[LinkedTenant]:
        """Return the tenants that were not compared yet with all of these customers."""
        asked = self.survey.asked
        return [
            tenant
            for tenant in tenants
            if not asked.get(tenant.id, set()).issuperset(tenant.all_customers)
        ]

    def _missed_since(self, tenant: LinkedTenant) -> int:
        """Return the second since which missed events may explain a tenant's drift.

        That is the second of its last comparison, else that in which its subscription began.
        """
        since = self.comparer.clock() - EVENTS_KEPT
        began = tenant.compared_at or from_epoch(tenant.begun_at)
        if began is not None:
            since = max(since, began - _SKEW)
        return int(since.timestamp())

    def _add(self, comparison: Comparison, since: int) -> None:
        """Count a comparison; of several of one tenant the drift of all, and the trouble of the
        last.
        """
        tenant_id = comparison.tenant_id
        if comparison.has_drifted or comparison.trouble:
            self.observer.found(comparison)
        if comparison.trouble:
            self._troubled[tenant_id] = comparison
            return
        if comparison.has_drifted:
            self.since = min(self.since, since)
        self._troubled.pop(tenant_id, None)
        former = self._compared.get(tenant_id)
        self._compared[tenant_id] = comparison if former is None else _both(former, comparison)


def _groups(tenants: Sequence[LinkedTenant]) -> list[Sequence[LinkedTenant]]:
    """Return the tenants that are compared at the same time."""
    return [tenants[start : start + _AT_ONCE] for start in range(0, len(tenants), _AT_ONCE)]


def _both(former: Comparison, later: Comparison) -> Comparison:
    """Sum up two comparisons of a tenant: each field as it was at first, and as it is after the
    later one.
    """
    drift = dict(former.drift)
    for name, (ours, theirs) in later.drift.items():
        first, _ = former.drift.get(name, (ours, theirs))
        drift[name] = (first, theirs)
    linked = dict.fromkeys((*former.linked, *later.linked))
    return Comparison(
        later.tenant_id,
        drift,
        repaired=former.repaired or later.repaired,
        linked=tuple(linked),
        unknown_prices=later.unknown_prices,
    )


def _is_refusal(result: Comparison | BaseException) -> bool:
    """Whether the provider rejected the requests about a tenant."""
    return isinstance(result, DomainError) and not isinstance(result, DatabaseUnavailableError)


def _has_subscription(account: BillingAccount) -> bool:
    """Whether a subscription of a tenant has begun and has not ended."""
    return any(state.provider_status not in (None, *UNBEGUN_OR_OVER) for state in account.states())
