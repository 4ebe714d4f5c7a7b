"""The worker's tasks: deliver mail and webhooks, fetch snapshots, reconcile, and housekeeping. Runs
are counted for the metrics.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast
from uuid import UUID

import msgspec
import psycopg
from procrastinate import App, BaseRetryStrategy, JobContext, RetryDecision
from procrastinate.jobs import Job

from tenantry.billing.reconcile import Reconciler
from tenantry.billing.seats import SeatService
from tenantry.billing.tenant_runs import LONGEST_RUN, TenantRunner
from tenantry.common.clock import exponential
from tenantry.common.tracing import Tracing
from tenantry.db import job_names
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.job_names import (
    DELIVER_MAIL,
    DELIVER_WEBHOOKS,
    FETCH_SNAPSHOT,
    FOLLOW_SEATS,
    MAIL,
    MAINTENANCE,
    PROVIDER,
    RUN_OF_TENANT,
    WEBHOOKS,
)
from tenantry.domain.errors import DatabaseUnavailableError, ProviderRefusedError
from tenantry.jobs import runs_store
from tenantry.jobs.retention import JOBS_KEPT_HOURS, RetentionService
from tenantry.notifications.mail_delivery import (
    FIRST_DELAY,
    LONGEST_DELAY,
    MailDeferredError,
    MailService,
)
from tenantry.outbound.webhooks import OutboundWebhooks

logger = logging.getLogger(__name__)

LONGEST_JOB: Final = 300.0
"""Seconds after which a job is stopped."""
LONGEST_RECONCILE: Final = 3600.0
"""Seconds for the job that reads all subscriptions of the provider: 100 with each request, a few
requests a second.
"""

LONGEST_RUN_OF_TENANT: Final = LONGEST_RUN + 60.0
"""Seconds; `TenantRunner` ends a run before, and records why."""

WORK: Final = "work"
"""The key of `Work` in the context of a job."""
_MOST_COMPARED: Final = 1000
"""How many new tenants one run asks about; a run that compares all has no limit."""

Check = Callable[[], Awaitable[int]]
"""A check on a schedule; returns how much it found."""


async def no_check() -> int:
    """Find nothing."""
    return 0


class Work(msgspec.Struct, frozen=True):
    """The services that the tasks use. Without ``mail`` the worker leaves mails in the queue.

    With ``reconciler`` tenants are compared with the provider every ``reconcile_hours``; 0 means
    never. Runs are counted in ``counted_in``; with ``tracing`` each is a span. Without
    ``mail_access_ends`` owners get no notice of access that ended by time; ``record_access_ends``
    puts it into the ledger, and ``mail_key_reminders`` is for a queue that schedules it.
    ``place_reversals`` finds the tenants of parked refunds and disputes. With ``seats`` those of
    plans follow the members, and with ``webhooks`` events are sent to the endpoints of the plan
    catalog. ``tenant_runs`` does what operators start on pages.
    """

    mail: MailService | None
    retention: RetentionService
    count_stale_tenants: Check = no_check
    reconciler: Reconciler | None = None
    reconcile_hours: int = 0
    counted_in: Database | None = None
    tracing: Tracing | None = None
    mail_access_ends: Check = no_check
    record_access_ends: Check = no_check
    mail_key_reminders: Check = no_check
    seats: SeatService | None = None
    webhooks: OutboundWebhooks | None = None
    tenant_runs: TenantRunner | None = None
    place_reversals: Check = no_check

    @property
    def queues(self) -> list[str]:
        """The queues that a worker with these services serves."""
        served = {
            MAIL: self.mail is not None,
            PROVIDER: self.reconciler is not None or self.seats is not None,
            # what waits for an endpoint that left the catalog must end
            WEBHOOKS: True,
            MAINTENANCE: True,
        }
        return [queue for queue, is_served in served.items() if is_served]

    @property
    def endpoints(self) -> int:
        """For how many endpoints of webhooks a job can run at a time."""
        return len(self.webhooks.endpoints) if self.webhooks else 0

    async def deliver_mail(self, job: Job, mail_id: str) -> None:
        if self.mail is None:
            raise RuntimeError("a worker without a mail service serves the mail queue")
        await self.mail.deliver(UUID(mail_id), job.attempts + 1)

    async def fetch_snapshot(self, _job: Job, tenant_id: str) -> None:
        if self.reconciler is None:
            raise RuntimeError("a worker without the provider's API serves the provider's queue")
        await self.reconciler.fetch_snapshot(tenant_id)

    async def follow_seats(self, job: Job, tenant_id: str) -> None:
        if self.seats is not None:
            await self.seats.follow(tenant_id, job.id or 0)

    async def deliver_webhooks(self, _job: Job, endpoint: str) -> None:
        if self.webhooks is not None:
            await self.webhooks.deliver(endpoint)

    async def run_of_tenant(self, _job: Job, tenant_id: str) -> None:
        if self.tenant_runs is None:
            raise RuntimeError("a worker without replays serves the queue of maintenance")
        await self.tenant_runs.run(tenant_id)

    async def find_seat_drift(self) -> None:
        if self.seats is not None:
            await self.seats.defer_drifted()

    async def reconcile_due_tenants(self) -> None:
        if self.reconciler is not None and self.reconcile_hours:
            await self.reconciler.run_due(timedelta(hours=self.reconcile_hours), _MOST_COMPARED)


@asynccontextmanager
async def counted(database: Database, task: str) -> AsyncIterator[None]:
    """Count the block as a run of this task, unless it is canceled; a failure to count is only
    logged.
    """
    try:
        yield
    except Exception:
        await _record(database, task, succeeded=False)
        raise
    await _record(database, task, succeeded=True)


async def _record(database: Database, task: str, *, succeeded: bool) -> None:
    try:
        async with database.transaction(ACROSS_TENANTS) as connection:
            await runs_store.record_run(connection, task, succeeded=succeeded)
    except (DatabaseUnavailableError, psycopg.Error) as error:
        logger.info("a run of %s is not counted: %s", task, error.__cause__ or error)


@asynccontextmanager
async def _run(
    context: JobContext, task: str, traceparent: str | None = None, longest: float = LONGEST_JOB
) -> AsyncIterator[Work]:
    """Yield the services for a run of a task; stop it when it takes too long, and count it."""
    work = cast("Work", context.additional_context[WORK])
    with work.tracing.job(task, context.job.queue, traceparent) if work.tracing else nullcontext():
        async with (
            counted(work.counted_in, task) if work.counted_in else nullcontext(),
            asyncio.timeout(longest),
        ):
            yield work


@dataclass(frozen=True)
class Retry(BaseRetryStrategy):
    """Retries a failed job after ``first`` seconds, then twice as long each time up to ``ceiling``;
    after ``most`` attempts, or a refusal of the provider, not at all.

    A mail that `MailService` defers has its own delay. If the worker stops, another continues at
    once.
    """

    first: float
    ceiling: float
    most: float = math.inf

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        if isinstance(exception, asyncio.CancelledError):
            delay = 0.0
        elif isinstance(exception, MailDeferredError):
            delay = exception.delay
        elif isinstance(exception, ProviderRefusedError) or job.attempts >= self.most:
            return None
        else:
            attempt = job.attempts + 1
            delay = exponential(attempt, first=self.first, factor=2, ceiling=self.ceiling)
        return RetryDecision(retry_in={"milliseconds": round(delay * 1000)})


MAIL_RETRY: Final = Retry(FIRST_DELAY, LONGEST_DELAY)
"""Never drops a job: `MailService` gives mails up."""
PROVIDER_RETRY: Final = Retry(2, 3600, most=30)
"""For about a day; then reconcile repairs the tenant."""
WEBHOOK_RETRY: Final = Retry(1, 60)
"""Looks again for what is to be sent to an endpoint: `OutboundWebhooks` has the schedule of failed
attempts.
"""

RUN_RETRY: Final = Retry(1, 60)
"""After the database was unavailable; `TenantRunner` limits how often a run starts."""


def register(
    app: App, requeue_stalled: Callable[[], Awaitable[None]], *, reminds_of_keys: bool = False
) -> None:
    """Define the tasks of a queue: those that are deferred, and those on a schedule. That of key
    reminders is scheduled only with ``reminds_of_keys``.
    """

    _on_demand(app, DELIVER_MAIL, MAIL, MAIL_RETRY, Work.deliver_mail)
    _on_demand(app, FETCH_SNAPSHOT, PROVIDER, PROVIDER_RETRY, Work.fetch_snapshot)
    _on_demand(app, FOLLOW_SEATS, PROVIDER, PROVIDER_RETRY, Work.follow_seats)
    _on_demand(app, DELIVER_WEBHOOKS, WEBHOOKS, WEBHOOK_RETRY, Work.deliver_webhooks)
    _on_demand(
        app,
        RUN_OF_TENANT,
        MAINTENANCE,
        RUN_RETRY,
        Work.run_of_tenant,
        longest=LONGEST_RUN_OF_TENANT,
    )

    async def remove_old_data(work: Work) -> None:
        await app.job_manager.delete_old_jobs(
            nb_hours=JOBS_KEPT_HOURS,
            include_failed=True,
            include_cancelled=True,
            include_aborted=True,
        )
        await work.retention.run()

    _schedule(
        app,
        job_names.RECONCILE,
        "*/10 * * * *",
        Work.reconcile_due_tenants,
        longest=LONGEST_RECONCILE,
        is_alone=True,
    )
    _schedule(app, job_names.COUNT_STALE, "41 * * * *", lambda work: work.count_stale_tenants())
    _schedule(app, job_names.FIND_SEAT_DRIFT, "21 * * * *", Work.find_seat_drift)
    _schedule(app, job_names.ACCESS_ENDS, "3-59/5 * * * *", lambda work: work.mail_access_ends())
    _schedule(
        app,
        job_names.RECORD_ACCESS_ENDS,
        "1-59/5 * * * *",
        lambda work: work.record_access_ends(),
        is_alone=True,
    )
    _schedule(
        app,
        job_names.PLACE_REVERSALS,
        "5-59/10 * * * *",
        lambda work: work.place_reversals(),
        is_alone=True,
    )
    if reminds_of_keys:
        _schedule(
            app,
            job_names.KEY_REMINDERS,
            "33 * * * *",
            lambda work: work.mail_key_reminders(),
            is_alone=True,
        )
    _schedule(app, job_names.REQUEUE, "* * * * *", lambda _: requeue_stalled())
    _schedule(app, job_names.RETENTION, "7-59/10 * * * *", remove_old_data)


def _on_demand(
    app: App,
    name: str,
    queue: str,
    retry: Retry,
    act: Callable[..., Awaitable[None]],
    *,
    longest: float = LONGEST_JOB,
) -> None:
    """Define a task that the outbox defers. ``act`` gets the services, the job, and what the outbox
    names.
    """

    @app.task(name=name, queue=queue, retry=retry, pass_context=True)
    async def task(context: JobContext, /, traceparent: str | None = None, **named: str) -> None:
        async with _run(context, name, traceparent, longest) as work:
            await act(work, context.job, **named)


def _schedule(
    app: App,
    name: str,
    cron: str,
    act: Callable[[Work], Awaitable[object]],
    *,
    longest: float = LONGEST_JOB,
    is_alone: bool = False,
) -> None:
    """Define a task on a schedule. With ``is_alone`` one job of it runs at a time, and others wait.

    No limit on those that wait (``queueing_lock``): one that waits would keep the job of a dead
    worker, which holds the lock, from being requeued.
    """

    @app.periodic(cron=cron)
    @app.task(name=name, queue=MAINTENANCE, pass_context=True, lock=name if is_alone else None)
    async def task(context: JobContext, timestamp: int) -> None:  # noqa: ARG001  # its due time
        async with _run(context, name, longest=longest) as work:
            await act(work)
