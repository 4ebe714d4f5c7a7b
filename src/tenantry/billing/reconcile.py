"""Reconciling tenants with the provider: fetch, compare, repair, and ingest events that never arrived."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Literal

import msgspec

from tenantry.billing import ingest, ledger_store
from tenantry.billing import reconcile_store as store
from tenantry.billing.backfill import Backfill, MissedEvent
from tenantry.billing.ingest import WebhookService
from tenantry.billing.reconcile_store import LedgerPosition, LinkedTenant
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.domain.billing.events import KNOWN_TYPES, Anomaly, Fact
from tenantry.domain.billing.ledger import BillingAccount, ReceivedEvent
from tenantry.domain.billing.snapshot import CustomerSubscriptions, snapshots
from tenantry.domain.billing.state import BillingPolicy, BillingState, fold_key
from tenantry.domain.billing.tenant_record import differences
from tenantry.domain.errors import DatabaseUnavailableError, DomainError, NotFoundError, ProviderRefusedError
from tenantry.domain.plans import OVER
from tenantry.domain.tenants import is_tenant_id
from tenantry.integrations.stripe.client import ProviderApi

EVENTS_KEPT: Final = timedelta(days=30)
"""How long the provider lists an event (its documentation of the events list)."""
STALE_TENANTS: Final = "silent_tenants"
"""The name of the finding in the database."""

_AT_ONCE: Final = 4
_PAGE: Final = 200
_TRIES: Final = 3
_SKEW: Final = timedelta(hours=1)
"""The most by which the provider's clock and ours may differ."""
_SKIPPED_FOR: Final = timedelta(hours=1)
_MOST_NAMED: Final = 20

Progress = Callable[[int], None]
_Purpose = Literal["snapshot", "repair", "dry run"]
"""What a fetched snapshot is for: only the ledger, or a comparison that finds drift."""

logger = logging.getLogger(__name__)


class Comparison(msgspec.Struct, frozen=True):
    """A tenant compared with the provider.

    ``drift`` has each field of the tenant record that differs: ours, then the provider's; ``missed`` are the events
    that never arrived, oldest first. ``trouble`` is why the tenant could not be compared.
    """

    tenant_id: str
    drift: dict[str, tuple[Fact, Fact]] = {}
    repaired: bool = False
    missed: tuple[MissedEvent, ...] = ()
    trouble: str | None = None


class Reconciliation(msgspec.Struct, frozen=True):
    """The number of tenants compared; those that had drifted, and those that could not be compared, by id.

    ``stopped`` is the error that stopped the run, if any.
    """

    compared: int
    drifted: tuple[Comparison, ...]
    troubled: tuple[Comparison, ...]
    stopped: DomainError | None = None


@dataclass(eq=False)
class Reconciler:
    """Fetches snapshots from the provider and folds them. They enter the ledger, so that a rebuild keeps them.

    Methods raise `ProviderUnavailableError`, `ProviderRefusedError` and `DatabaseUnavailableError`, unless they return
    a partial result.
    """

    database: Database
    provider: ProviderApi
    webhooks: WebhookService
    policy: BillingPolicy
    outbox: ingest.Outbox
    clock: Clock
    skipped: dict[str, datetime] = field(default_factory=dict, init=False)

    @property
    def backfill(self) -> Backfill:
        return Backfill(self.database, self.provider, self.webhooks, self.clock, self.policy)

    async def fetch_snapshot(self, tenant_id: str) -> None:
        """Fetch and fold a tenant's snapshot; do nothing for a tenant that has ended or has no customer."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            tenant = await store.linked_tenant(connection, tenant_id)
        if tenant is not None:
            await self._fetch_and_fold(tenant, "snapshot")

    async def count(self, tenants: Sequence[str] | None = None) -> int:
        """Count the tenants that `run` compares.

        Raises `NotFoundError` for a named tenant that does not exist or has no customer.
        """
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            if tenants is None:
                return await store.count_linked_tenants(connection)
            possible = [tenant_id for tenant_id in set(tenants) if is_tenant_id(tenant_id)]
            known = await store.linked_tenants(connection, "", possible, len(possible))
        missing = sorted(set(tenants) - {tenant.id for tenant in known})
        if missing:
            raise NotFoundError(f"tenant with a customer at the payment provider: {', '.join(missing)}")
        return len(known)

    async def run(
        self, tenants: Sequence[str] | None = None, *, dry_run: bool = False, progress: Progress = lambda _: None
    ) -> Reconciliation:
        """Compare all linked tenants, or those named, with the provider, and repair those that differ.

        With ``dry_run`` nothing is written. ``progress`` is called with the number of tenants done since the last call.
        Raises `NotFoundError` for a named tenant that does not exist or has no customer; then nothing is done. Another
        error stops the run and is part of the result.
        """
        if tenants is not None:
            await self.count(tenants)
        return await self._compare_all(self._linked_groups(tenants), "dry run" if dry_run else "repair", progress)

    async def run_due(self, older_than: timedelta, most: int) -> Reconciliation:
        """Compare, repair and log up to ``most`` tenants whose last comparison is longer ago than ``older_than``.

        A tenant that cannot be compared is skipped for an hour, so that it does not hold up others.
        """
        now = self.clock()
        self.skipped = {tenant_id: until for tenant_id, until in self.skipped.items() if until > now}
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            due = await store.due_tenants(connection, now - older_than, most, without=self.skipped)
        found = await self._compare_all(_groups(due), "repair", lambda _: None)
        self.skipped |= {comparison.tenant_id: now + _SKIPPED_FOR for comparison in found.troubled}
        for comparison in found.drifted:
            logger.warning(
                "tenant %s had drifted from the provider and is repaired: %s",
                comparison.tenant_id, ", ".join(sorted(comparison.drift)),
            )  # fmt: skip
        if found.troubled:
            named = "; ".join(f"{each.tenant_id}: {each.trouble}" for each in found.troubled[:_MOST_NAMED])
            logger.warning("tenants that could not be compared with the provider: %d (%s)", len(found.troubled), named)
        if found.stopped is not None:
            raise found.stopped
        return found

    async def _linked_groups(self, only: Sequence[str] | None) -> AsyncIterator[Sequence[LinkedTenant]]:
        after = ""
        while True:
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                page = await store.linked_tenants(connection, after, only, _PAGE)
            async for group in _groups(page):
                yield group
            if len(page) < _PAGE:
                return
            after = page[-1].id

    async def _compare_all(
        self, groups: AsyncIterator[Sequence[LinkedTenant]], purpose: _Purpose, progress: Progress
    ) -> Reconciliation:
        compared, drifted, troubled = 0, list[Comparison](), list[Comparison]()
        since, stopped = int(self.clock().timestamp()), None
        try:
            async for group in groups:
                for tenant, comparison in zip(group, await self._compare(group, purpose), strict=True):
                    compared += comparison.trouble is None
                    if comparison.trouble:
                        troubled.append(comparison)
                    elif comparison.drift:
                        drifted.append(comparison)
                        since = min(since, self._missed_since(tenant))
                progress(len(group))
            if drifted:
                drifted = await self._with_missed(drifted, since, dry_run=purpose == "dry run")
        except DomainError as error:
            stopped = error
        return Reconciliation(compared, tuple(drifted), tuple(troubled), stopped)

    async def _compare(self, group: Sequence[LinkedTenant], purpose: _Purpose) -> list[Comparison]:
        """Compare tenants at the same time. Raises errors that are not about one of them."""
        results = await asyncio.gather(
            *(self._fetch_and_fold(tenant, purpose) for tenant in group), return_exceptions=True
        )
        refusals = [
            result
            for result in results
            if isinstance(result, DomainError) and not isinstance(result, DatabaseUnavailableError)
        ]
        if len(refusals) == len(group):
            for refusal in refusals:
                if isinstance(refusal, ProviderRefusedError) and refusal.of_key:
                    raise refusal  # the check below may not need the missing permission
            # a request that is not about a tenant raises the provider's error, if any
            now = int(self.clock().timestamp())
            async with aclosing(self.provider.events_since(now, KNOWN_TYPES)) as events:
                await anext(events, None)
        comparisons = []
        for tenant, result in zip(group, results, strict=True):
            if isinstance(result, BaseException) and result not in refusals:
                raise result
            trouble = Comparison(tenant.id, trouble=str(result))
            comparisons.append(result if isinstance(result, Comparison) else trouble)
        return comparisons

    async def _fetch_and_fold(self, tenant: LinkedTenant, purpose: _Purpose) -> Comparison:
        """Fetch the subscriptions of all customers of a tenant and fold them.

        Try again if the tenant's customers changed meanwhile, or if the snapshot cannot be applied and an event changed
        the tenant's state meanwhile: the snapshot may be older than the event.
        """
        comparison = Comparison(tenant.id)
        for _ in range(_TRIES):
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                before = await ledger_store.lock_account(connection, tenant.id, self.policy)
                position = await store.read_position(connection, tenant.id)
            fetched, unknown = await self._fetch(tenant)
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                account = await ledger_store.lock_account(connection, tenant.id, self.policy)
                present = await store.linked_tenant(connection, tenant.id)
                if before is None or account is None or present is None:
                    return Comparison(tenant.id)  # it has ended meanwhile
                if present.all_customers != tenant.all_customers:
                    comparison = Comparison(tenant.id, trouble="its customers changed while the provider was asked")
                else:
                    comparison = await self._fold(connection, account, present, position, fetched, unknown, purpose)
                    if comparison.trouble is None or account.states() == before.states():
                        return comparison
            tenant = present
        return comparison

    async def _fetch(self, tenant: LinkedTenant) -> tuple[CustomerSubscriptions | None, list[str]]:
        """Fetch the subscriptions of a tenant's customers, and which customers the provider does not know."""
        found, unknown = list[CustomerSubscriptions](), list[str]()
        for customer_id in tenant.all_customers:
            fetched = await self.provider.subscriptions_of(customer_id)
            if fetched is None:
                unknown.append(customer_id)
            else:
                found.append(fetched)
        if not found:
            return None, unknown
        subscriptions = tuple(subscription for each in found for subscription in each.subscriptions)
        return CustomerSubscriptions(min(each.as_of for each in found), subscriptions), unknown

    async def _fold(
        self,
        connection: Connection,
        account: BillingAccount,
        tenant: LinkedTenant,
        position: LedgerPosition,
        fetched: CustomerSubscriptions | None,
        unknown: Sequence[str],
        purpose: _Purpose,
    ) -> Comparison:
        """Fold snapshots into the locked account; return what that changes (or would change) in the tenant.

        A comparison with trouble has folded nothing: the provider does not know a customer, or a living subscription
        that the tenant's state is from.
        """
        now, missing = self.clock(), self._unknown_subscriptions(account, fetched)
        if fetched is None or (unknown and missing):
            return Comparison(tenant.id, trouble=f"the provider does not know its customer: {', '.join(unknown)}")
        events = snapshots(
            fetched.subscriptions, account, self.policy, new_id=partial(new_id, "snapshot"),
            # events that had arrived before the request happened before the snapshot, whatever the clocks say
            as_of=max(fetched.as_of, position.newest or 0), arrival=position.arrival,
            unlinked=tenant.unlinked,
        )  # fmt: skip
        if not self.policy.is_each:
            is_living = account.state.provider_status not in (None, *OVER)
            missing = [account.state.subscription_id or "(without id)"] if is_living and not events else []
        if missing:
            trouble = f"the provider does not know its subscription {', '.join(missing)}"
            return Comparison(tenant.id, trouble=trouble)
        drift: dict[str, tuple[Fact, Fact]] = {}
        if events:
            received = [ReceivedEvent(event, now) for event in events]
            application = await ingest.apply_batch(connection, received, self.policy, now)
            drift, drifted = _drift(account, application.account(tenant.id), self.policy)
            if purpose != "snapshot":
                application.entries[:] = [
                    msgspec.structs.replace(entry, anomalies=(*entry.anomalies, Anomaly.DRIFT))
                    if fold_key(entry.received.event, self.policy) in drifted
                    else entry
                    for entry in application.entries
                ]
            await ingest.write(connection, application, self.outbox, now)
        if purpose == "dry run":
            await connection.rollback()
        elif purpose == "repair":
            await store.mark_compared(connection, tenant.id, now)
        return Comparison(tenant.id, drift, repaired=bool(drift) and purpose != "dry run")

    def _unknown_subscriptions(self, account: BillingAccount, fetched: CustomerSubscriptions | None) -> list[str]:
        """Return the subscriptions that give the tenant its state and that the provider did not return."""
        if self.policy.is_each:
            living = [key for key, fold in account.folds.items() if fold.state.provider_status not in (None, *OVER)]
            current = [key for key in living if key and key not in account.moved_at]
        else:
            current = [account.state.subscription_id] if account.state.subscription_id else []
        known = {each.id for each in fetched.subscriptions} if fetched else set()
        return [each for each in current if each not in known]

    def _missed_since(self, tenant: LinkedTenant) -> int:
        """Return the second since which missed events may explain a tenant's drift: that of its last comparison."""
        since = self.clock() - EVENTS_KEPT
        if tenant.compared_at is not None:
            since = max(since, tenant.compared_at - _SKEW)
        return int(since.timestamp())

    async def _with_missed(self, drifted: Sequence[Comparison], since: int, *, dry_run: bool) -> list[Comparison]:
        """Ingest the missed events of the drifted tenants, and add them to the comparisons."""
        missed: dict[str, list[MissedEvent]] = {comparison.tenant_id: [] for comparison in drifted}
        async with aclosing(self.backfill.missed_since(since, only=missed, dry_run=dry_run)) as parts:
            async for part in parts:
                for event in part.missed:
                    missed[event.tenant_id or ""].append(event)
        return [
            msgspec.structs.replace(each, missed=tuple(sorted(missed[each.tenant_id], key=lambda event: event.created)))
            for each in drifted
        ]


def _drift(
    before: BillingAccount, after: BillingAccount, policy: BillingPolicy
) -> tuple[dict[str, tuple[Fact, Fact]], set[str]]:
    """Return the fields that differ, and the keys of the folds that do.

    With `SubscriptionRule.EACH` also those of each subscription, as ``sub_1.plan``.
    """
    drift, drifted = differences(before.record, after.record), set[str]()
    for key, fold in after.folds.items():
        known = before.folds.get(key)
        of_fold = differences(known.state if known else BillingState(), fold.state)
        if of_fold:
            drifted.add(key)
        if policy.is_each:
            drift |= {f"{key}.{name}": values for name, values in of_fold.items()}
    return drift, drifted


async def _groups(tenants: Sequence[LinkedTenant]) -> AsyncIterator[Sequence[LinkedTenant]]:
    for start in range(0, len(tenants), _AT_ONCE):
        yield tenants[start : start + _AT_ONCE]


async def count_stale_tenants(database: Database, grace: timedelta, clock: Clock) -> int:
    """Count the tenants whose period ended more than ``grace`` ago without a newer event, and log their ids.

    Stores the number for the metrics. A lost event or a dead endpoint makes a tenant stale.
    """
    now = clock()
    async with database.transaction(ACROSS_TENANTS) as connection:
        stale, number = await store.stale_tenants(connection, int((now - grace).timestamp()), _MOST_NAMED)
        await store.record_finding(connection, STALE_TENANTS, number, now)
    if stale:
        hours = grace // timedelta(hours=1)
        logger.warning(
            "tenants whose period ended more than %d h ago without an event since: %d (%s)",
            hours,
            number,
            ", ".join(stale),
        )
    return number
