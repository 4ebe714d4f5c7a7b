"""The job queue: workers run the jobs that the outbox defers, on the same PostgreSQL."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Final

import psycopg
from procrastinate import App, JobContext, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job
from procrastinate.manager import JobManager
from procrastinate.middleware import AsyncCallNext
from procrastinate.worker import Worker

from tenantry.common.clock import DEFAULT_TIMEOUTS, Timeouts, exponential
from tenantry.db import outbox_store
from tenantry.db.background import BackgroundGroup
from tenantry.db.database import OUTGROWN, new_pool, servers, take_role
from tenantry.db.failover_detection import FailoverDetector
from tenantry.db.job_names import DELIVER_MAIL
from tenantry.db.outbox import Outbox
from tenantry.jobs import runs_store
from tenantry.jobs.tasks import WORK, Work, register
from tenantry.jobs.worker_logs import (
    UnavailableDatabaseFilter,
    as_information,
    keep_unless_unavailable,
)
from tenantry.notifications import mails_store as mails

_HEARTBEAT: Final = 10.0
_STALLED_AFTER: Final = 30.0
_LOST_AFTER: Final = 15.0
"""Longer than a worker needs to record the end of a job, or to give up."""
_POOL_SIZE: Final = 2
_SOUND: Final = 60.0
_MOST_ORPHANED: Final = 1000

logger = logging.getLogger(__name__)


class _RunningJobs:
    """The jobs that a worker runs, to find those that it has lost.

    A worker loses a job if the database becomes unavailable while it fetches the job or records its
    end. The job stays started, and its lock stays taken, although the worker is alive.
    """

    def __init__(self) -> None:
        self.worker_id: int | None = None
        self._running: set[int | None] = set()
        self._suspected: frozenset[int] = frozenset()

    async def run(self, call_next: AsyncCallNext, context: JobContext, worker: Worker) -> object:
        """Run a job (a worker middleware)."""
        self.worker_id = worker.worker_id
        job_id = context.job.id
        self._running.add(job_id)
        try:
            return await call_next()
        finally:
            self._running.discard(job_id)

    def lost(self, started: Collection[int]) -> frozenset[int]:
        """Return those of the worker's started jobs that it ran neither at the last call nor
        now.
        """
        idle = frozenset(started) - self._running
        lost = idle & self._suspected
        self._suspected = idle - lost
        return lost


class _ObservedJobManager(JobManager):
    """Calls ``fetched`` after each successful look for a job: then the worker works."""

    def __init__(self, connector: PsycopgConnector) -> None:
        super().__init__(connector)
        self.fetched: Callable[[], None] = lambda: None

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        job = await super().fetch_job(queues, worker_id)
        self.fetched()
        return job


class JobQueue:
    """The job queue of one process. `open` it before running a worker.

    ``failover`` is the process's failover detector, if it has one. ``outbox`` gives a new job to a
    mail that lost its own. With ``reminds_of_keys`` the job of key reminders is on the schedule.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        failover: FailoverDetector | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        outbox: Outbox | None = None,
        reminds_of_keys: bool = False,
    ) -> None:
        self._outbox = outbox or Outbox()
        failover = failover or servers(conninfo, timeouts)
        self._pool = new_pool(failover, _POOL_SIZE, take_role, timeouts=timeouts)

        # for the connection that listens, which procrastinate makes as the pool makes its own
        connector = PsycopgConnector(configure=take_role)
        self._app = App(connector=connector)
        self._app.job_manager = self._jobs = _ObservedJobManager(connector)
        logging.getLogger("procrastinate.worker").addFilter(as_information)
        # some of it only when the process ends
        logging.getLogger("asyncio").addFilter(keep_unless_unavailable)
        register(self._app, self.requeue_stalled, reminds_of_keys=reminds_of_keys)

    async def open(self) -> None:
        """Start connecting, without waiting for the database."""
        await self._pool.open()
        await self._app.open_async(self._pool)

    async def close(self) -> None:
        await self._pool.close()

    def pool_stats(self) -> dict[str, int]:
        """Return the pool's usage since the last call."""
        return self._pool.pop_stats()

    async def run_worker(
        self,
        work: Work,
        *,
        is_alone: bool = True,
        concurrency: int = 4,
        polling_interval: float = 2.0,
        grace: float = 15.0,
        lost_after: float = _LOST_AFTER,
    ) -> None:
        """Run jobs until canceled; then running jobs get ``grace`` seconds to end, or are requeued.

        ``is_alone`` says that the process does nothing else.

        The database announces new jobs; retries and missed announcements are found within
        ``polling_interval`` seconds. While the database is unavailable, the worker retries. A job
        that it lost meanwhile is requeued at least ``lost_after`` seconds later, and at most twice
        as many.
        """
        unavailable = UnavailableDatabaseFilter(is_alone=is_alone)
        running = _RunningJobs()
        options = {
            "queues": work.queues,
            # a slow receiver holds up no other jobs
            "concurrency": concurrency + work.endpoints,
            "fetch_job_polling_interval": polling_interval,
            "shutdown_graceful_timeout": grace,
            "delete_jobs": "successful",
            "additional_context": {WORK: work},
            "install_signal_handlers": False,
            "update_heartbeat_interval": _HEARTBEAT,
            "stalled_worker_timeout": _STALLED_AFTER,
            "worker_middleware": [running.run],
        }
        self._jobs.fetched = unavailable.end_interruption
        with unavailable.installed():
            async with BackgroundGroup() as beside:
                requeue_lost = partial(self._requeue_lost, running)
                beside.repeat("searches for lost jobs", requeue_lost, every=lost_after)
                if (webhooks := work.webhooks) is not None:
                    beside.repeat("webhooks", webhooks.queue_due, every=webhooks.interval)
                await self._keep_running(options, unavailable)

    async def _keep_running(
        self,
        options: dict[str, Any],
        unavailable: UnavailableDatabaseFilter,
    ) -> None:
        """Run a worker with procrastinate's ``options``, and another after each interruption."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            began = clock()
            trouble = await self._run_until_interrupted(options)
            _raise_if_canceled()
            failures = 1 if clock() - began > _SOUND else failures + 1
            unavailable.begin_interruption(trouble)
            pause = exponential(min(failures, 20), first=0.25, factor=2, ceiling=15)
            await asyncio.sleep(pause)

    async def _run_until_interrupted(self, options: dict[str, Any]) -> object:
        """Run one worker until it ends, and return why it ended."""
        try:
            await self._app.run_worker_async(**options)
        except Exception as error:  # noqa: BLE001  # a worker continues after any error
            trouble = error.__cause__ or error
            if isinstance(trouble, OUTGROWN):
                await self._pool.drain()
            return trouble
        return "it stopped by itself"

    async def requeue_stalled(self, stalled_after: float = _STALLED_AFTER) -> None:
        """Requeue the jobs of workers without a heartbeat for so many seconds.

        Also give a mail whose job was lost another one: after a failover to a standby that lagged
        behind, or a crash with ``synchronous_commit = off``.
        """
        stalled = await self._app.job_manager.get_stalled_jobs(
            seconds_since_heartbeat=stalled_after
        )
        await self._requeue(job.id for job in stalled if job.id is not None)
        async with self._pool.connection() as connection:
            orphaned = await mails.orphaned(connection, DELIVER_MAIL, _MOST_ORPHANED)
            await self._outbox.defer_mail(connection, orphaned)
        for mail_id in orphaned:
            logger.warning("mail %s had lost its job; it has a new one", mail_id)

    async def _requeue_lost(self, running: _RunningJobs) -> None:
        if running.worker_id is None:
            return
        async with self._pool.connection() as connection:
            started = await runs_store.started_jobs(connection, running.worker_id)
        await self._requeue(running.lost(started))

    async def _requeue(self, ids: Iterable[int]) -> None:
        for job_id in ids:
            async with self._pool.connection() as connection:
                now = await outbox_store.now(connection)
            try:
                await self._app.job_manager.retry_job_by_id_async(job_id, retry_at=now)
            except ConnectorException as error:
                if not isinstance(error.__cause__, psycopg.errors.RaiseException):
                    raise
                # It has ended meanwhile.
            else:
                logger.warning("job %d was started and has not ended; it is requeued", job_id)


def _raise_if_canceled() -> None:
    """Raise `CancelledError` if this task was canceled.

    If the worker loses the database while it stops, it raises that error instead.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
