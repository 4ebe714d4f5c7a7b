"""The worker's tasks: deliver mail and webhooks, fetch snapshots, reconcile, and housekeeping. Runs
are counted for the metrics.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from typing import Final, cast
from uuid import UUID

import msgspec
import psycopg
from procrastinate import App, BaseRetryStrategy, JobContext, RetryDecision
from procrastinate.jobs import Job

from tenantry.billing.reconcile import Reconciler
from tenantry.billing.seats import SeatService
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
    WEBHOOKS,
)
from tenantry.domain.errors import DatabaseUnavailableError, ProviderRefusedError
from tenantry.jobs import runs_store
from tenantry.jobs.retention import JOBS_KEPT_HOURS, RetentionService
from tenantry.notifications.mail_delivery import MailDeferredError, MailService, retry_delay
from tenantry.outbound.webhooks import OutboundWebhooks

logger = logging.getLogger(__name__)

LONGEST_JOB: Final = 300.0
"""Seconds after which a job is stopped."""
LONGEST_RECONCILE: Final = 3600.0
"""Seconds for the job that reads all subscriptions of the provider: 100 with each request, a few
requests a second.
"""

WORK: Final = "work"
"""The key of `Work` in the context of a job."""
_MOST_FETCHES: Final = 30
_MOST_COMPARED: Final = 1000
"""How many new tenants one run asks about; a run that compares all has no limit."""


class Work(msgspec.Struct, frozen=True):
    """The services that the tasks use. Without ``mail`` the worker leaves mails in the queue.

    With ``reconciler`` tenants are compared with the provider every ``reconcile_hours``; 0 means
    never. Runs are counted in ``counted_in``; with ``tracing`` each is a span. Without
    ``mail_access_ends`` owners get no notice of access that ended by time; ``record_access_ends``
    puts it into the ledger. With ``seats`` those of plans follow the members, and with ``webhooks``
    events are sent to the endpoints of the plan catalog.
    """

    mail: MailService | None
    retention: RetentionService
    count_stale_tenants: Callable[[], Awaitable[int]] | None = None
    reconciler: Reconciler | None = None
    reconcile_hours: int = 0
    counted_in: Database | None = None
    tracing: Tracing | None = None
    mail_access_ends: Callable[[], Awaitable[int]] | None = None
    record_access_ends: Callable[[], Awaitable[int]] | None = None
    seats: SeatService | None = None
    webhooks: OutboundWebhooks | None = None

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


class MailRetry(BaseRetryStrategy):
    """Retries a mail until it is sent or given up, which `MailService` decides; never drops a
    job.
    """

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision:
        if isinstance(exception, MailDeferredError):
            delay = exception.delay
        elif isinstance(exception, asyncio.CancelledError):
            # the worker stops: another may continue at once
            delay = 0.0
        else:
            delay = retry_delay(job.attempts + 1)
        return RetryDecision(retry_in={"milliseconds": round(delay * 1000)})


class ProviderRetry(BaseRetryStrategy):
    """Retries a request to the provider for about a day, but not after a refusal; then reconcile
    repairs the tenant.
    """

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        if isinstance(exception, asyncio.CancelledError):
            return RetryDecision(retry_in={"seconds": 0})
        if isinstance(exception, ProviderRefusedError) or job.attempts >= _MOST_FETCHES:
            return None
        delay = exponential(job.attempts + 1, first=2, factor=2, ceiling=3600)
        return RetryDecision(retry_in={"seconds": round(delay)})


class WebhookRetry(BaseRetryStrategy):
    """Looks again for what is to be sent to an endpoint. Failed attempts are none of the job:
    `OutboundWebhooks` has their schedule.
    """

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision:
        if isinstance(exception, asyncio.CancelledError):
            return RetryDecision(retry_in={"seconds": 0})
        delay = exponential(job.attempts + 1, first=1, factor=2, ceiling=60)
        return RetryDecision(retry_in={"seconds": round(delay)})


def register(app: App, requeue_stalled: Callable[[], Awaitable[None]]) -> None:
    """Define the tasks of a queue: those that are deferred, and those on a schedule."""

    @app.task(name=DELIVER_MAIL, queue=MAIL, retry=MailRetry(), pass_context=True)
    async def deliver_mail(
        context: JobContext, notification_id: str, traceparent: str | None = None
    ) -> None:
        async with _run(context, DELIVER_MAIL, traceparent) as work:
            if work.mail is None:
                raise RuntimeError("a worker without a mail service serves the mail queue")
            await work.mail.deliver(UUID(notification_id))

    @app.task(name=FETCH_SNAPSHOT, queue=PROVIDER, retry=ProviderRetry(), pass_context=True)
    async def fetch_snapshot(
        context: JobContext, tenant_id: str, traceparent: str | None = None
    ) -> None:
        async with _run(context, FETCH_SNAPSHOT, traceparent) as work:
            if work.reconciler is None:
                raise RuntimeError(
                    "a worker without the provider's API serves the provider's queue"
                )
            await work.reconciler.fetch_snapshot(tenant_id)

    @app.task(name=FOLLOW_SEATS, queue=PROVIDER, retry=ProviderRetry(), pass_context=True)
    async def follow_seats(
        context: JobContext, tenant_id: str, traceparent: str | None = None
    ) -> None:
        async with _run(context, FOLLOW_SEATS, traceparent) as work:
            if work.seats is not None:
                await work.seats.follow(tenant_id, context.job.id or 0)

    @app.task(name=DELIVER_WEBHOOKS, queue=WEBHOOKS, retry=WebhookRetry(), pass_context=True)
    async def deliver_webhooks(
        context: JobContext, endpoint: str, traceparent: str | None = None
    ) -> None:
        async with _run(context, DELIVER_WEBHOOKS, traceparent) as work:
            if work.webhooks is not None:
                await work.webhooks.deliver(endpoint)

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
    _schedule(app, job_names.COUNT_STALE, "41 * * * *", _if_given("count_stale_tenants"))
    _schedule(app, job_names.FIND_SEAT_DRIFT, "21 * * * *", Work.find_seat_drift)
    _schedule(app, job_names.ACCESS_ENDS, "3-59/5 * * * *", _if_given("mail_access_ends"))
    recording = _if_given("record_access_ends")
    _schedule(app, job_names.RECORD_ACCESS_ENDS, "1-59/5 * * * *", recording, is_alone=True)
    _schedule(app, job_names.REQUEUE, "* * * * *", lambda _: requeue_stalled())
    _schedule(app, job_names.RETENTION, "7-59/10 * * * *", remove_old_data)


def _if_given(check: str) -> Callable[[Work], Awaitable[None]]:
    """Return what runs an optional check of `Work`, and does nothing without it."""

    async def act(work: Work) -> None:
        if run := getattr(work, check):
            await run()

    return act


def _schedule(
    app: App,
    name: str,
    cron: str,
    act: Callable[[Work], Awaitable[None]],
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
