"""Replays and reconciliations of one tenant, as pages start them and a worker does them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final

from tenantry.billing.reconcile import Reconciler
from tenantry.billing.replay import ReplayService
from tenantry.billing.tenant_runs import TenantRunner, TenantRuns
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.audit import ActorKind, Author
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.billing.tenant_runs import RunKind, TenantRun
from tenantry.domain.operator_acts import OperatorPerson
from tenantry.jobs.queue import JobQueue
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tests.support.billing import rows
from tests.support.patience import patient_database, patient_queue
from tests.support.replays import LATER, POLICY

PERSON: Final = OperatorPerson("https://id.example", "olga", "Olga Operator")
OLGA: Final = Author(ActorKind.OPERATOR, request_id="req_1", person=PERSON)
_PATIENCE: Final = 20.0


class Operators:
    """Those who start runs on pages, and the worker that does them."""

    def __init__(
        self, database: Database, queue: JobQueue, runner: TenantRunner, *, asks_provider: bool
    ) -> None:
        self.runner = runner
        self.queue = queue
        self._database = database
        self.runs = TenantRuns(database, Outbox(), runner.clock, asks_provider)

    async def check(self, tenant_id: str, kind: RunKind = RunKind.REPLAY) -> TenantRun:
        """Start a dry run, do it, and return it."""
        assert await self.runs.check(OLGA, tenant_id, kind)
        return await self.done(tenant_id)

    async def repair(self, checked: TenantRun, author: Author = OLGA) -> TenantRun:
        """Do for real what a dry run has shown, and return the run."""
        assert await self.runs.repair(author, checked.tenant_id, checked.id)
        return await self.done(checked.tenant_id)

    async def done(self, tenant_id: str) -> TenantRun:
        """Do the tenant's run, and return it."""
        await self.runner.run(tenant_id)
        return await self.found(tenant_id)

    async def found(self, tenant_id: str) -> TenantRun:
        """Return the tenant's run."""
        run = await self.runs.find(tenant_id)
        assert run is not None
        return run

    @asynccontextmanager
    async def working(self, grace: float = _PATIENCE) -> AsyncIterator[None]:
        """Run a worker during the block; at its end jobs have ``grace`` seconds to end."""
        retention = RetentionService(self._database, timedelta(days=90), self.runner.clock)
        work = Work(None, retention, tenant_runs=self.runner)
        task = asyncio.create_task(self.queue.run_worker(work, polling_interval=0.02, grace=grace))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def until_another_job_is_done(self, conninfo: str) -> None:
        """Defer a job of another kind, and return as soon as a worker has done it."""
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            await Outbox().defer_webhooks(connection, ["any"])
        async with asyncio.timeout(_PATIENCE):
            while await rows(
                conninfo, "SELECT FROM procrastinate_jobs WHERE lock = %s", "deliver_webhooks any"
            ):
                pass

    async def until_ended(self, tenant_id: str) -> TenantRun:
        """Return the tenant's run as soon as a worker has ended it."""
        async with asyncio.timeout(_PATIENCE):
            while (run := await self.found(tenant_id)).ended_at is None:
                pass
        return run


@asynccontextmanager
async def operators(
    conninfo: str,
    reconciler: Reconciler | None = None,
    *,
    policy: BillingPolicy = POLICY,
    clock: Clock = lambda: LATER,
) -> AsyncIterator[Operators]:
    """The operators of a service on this database, a day after the events of the tests; with a
    ``reconciler`` the payment provider can be asked.
    """
    database, queue = patient_database(conninfo, pool_size=4), patient_queue(conninfo)
    await database.open()
    await queue.open()
    try:
        runner = TenantRunner(database, ReplayService(database, policy, clock), reconciler, clock)
        yield Operators(database, queue, runner, asks_provider=reconciler is not None)
    finally:
        await queue.close()
        await database.close()


async def jobs(conninfo: str, tenant_id: str) -> list[str]:
    """Return the status of each job of the tenant's runs."""
    found = await rows(
        conninfo,
        "SELECT status::text FROM procrastinate_jobs "
        "WHERE lock = 'replay_or_reconcile_tenant' AND args->>'tenant_id' = %s",
        tenant_id,
    )
    return [job["status"] for job in found]


async def trails(conninfo: str, tenant_id: str) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the entries of repairs in the tenant's audit trail, and the acts of people."""
    entries = await rows(
        conninfo,
        "SELECT actor_kind, reason, before, after FROM audit_events "
        "WHERE org_id = %s AND action = 'billing.repaired' ORDER BY at",
        tenant_id,
    )
    acts = await rows(
        conninfo,
        "SELECT action, target_id, subject, reason FROM operator_acts WHERE org_id = %s ORDER BY at, id",
        tenant_id,
    )
    return entries, [tuple(act.values()) for act in acts]
