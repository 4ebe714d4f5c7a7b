"""Replays and reconciliations of one tenant: pages ask for them, and a worker does them."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import msgspec

from tenantry.audit.operator_trail import record_acts
from tenantry.audit.trail import RecordedChange
from tenantry.billing import tenant_runs_store as store
from tenantry.billing.backfill import MissedEvent
from tenantry.billing.ledger_queries_store import count_entries
from tenantry.billing.reconcile import Reconciler, Reconciliation
from tenantry.billing.reconcile_run import EVENTS_KEPT, RunObserver
from tenantry.billing.replay import (
    ReplayChunk,
    ReplayService,
    ReprocessedEvent,
    Selection,
    shown_fact,
)
from tenantry.billing.tenant_comparison import Comparison
from tenantry.billing.tenant_runs_store import NewRun
from tenantry.common.clock import Clock
from tenantry.common.encoding import camel_case, new_id
from tenantry.db.background import BackgroundGroup
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.db.tenants_store import get_tenant
from tenantry.domain.audit import Action, Author
from tenantry.domain.billing.events import Fact
from tenantry.domain.billing.explanation import FieldComparison
from tenantry.domain.billing.tenant_runs import (
    MOST_LISTED,
    MOST_STARTS,
    RunEvent,
    RunKind,
    RunResult,
    TenantRun,
    audited_repair,
    listed_fields,
)
from tenantry.domain.errors import (
    DatabaseUnavailableError,
    DomainError,
    ProviderNotConfiguredError,
)
from tenantry.domain.operator_acts import NewAct, OperatorAction

LONGEST_RUN: Final = 600.0
"""Seconds; other tenants' runs wait meanwhile. A reconciliation may read the provider's list of all
subscriptions: 100 with each request, a few requests a second.
"""
MOST_INVALID: Final = 1000
"""How many invalid events of the whole installation a replay reads again: they name no tenant."""
_PROGRESS_EVERY: Final = 1.0
"""Seconds."""
_LONGEST_FAILURE: Final = 1000
"""In characters."""
_NO_KEY: Final = "The worker has no PROVIDER_SECRET_KEY."
_INTERRUPTED: Final = f"The run was interrupted {MOST_STARTS} times, so it was given up."
_TOO_LONG: Final = (
    "The run took too long, so it was stopped. "
    "The commands tenantry admin replay-events and tenantry reconcile have no limit."
)
_INTERNAL: Final = "Internal error. The log of the worker has it."


@dataclass(frozen=True)
class TenantRuns:
    """Starts runs, and shows the last one of a tenant. A tenant has one at a time."""

    database: Database
    outbox: Outbox
    clock: Clock
    asks_provider: bool
    """Whether the payment provider's API is configured."""

    async def find(self, tenant_id: str) -> TenantRun | None:
        """Return the last run of a tenant."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await store.find(connection, tenant_id)

    async def check(self, author: Author, tenant_id: str, kind: RunKind) -> bool:
        """Start a dry run; return False if another run has not ended, which the caller joins.

        Raises `ProviderNotConfiguredError`.
        """
        if kind is RunKind.RECONCILE and not self.asks_provider:
            raise ProviderNotConfiguredError("PROVIDER_SECRET_KEY is not set.")
        new = self._new(author, tenant_id)
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            is_new = await store.request_check(connection, new, kind)
            # also for one that is joined: a crash of the database may have lost its job
            await self.outbox.defer_tenant_run(connection, tenant_id)
            if is_new:
                await _record_act(connection, new, OperatorAction.LEDGER_CHECKED, kind)
        return is_new

    async def repair(self, author: Author, tenant_id: str, checked: str) -> bool:
        """Do for real what the dry run ``checked`` has shown; return False if another run came
        after it.
        """
        new = self._new(author, tenant_id)
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            kind = await store.request_repair(connection, new, checked)
            if kind is not None:
                await self.outbox.defer_tenant_run(connection, tenant_id)
                await _record_act(connection, new, OperatorAction.REPAIR_STARTED, kind)
        return kind is not None

    def _new(self, author: Author, tenant_id: str) -> NewRun:
        return NewRun(tenant_id, new_id("run"), author, self.clock())


@dataclass(frozen=True)
class TenantRunner:
    """Does the runs that pages have asked for, in a worker.

    Without ``reconciler`` those that ask the payment provider fail. A run ends after ``longest``
    seconds.
    """

    database: Database
    replay: ReplayService
    reconciler: Reconciler | None
    clock: Clock
    longest: float = LONGEST_RUN

    async def run(self, tenant_id: str) -> None:
        """Do a tenant's run, unless it has ended.

        An error of the run, such as that the provider is out of reach, becomes its failure: the
        operator starts another one. Raises `DatabaseUnavailableError` and unexpected errors.
        """
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            run = await store.start(connection, tenant_id, self.clock())
        if run is None:
            return
        try:
            async with asyncio.timeout(self.longest):
                failure, result = await self._attempt(run)
        except DatabaseUnavailableError:
            raise
        except TimeoutError:
            failure, result = _TOO_LONG, None
        except Exception:
            await self._end(run, _INTERNAL, None)
            raise
        await self._end(run, failure, result)

    async def _attempt(self, run: TenantRun) -> tuple[str | None, RunResult | None]:
        """Do a run; return why it failed, if it did, and what it found."""
        if run.starts > MOST_STARTS:
            return _INTERRUPTED, None
        try:
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                await get_tenant(connection, run.tenant_id)
            if run.kind is RunKind.REPLAY:
                return None, await self._replay(run)
            return await self._reconcile(run)
        except DatabaseUnavailableError:
            raise
        except DomainError as error:
            return str(error), RunResult()

    async def _replay(self, run: TenantRun) -> RunResult:
        """Read events again that could not be read, then fold all, as `replay-events` does."""
        dry_run = not run.repairs
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            await store.see(connection, run, await count_entries(connection, run.tenant_id))
        selection = Selection((run.tenant_id,), most_invalid=MOST_INVALID)
        events = list[ReprocessedEvent]()
        async with aclosing(self.replay.reprocess(selection, dry_run=dry_run)) as parts:
            async for part in parts:
                events += part.events
        async with aclosing(self.replay.run(selection, dry_run=dry_run)) as chunks:
            folded = [chunk async for chunk in chunks]
        return _of_replay(folded, events, run.tenant_id)

    async def _reconcile(self, run: TenantRun) -> tuple[str | None, RunResult | None]:
        if self.reconciler is None:
            raise ProviderNotConfiguredError(_NO_KEY)
        # with its own memory of unfinished work: the scheduled run may be under way
        reconciler = replace(self.reconciler)
        if run.repairs and run.was_interrupted:
            # a repair before the interruption hides the drift that says to fetch missed events
            since = self.clock() - EVENTS_KEPT
            reconciler.unfetched = {run.tenant_id: int(since.timestamp())}
        progress = _Progress(self.database, run)
        observer = RunObserver(listed=progress.add)
        async with BackgroundGroup() as beside:
            beside.repeat("notes of a run's progress", progress.write, every=_PROGRESS_EVERY)
            found = await reconciler.run(
                [run.tenant_id], dry_run=not run.repairs, observer=observer
            )
        if isinstance(found.stopped, DatabaseUnavailableError):
            raise found.stopped
        return _of_reconciliation(found, run.tenant_id)

    async def _end(self, run: TenantRun, failure: str | None, result: RunResult | None) -> None:
        """Record the end of a run, and what a repair changed in the trails of its tenants."""
        if failure is not None:
            failure = failure.replace("\0", "")[:_LONGEST_FAILURE]
        now = self.clock()
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            ended = await store.end(connection, run, now, failure, result)
            if ended is None or not ended.may_have_changed:
                return
            fields = result.fields if result is not None else ()
            await self._record(connection, ended, run.tenant_id, fields)
            for other in result.others if result is not None else ():
                await self._record(connection, ended, other, ())

    async def _record(
        self,
        connection: Connection,
        run: TenantRun,
        tenant_id: str,
        fields: Iterable[FieldComparison],
    ) -> None:
        before, after = audited_repair(run.kind, fields)
        change = RecordedChange(connection, run.author, tenant_id, self.clock())
        await change.record(Action.BILLING_REPAIRED, tenant_id, before=before, after=after)


class _Progress:
    """Counts the subscriptions that a run has read."""

    def __init__(self, database: Database, run: TenantRun) -> None:
        self._database = database
        self._run = run
        self._seen = 0
        self._written = run.seen

    def add(self, number: int) -> None:
        self._seen += number

    async def write(self) -> None:
        if (seen := self._seen) == self._written:
            return
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            await store.see(connection, self._run, seen)
        self._written = seen


async def _record_act(
    connection: Connection, new: NewRun, action: OperatorAction, kind: RunKind
) -> None:
    act = NewAct(new_id("act"), new.now, action, new.tenant_id, kind.value)
    await record_acts(connection, new.author, [act])


def _of_replay(
    chunks: Sequence[ReplayChunk], events: Sequence[ReprocessedEvent], tenant_id: str
) -> RunResult:
    checked = list(chain.from_iterable(chunk.checked for chunk in chunks))
    fields = list(chain.from_iterable(one.differences for one in checked))
    moved = chain.from_iterable(chunk.moved for chunk in chunks)
    others = [each for each in moved if each != tenant_id]
    return RunResult(
        folded=sum(one.events for one in checked),
        parked=sum(one.parked for one in checked),
        fields=listed_fields(fields),
        field_count=len(fields),
        events=_listed_events(events),
        event_count=len(events),
        others=tuple(others[:MOST_LISTED]),
    )


def _of_reconciliation(
    found: Reconciliation, tenant_id: str
) -> tuple[str | None, RunResult | None]:
    """Return why the tenant could not be compared, if it could not, and what was found."""
    failures = [] if found.stopped is None else [str(found.stopped)]
    failures += [each.trouble or "" for each in found.troubled if each.tenant_id == tenant_id]
    failure = next(iter(failures), None)
    own = next((each for each in found.drifted if each.tenant_id == tenant_id), None)
    others = [each.tenant_id for each in found.drifted if each.tenant_id != tenant_id]
    result = _of_comparison(own or Comparison(tenant_id))
    result = msgspec.structs.replace(result, others=tuple(others[:MOST_LISTED]))
    return failure, result


def _of_comparison(comparison: Comparison) -> RunResult:
    fields = [_field(name, ours, theirs) for name, (ours, theirs) in comparison.drift.items()]
    return RunResult(
        fields=listed_fields(fields),
        field_count=len(fields),
        events=_listed_events(comparison.missed),
        event_count=len(comparison.missed),
        linked=comparison.linked[:MOST_LISTED],
        unknown_prices=comparison.unknown_prices[:MOST_LISTED],
    )


def _listed_events(events: Sequence[MissedEvent | ReprocessedEvent]) -> tuple[RunEvent, ...]:
    return tuple(RunEvent(each.id, each.type, each.outcome) for each in events[:MOST_LISTED])


def _field(name: str, ours: Fact, theirs: Fact) -> FieldComparison:
    """Return a field by the API's name, of the tenant or of one of its subscriptions, such as
    ``sub_1.plan``.
    """
    subscription, dot, field = name.rpartition(".")
    field = camel_case(field)
    return FieldComparison(
        f"{subscription}{dot}{field}", shown_fact(field, ours), shown_fact(field, theirs)
    )
