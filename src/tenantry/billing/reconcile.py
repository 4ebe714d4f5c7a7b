"""Reconciling tenants with the provider: compare, repair, and ingest events that never arrived."""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from operator import attrgetter
from typing import Final

import msgspec

from tenantry.billing import reconcile_store as store
from tenantry.billing.backfill import Backfill, MissedEvent
from tenantry.billing.ingest import WebhookService
from tenantry.billing.ledger_run import LedgerRun
from tenantry.billing.reconcile_run import NO_OBSERVER, Groups, ReconcileRun, RunObserver
from tenantry.billing.reconcile_store import LinkedTenant
from tenantry.billing.subscription_survey import SubscriptionSurvey, UnplacedSubscription
from tenantry.billing.tenant_comparison import Comparison, TenantComparer
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import DomainError, NotFoundError, ProviderRefusedError
from tenantry.domain.tenants import is_tenant_id
from tenantry.integrations.stripe.client import ProviderApi

UNPLACED: Final = "unplaced_subscriptions"
"""The name of the finding in the database; recorded when all subscriptions have been compared."""

_SKIPPED_FOR: Final = timedelta(hours=1)
_LONGEST_RUN: Final = timedelta(minutes=50)
"""How long a scheduled run compares; within the hour of its job, it then fetches the missed
events.
"""
_MOST_NAMED: Final = 20

logger = logging.getLogger(__name__)


class Reconciliation(msgspec.Struct, frozen=True):
    """The number of tenants compared; those that had drifted, and those that could not be compared,
    by id.

    ``unplaced`` are living subscriptions at the provider that count for no tenant, at most 1,000 of
    ``unplaced_number``; only where all of the account were compared. ``stopped`` is the error that
    stopped the run, if any.
    """

    compared: int
    drifted: tuple[Comparison, ...]
    troubled: tuple[Comparison, ...]
    stopped: DomainError | None = None
    unplaced: tuple[UnplacedSubscription, ...] = ()
    unplaced_number: int = 0
    interrupted: bool = False


@dataclass(eq=False)
class Reconciler:
    """Fetches snapshots from the provider and folds them. They enter the ledger, so that a rebuild
    keeps them.

    ``skipped`` are tenants in trouble, until when; ``unfetched`` are repaired tenants whose missed
    events could not be fetched, since which second; ``unfinished`` is the survey that the next
    `run_due` continues. Methods raise `ProviderUnavailableError`, `ProviderRefusedError` and
    `DatabaseUnavailableError`, unless they return a partial result.
    """

    database: Database
    provider: ProviderApi
    webhooks: WebhookService
    policy: BillingPolicy
    outbox: Outbox
    clock: Clock
    skipped: dict[str, datetime] = field(default_factory=dict, init=False)
    unfetched: dict[str, int] = field(default_factory=dict, init=False)
    unfinished: SubscriptionSurvey | None = field(default=None, init=False)

    @property
    def backfill(self) -> Backfill:
        return Backfill(self.database, self.provider, self.webhooks, self.clock, self.policy)

    @property
    def _comparer(self) -> TenantComparer:
        return TenantComparer(self.database, self.provider, self.policy, self.outbox, self.clock)

    async def fetch_snapshot(self, tenant_id: str) -> None:
        """Fetch and fold a tenant's snapshot; do nothing for a tenant that has ended or has no
        customer.
        """
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            tenant = await store.tenant_by_id(connection, tenant_id)
        if tenant is not None and tenant.may_have_subscription:
            await self._comparer.compare(tenant, "snapshot")

    async def count(self, tenants: Sequence[str] | None = None) -> int:
        """Count the tenants that `run` compares. Raises `NotFoundError` for a named tenant that
        does not exist.
        """
        if tenants is not None:
            return len(await self._named(tenants))
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await store.count_linked_tenants(connection)

    async def run(
        self,
        tenants: Sequence[str] | None = None,
        *,
        dry_run: bool = False,
        observer: RunObserver = NO_OBSERVER,
    ) -> Reconciliation:
        """Compare all tenants with the subscriptions of the provider's account, or those named, and
        repair.

        All subscriptions are listed, unless each named tenant has a living one. With ``dry_run``
        nothing is written. Raises `NotFoundError` for a named tenant that does not exist; then
        nothing is done. Another error stops the run and is part of the result.
        """
        if tenants is None:
            run = self._new_run(self._new_survey(None), observer, dry_run=dry_run)
            return await self._finish(run, run.of_account())
        named = await self._named(tenants)
        run = self._new_run(self._new_survey(named), observer, dry_run=dry_run)
        return await self._finish(run, run.of_named(named))

    async def run_due(self, older_than: timedelta, most: int) -> Reconciliation:
        """Compare, repair and log all tenants, if this was last done longer ago than
        ``older_than``.

        That ends after 50 minutes at the latest; the next call continues where it stopped.
        Otherwise compare up to ``most`` tenants that were not compared since then, such as those
        that were linked lately. A tenant that cannot be compared is skipped for an hour, so that it
        does not hold up others.
        """
        now = self.clock()
        self.skipped = {name: until for name, until in self.skipped.items() if until > now}
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            listed_at = await store.found_at(connection, UNPLACED)
            due = await store.due_tenants(
                connection,
                now - older_than,
                most,
                without=self.skipped,
            )
        if listed_at is None or listed_at <= now - older_than:
            found = await self._continue_with_account(now)
        else:
            run = self._new_run(self._new_survey(due), NO_OBSERVER, dry_run=False)
            found = await self._finish(run, run.of_each(due))
        self.skipped |= {comparison.tenant_id: now + _SKIPPED_FOR for comparison in found.troubled}
        _log(found)
        if found.stopped is not None:
            raise found.stopped
        return found

    async def _continue_with_account(self, now: datetime) -> Reconciliation:
        """Compare all tenants; if the time does not suffice or an error stops this, keep the survey
        for the next call.

        Unless the provider rejected a request: it may not know the subscription any more after
        which to continue.
        """
        survey = self.unfinished or self._new_survey(None)
        self.unfinished = None
        until = now + _LONGEST_RUN
        observer = RunObserver(stops=lambda: self.clock() >= until)
        run = self._new_run(survey, observer, dry_run=False)
        found = await self._finish(run, run.of_account())
        is_complete = found.stopped is None and not found.interrupted
        if not is_complete and not isinstance(found.stopped, ProviderRefusedError):
            self.unfinished = survey
        return found

    def _new_survey(self, tenants: Collection[LinkedTenant] | None) -> SubscriptionSurvey:
        only = None if tenants is None else {tenant.id for tenant in tenants}
        return SubscriptionSurvey(
            self.database,
            self.provider,
            self.policy,
            self.clock(),
            only,
        )

    def _new_run(
        self, survey: SubscriptionSurvey, observer: RunObserver, *, dry_run: bool
    ) -> ReconcileRun:
        return ReconcileRun(self._comparer, survey, dry_run, observer)

    async def _named(self, tenants: Sequence[str]) -> list[LinkedTenant]:
        """Return the tenants with these ids. Raises `NotFoundError` if one does not exist."""
        possible = {each for each in tenants if is_tenant_id(each)}
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            known = await store.tenants_by_id(connection, possible)
        missing = sorted(set(tenants) - {tenant.id for tenant in known})
        if missing:
            raise NotFoundError(f"tenant: {', '.join(missing)}")
        return known

    async def _finish(self, run: ReconcileRun, groups: Groups) -> Reconciliation:
        """Compare the tenants of a run; then fetch the missed events of repaired tenants, also
        after an error.

        A later run would not find that these tenants had drifted. The first error is part of the
        result.
        """
        survey = run.survey
        comparing = LedgerRun(groups, run.compare, run.dry_run)
        await comparing.finish(lambda _: run.observer.stops())
        stopped, drifted = comparing.stopped, run.drifted
        interrupted = comparing.interrupted or run.observer.stops()
        is_complete = stopped is None and not interrupted and survey.only is None
        try:
            drifted = await self._with_missed(run)
            if is_complete and not run.dry_run:
                await self._record_complete(survey)
        except DomainError as error:
            stopped = stopped or error
        return Reconciliation(
            run.compared,
            tuple(drifted),
            tuple(run.troubled),
            stopped,
            tuple(survey.unplaced),
            survey.unplaced_number,
            interrupted,
        )

    async def _record_complete(self, survey: SubscriptionSurvey) -> None:
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            await store.record_finding(
                connection,
                UNPLACED,
                survey.unplaced_number,
                survey.begun_at,
            )

    async def _with_missed(self, run: ReconcileRun) -> list[Comparison]:
        """Return the drifted tenants of a run with their missed events, which are ingested now.

        Those of tenants of earlier runs that could not fetch them are ingested too. A dry run
        ingests nothing.
        """
        dry_run, drifted = run.dry_run, run.drifted
        wanted = self.unfetched | {comparison.tenant_id: run.since for comparison in drifted}
        if not wanted:
            return []
        if not dry_run:
            # until they are fetched: an error or the end of the job's time may prevent it
            self.unfetched = wanted
        missed = await self._missed_of(wanted, dry_run=dry_run)
        if not dry_run:
            self.unfetched = {}
        return [
            msgspec.structs.replace(each, missed=tuple(missed[each.tenant_id])) for each in drifted
        ]

    async def _missed_of(
        self, since: Mapping[str, int], *, dry_run: bool
    ) -> Mapping[str | None, list[MissedEvent]]:
        """Find the missed events of tenants, by tenant, oldest first; ``since`` has the second of
        each. Ingest them, unless it is a dry run.
        """
        found = list[MissedEvent]()
        run = self.backfill.parts(min(since.values()), only=since, dry_run=dry_run)
        async with aclosing(run.results()) as parts:
            async for part in parts:
                found += part.missed
        missed = defaultdict[str | None, list[MissedEvent]](list)
        for event in sorted(found, key=attrgetter("created")):
            missed[event.tenant_id].append(event)
        return missed


def _log(found: Reconciliation) -> None:
    for comparison in found.drifted:
        logger.warning(
            "tenant %s had drifted from the provider and is repaired: %s",
            comparison.tenant_id,
            ", ".join(sorted((*comparison.drift, *comparison.linked))),
        )
    if found.troubled:
        logger.warning(
            "tenants that could not be compared with the provider: %d (%s)",
            len(found.troubled),
            _listed(f"{each.tenant_id}: {each.trouble}" for each in found.troubled),
        )
    if found.unplaced:
        logger.warning(
            "subscriptions at the provider that count for no tenant: %d (%s)",
            found.unplaced_number,
            _listed(
                f"{each.subscription_id} of customer {each.customer_id}: {each.reason}"
                for each in found.unplaced
            ),
        )


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(islice(texts, _MOST_NAMED))
