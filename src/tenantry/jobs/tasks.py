"""The tasks: what a job's name means.

A task finds what it works with in the `Work` that the worker was started with.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, cast
from uuid import UUID

import msgspec
from procrastinate import App, BaseRetryStrategy, JobContext, RetryDecision
from procrastinate.jobs import Job

from tenantry.kit import backoff
from tenantry.services.mail import MailDeferredError, MailService
from tenantry.services.retention import RetentionService

MAIL: Final = "mail"
MAINTENANCE: Final = "maintenance"
DELIVER_MAIL: Final = "deliver_mail"
LONGEST_JOB: Final = 300.0
"""Seconds after which a job is stopped."""

_WORK: Final = "work"


class Work(msgspec.Struct, frozen=True):
    """What the tasks work with. Without ``mail`` the worker leaves mails in the queue."""

    mail: MailService | None
    retention: RetentionService

    @property
    def queues(self) -> list[str]:
        """The queues that a worker with this serves."""
        return [MAINTENANCE] if self.mail is None else [MAIL, MAINTENANCE]

    def as_context(self) -> dict[str, object]:
        """What the worker hands to each task."""
        return {_WORK: self}


def _work(context: JobContext) -> Work:
    return cast("Work", context.additional_context[_WORK])


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


def register(app: App, requeue_stalled: Callable[[], Awaitable[None]]) -> None:
    """Give the app its tasks."""

    @app.task(name=DELIVER_MAIL, queue=MAIL, retry=MailRetry(), pass_context=True)
    async def deliver_mail(context: JobContext, notification_id: str) -> None:
        mail = _work(context).mail
        if mail is None:
            raise RuntimeError("a worker without a mail service serves the mail queue")
        async with asyncio.timeout(LONGEST_JOB):
            await mail.deliver(UUID(notification_id))

    @app.periodic(cron="* * * * *")
    @app.task(name="requeue_stalled_jobs", queue=MAINTENANCE)
    async def requeue_stalled_jobs(timestamp: int) -> None:  # noqa: ARG001  # periodic tasks get their due time
        async with asyncio.timeout(LONGEST_JOB):
            await requeue_stalled()

    @app.periodic(cron="17 * * * *")
    @app.task(name="remove_old_data", queue=MAINTENANCE, pass_context=True)
    async def remove_old_data(context: JobContext, timestamp: int) -> None:  # noqa: ARG001
        async with asyncio.timeout(LONGEST_JOB):
            await _work(context).retention.run()
            await app.job_manager.delete_old_jobs(
                nb_hours=24 * 30, include_failed=True, include_cancelled=True, include_aborted=True
            )
