"""Counting how jobs go, for the metrics: in the database, since whoever runs jobs may answer no requests."""

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

from tenantry.billing.reconcile import Reconciler, SilenceWatch
from tenantry.common import clock as backoff
from tenantry.common.tracing import Tracing
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError, ProviderRefusedError
from tenantry.jobs import runs_store as jobs
from tenantry.jobs.retention import RetentionService
from tenantry.notifications.delivery import MailDeferredError, MailService

logger = logging.getLogger(__name__)


class JobRuns:
    """Counts runs of tasks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def of(self, task: str) -> AsyncIterator[None]:
        """Count the block as a run of this task; it goes as it goes, whether or not it can be counted.

        One that is cancelled counts as none.
        """
        try:
            yield
        except Exception:
            await self._record(task, succeeded=False)
            raise
        await self._record(task, succeeded=True)

    async def _record(self, task: str, *, succeeded: bool) -> None:
        try:
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                await jobs.record_run(connection, task, succeeded=succeeded)
        except (DatabaseUnavailableError, psycopg.Error) as error:
            logger.info("a run of %s is not counted: %s", task, error.__cause__ or error)


# The tasks: what a job's name means


MAIL: Final = "mail"
MAINTENANCE: Final = "maintenance"
PROVIDER: Final = "provider"
DELIVER_MAIL: Final = "deliver_mail"
ASK_PROVIDER: Final = "ask_provider"
RECONCILE: Final = "reconcile_due_tenants"
SILENCE: Final = "look_for_silent_tenants"
REQUEUE: Final = "requeue_stalled_jobs"
RETENTION: Final = "remove_old_data"
PERIODIC: Final = (RECONCILE, SILENCE, REQUEUE, RETENTION)
"""What runs by itself."""
TASKS: Final = (*PERIODIC, DELIVER_MAIL, ASK_PROVIDER)
LONGEST_JOB: Final = 300.0
"""Seconds after which a job is stopped."""

_WORK: Final = "work"
_MOST_QUESTIONS: Final = 30
_MOST_COMPARED: Final = 1000
"""How many tenants are compared in one run; all, many times a day, up to some 100,000."""


class Work(msgspec.Struct, frozen=True):
    """What the tasks work with. Without ``mail`` the worker leaves mails in the queue.

    With ``reconciler`` tenants are compared with the provider every ``reconcile_hours``, never where that is 0.
    ``runs`` counts how the jobs go; with ``tracing`` each is a span.
    """

    mail: MailService | None
    retention: RetentionService
    silence: SilenceWatch | None = None
    reconciler: Reconciler | None = None
    reconcile_hours: int = 0
    runs: JobRuns | None = None
    tracing: Tracing | None = None

    @property
    def queues(self) -> list[str]:
        """The queues that a worker with this serves."""
        queues = [] if self.mail is None else [MAIL]
        if self.reconciler is not None:
            queues.append(PROVIDER)
        return [*queues, MAINTENANCE]

    def as_context(self) -> dict[str, object]:
        """What the worker hands to each task."""
        return {_WORK: self}


def _work(context: JobContext) -> Work:
    return cast("Work", context.additional_context[_WORK])


@asynccontextmanager
async def _run(context: JobContext, task: str, traceparent: str | None = None) -> AsyncIterator[Work]:
    """What a run of this task works with; it is stopped when it takes too long, and counted."""
    work = _work(context)
    queue = context.job.queue
    with work.tracing.job(task, queue, traceparent) if work.tracing else nullcontext():
        async with work.runs.of(task) if work.runs else nullcontext(), asyncio.timeout(LONGEST_JOB):
            yield work


class MailRetry(BaseRetryStrategy):
    """A mail is tried until it is taken or given up, which `MailService` decides; a job is never dropped."""

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision:
        if isinstance(exception, MailDeferredError):
            delay = exception.delay
        elif isinstance(exception, asyncio.CancelledError):  # the worker stops: whoever comes next may go on at once
            delay = 0.0
        else:
            delay = backoff.exponential(min(job.attempts, 20) + 1, first=10, factor=2, ceiling=3600)
        return RetryDecision(retry_in={"milliseconds": round(delay * 1000)})


class ProviderRetry(BaseRetryStrategy):
    """The provider is asked again for about a day, then the next comparison has to do; not after a refusal."""

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        if isinstance(exception, asyncio.CancelledError):
            return RetryDecision(retry_in={"seconds": 0})
        if isinstance(exception, ProviderRefusedError) or job.attempts >= _MOST_QUESTIONS:
            return None
        return RetryDecision(
            retry_in={"seconds": round(backoff.exponential(job.attempts + 1, first=2, factor=2, ceiling=3600))}
        )


def register(app: App, requeue_stalled: Callable[[], Awaitable[None]]) -> None:
    """Give the app its tasks."""
    _register_deferred(app)
    _register_periodic(app, requeue_stalled)


def _register_deferred(app: App) -> None:

    @app.task(name=DELIVER_MAIL, queue=MAIL, retry=MailRetry(), pass_context=True)
    async def deliver_mail(context: JobContext, notification_id: str, traceparent: str | None = None) -> None:
        async with _run(context, DELIVER_MAIL, traceparent) as work:
            if work.mail is None:
                raise RuntimeError("a worker without a mail service serves the mail queue")
            await work.mail.deliver(UUID(notification_id))

    @app.task(name=ASK_PROVIDER, queue=PROVIDER, retry=ProviderRetry(), pass_context=True)
    async def ask_provider(context: JobContext, tenant_id: str, traceparent: str | None = None) -> None:
        async with _run(context, ASK_PROVIDER, traceparent) as work:
            if work.reconciler is None:
                raise RuntimeError("a worker without the provider's API serves the provider's queue")
            await work.reconciler.ask(tenant_id)


def _register_periodic(app: App, requeue_stalled: Callable[[], Awaitable[None]]) -> None:
    @app.periodic(cron="*/10 * * * *")
    @app.task(name=RECONCILE, queue=MAINTENANCE, pass_context=True)
    async def reconcile_due_tenants(context: JobContext, timestamp: int) -> None:  # noqa: ARG001  # their due time
        async with _run(context, RECONCILE) as work:
            if work.reconciler is not None and work.reconcile_hours:
                await work.reconciler.run_due(timedelta(hours=work.reconcile_hours), _MOST_COMPARED)

    @app.periodic(cron="41 * * * *")
    @app.task(name=SILENCE, queue=MAINTENANCE, pass_context=True)
    async def look_for_silent_tenants(context: JobContext, timestamp: int) -> None:  # noqa: ARG001
        async with _run(context, SILENCE) as work:
            if work.silence is not None:
                await work.silence.look()

    @app.periodic(cron="* * * * *")
    @app.task(name=REQUEUE, queue=MAINTENANCE, pass_context=True)
    async def requeue_stalled_jobs(context: JobContext, timestamp: int) -> None:  # noqa: ARG001
        async with _run(context, REQUEUE):
            await requeue_stalled()

    @app.periodic(cron="7-59/10 * * * *")
    @app.task(name=RETENTION, queue=MAINTENANCE, pass_context=True)
    async def remove_old_data(context: JobContext, timestamp: int) -> None:  # noqa: ARG001
        async with _run(context, RETENTION) as work:
            await app.job_manager.delete_old_jobs(
                nb_hours=24 * 30, include_failed=True, include_cancelled=True, include_aborted=True
            )
            await work.retention.run()
