"""The job queue: jobs are deferred in the caller's transaction and run by workers, on the same PostgreSQL."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import psycopg
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.types import JSONDict

from tenantry.common import clock as backoff
from tenantry.common.clock import DEFAULT_TIMEOUTS, Timeouts
from tenantry.common.tracing import Tracing
from tenantry.db.connection import Connection
from tenantry.db.database import OUTGROWN, PoolUsage, new_pool, take_role, usage_of, with_statement_timeout
from tenantry.db.failover_detection import FailoverDetector
from tenantry.domain.billing.ledger import Question
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.jobs import runs_store as jobs
from tenantry.jobs.tasks import ASK_PROVIDER, DELIVER_MAIL, LONGEST_JOB, MAIL, PROVIDER, Work, register
from tenantry.notifications import notices_store as notices

_HEARTBEAT: Final = 10.0
_STALLED_AFTER: Final = 30.0
_POOL_SIZE: Final = 2
_SOUND: Final = 60.0
_A_MOMENT: Final = timedelta(seconds=2)
_MOST_FORSAKEN: Final = 1000

NO_TRACES: Final[Mapping[Any, str]] = MappingProxyType({})

logger = logging.getLogger(__name__)


def _in_one_line(record: logging.LogRecord) -> bool:
    """Of a job that met no database there is nothing to say but that."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, DatabaseUnavailableError):
        record.msg, record.exc_info = f"{record.msg}: {error}", None
    return True


class JobQueue:
    """The job queue of one process. Deferring needs nothing; `open` it before running a worker, once.

    Without ``asks_provider`` questions to the provider are let go: nobody could answer them. With ``tracing`` a job
    takes along the trace in which it was deferred. ``failover`` is what the process knows of its database, where
    others know it too.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        asks_provider: bool = False,
        tracing: Tracing | None = None,
        failover: FailoverDetector | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._asks_provider = asks_provider
        self._tracing = tracing
        self._app = App(connector=PsycopgConnector(configure=take_role))  # of the connection that listens
        logging.getLogger("procrastinate.worker").addFilter(_in_one_line)
        register(self._app, self.requeue_stalled)
        failover = failover or FailoverDetector(with_statement_timeout(conninfo, timeouts))
        self._pool = new_pool(failover, _POOL_SIZE, take_role, timeouts=timeouts)

    async def open(self) -> None:
        """Start connecting, without waiting for the database."""
        await self._pool.open()
        await self._app.open_async(self._pool)

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()

    def usage(self) -> PoolUsage:
        """How its connections are used; what is counted is counted since it was last asked."""
        return usage_of(self._pool)

    async def defer_mail(
        self,
        connection: Connection,
        ids: Sequence[UUID],
        traces: Mapping[UUID, str] = NO_TRACES,
        *,
        delay: timedelta | None = None,
    ) -> None:
        """Have these mails delivered as soon as the connection's transaction is committed, or after ``delay``.

        ``traces`` are those that their delivery belongs to, as ``traceparent``; of others it is that under way.
        Raises what psycopg raises.
        """
        if not ids:
            return
        later = None if delay is None else await jobs.now(connection) + delay
        deferrer = self._app.configure_task(DELIVER_MAIL, queue=MAIL, connection=connection, schedule_at=later)
        arguments = [
            self._with_trace({"notification_id": str(notification_id)}, traces.get(notification_id))
            for notification_id in ids
        ]
        await _deferred(deferrer.batch_defer_async(*arguments))

    async def defer_questions(
        self, connection: Connection, questions: Sequence[Question], traces: Mapping[str, str] = NO_TRACES
    ) -> None:
        """Have the provider asked about tenants, whom the transaction has locked, once it is committed.

        A question that waits already is not asked twice. ``traces`` as in `defer_mail`, by tenant. Raises what psycopg
        raises.
        """
        if not self._asks_provider or not questions:
            return
        unasked = {question.tenant_id: question.later for question in questions}
        now, waiting = await jobs.waiting(connection, ASK_PROVIDER, unasked)
        for tenant_id in waiting:
            del unasked[tenant_id]  # what is asked later than now has an answer to this too
        for tenant_id, later in unasked.items():
            deferrer = self._app.configure_task(
                ASK_PROVIDER, queue=PROVIDER, connection=connection, lock=f"{ASK_PROVIDER} {tenant_id}",
                schedule_at=now + _A_MOMENT if later else None,
            )  # fmt: skip
            arguments = self._with_trace({"tenant_id": tenant_id}, traces.get(tenant_id))
            await _deferred(deferrer.defer_async(**arguments))

    def _with_trace(self, arguments: JSONDict, trace: str | None) -> JSONDict:
        """A job's arguments, with the trace that it belongs to if there is one."""
        if self._tracing is None:
            return arguments
        trace = trace or self._tracing.traceparent()
        return {**arguments, "traceparent": trace} if trace else arguments

    async def run_worker(
        self, work: Work, *, concurrency: int = 4, polling_interval: float = 2.0, grace: float = 15.0
    ) -> None:
        """Run jobs until cancelled; then begun ones get ``grace`` seconds to end, and are put back if they don't.

        New jobs are announced by the database; retries and what an announcement missed are found within
        ``polling_interval`` seconds. A database that goes away is waited for.
        """
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._app.check_connection_async()
                if failures:
                    logger.info("the job worker goes on")
                await self._app.run_worker_async(
                    queues=work.queues,
                    concurrency=concurrency,
                    fetch_job_polling_interval=polling_interval,
                    shutdown_graceful_timeout=grace,
                    delete_jobs="successful",
                    additional_context=work.as_context(),
                    install_signal_handlers=False,
                    update_heartbeat_interval=_HEARTBEAT,
                    stalled_worker_timeout=_STALLED_AFTER,
                )
                trouble: object = "it stopped by itself"
            except Exception as error:  # noqa: BLE001  # a worker goes on, whatever has happened to it
                trouble = error.__cause__ or error
                if isinstance(trouble, OUTGROWN):
                    await self._pool.drain()
            if _is_cancelled():  # a worker that loses its database while stopping reports that instead
                raise asyncio.CancelledError
            if asyncio.get_running_loop().time() - began > _SOUND:
                failures = 0
            failures += 1
            if failures == 1:
                logger.error("the job worker was interrupted and will go on when it can: %s", trouble)
            await asyncio.sleep(backoff.exponential(min(failures, 20), first=0.25, factor=2, ceiling=15))

    async def requeue_stalled(self, stalled_after: float = _STALLED_AFTER) -> None:
        """Put back the jobs of workers without a sign of life for so many seconds, and those that take too long.

        A mail whose job is gone gets another: after a failover to a standby that had not received everything, or a
        crash with ``synchronous_commit = off``.
        """
        stalled = await self._app.job_manager.get_stalled_jobs(seconds_since_heartbeat=stalled_after)
        async with self._pool.connection() as connection:
            overdue = await jobs.overdue(connection, timedelta(seconds=2 * LONGEST_JOB))
            now = await jobs.now(connection)
        for job_id in {job.id for job in stalled if job.id is not None}.union(overdue):
            try:
                await self._app.job_manager.retry_job_by_id_async(job_id, retry_at=now)
            except ConnectorException as error:
                if not isinstance(error.__cause__, psycopg.errors.RaiseException):
                    raise
                # It has ended in the meantime.
            else:
                logger.warning("job %d was begun and not ended; it is put back", job_id)
        async with self._pool.connection() as connection:
            orphaned = await notices.orphaned(connection, DELIVER_MAIL, _MOST_FORSAKEN)
            await self.defer_mail(connection, orphaned)
        for notification_id in orphaned:
            logger.warning("mail %s had lost its job; it has another", notification_id)


async def _deferred(deferring: Awaitable[object]) -> None:
    try:
        await deferring
    except ConnectorException as error:
        if isinstance(error.__cause__, psycopg.Error):
            raise error.__cause__ from None
        raise


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
