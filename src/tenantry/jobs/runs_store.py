"""The job queue's tables (procrastinate's), for what its own interface does not answer."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final, NamedTuple, cast

from tenantry.db.connection import Connection

# A worker that lives may still have lost a job: when the database went away just as the job's end was to be written.
OVERDUE: Final = """
SELECT job.id
  FROM procrastinate_jobs job
 WHERE job.status = 'doing'
   AND (SELECT max(event.at) FROM procrastinate_events event
         WHERE event.job_id = job.id AND event.type = 'started') < now() - %s
"""

# By their locks; a queueing lock would refuse a job that is to be tried again while another waits. So several may.
WAITING: Final = """
SELECT clock_timestamp(),
       ARRAY (SELECT asked.tenant_id
                FROM unnest(%s::text[]) AS asked (tenant_id)
               WHERE EXISTS (SELECT FROM procrastinate_jobs job
                              WHERE job.lock = %s || ' ' || asked.tenant_id AND job.status = 'todo'))
"""

RECORD_RUN: Final = """
INSERT INTO job_runs (task, succeeded, failed, succeeded_at)
     VALUES (%(task)s, %(succeeded)s::bool::int, (NOT %(succeeded)s::bool)::int,
             CASE WHEN %(succeeded)s::bool THEN now() END)
    ON CONFLICT (task) DO UPDATE
       SET succeeded = job_runs.succeeded + excluded.succeeded, failed = job_runs.failed + excluded.failed,
           succeeded_at = coalesce(excluded.succeeded_at, job_runs.succeeded_at)
"""
RUNS: Final = "SELECT task, succeeded, failed, succeeded_at FROM job_runs ORDER BY task"
BY_STATUS: Final = """
SELECT queue_name, status::text, count(*)
  FROM procrastinate_jobs
 WHERE status <> 'succeeded'
 GROUP BY queue_name, status
"""
# A job that is tried again is due from when it is scheduled for; any other from when it was deferred, in the order of
# the ids.
LONGEST_DUE: Final = """
SELECT queue_name, extract(epoch FROM now() - min(due))
  FROM (SELECT queue_name, min(scheduled_at) AS due
          FROM procrastinate_jobs
         WHERE status = 'todo' AND scheduled_at <= now()
         GROUP BY queue_name
         UNION ALL
        SELECT oldest.queue_name, event.at
          FROM (SELECT queue_name, min(id) AS id
                  FROM procrastinate_jobs
                 WHERE status = 'todo' AND scheduled_at IS NULL
                 GROUP BY queue_name) oldest
          JOIN procrastinate_events event ON event.job_id = oldest.id AND event.type = 'deferred') waiting
 GROUP BY queue_name
"""

# A worker gives a sign of life every ten seconds.
WORKERS: Final = "SELECT count(*) FROM procrastinate_workers WHERE last_heartbeat > now() - interval '1 minute'"


async def waiting(connection: Connection, task: str, tenants: Collection[str]) -> tuple[datetime, list[str]]:
    """Those of these tenants for whom a job of this name waits, by its lock: ``<task> <tenant>``.

    Before them the time by the database's clock, by which jobs are fetched.
    """
    cursor = await connection.execute(WAITING, (list(tenants), task))
    [(now, found)] = await cursor.fetchall()
    return now, found


async def now(connection: Connection) -> datetime:
    """The time by the database's clock, by which jobs are fetched."""
    cursor = await connection.execute("SELECT clock_timestamp()")
    [(moment,)] = await cursor.fetchall()
    return cast("datetime", moment)


async def overdue(connection: Connection, longest: timedelta) -> list[int]:
    """The ids of the jobs that were begun longer ago than any job may take."""
    cursor = await connection.execute(OVERDUE, (longest,))
    return [row[0] for row in await cursor.fetchall()]


class JobRuns(NamedTuple):
    """How often a task has run, and when it last went well; None if it never has."""

    task: str
    succeeded: int
    failed: int
    succeeded_at: datetime | None


async def record_run(connection: Connection, task: str, *, succeeded: bool) -> None:
    """Count a run of a task that has ended now."""
    await connection.execute(RECORD_RUN, {"task": task, "succeeded": succeeded})


async def read_runs(connection: Connection) -> list[JobRuns]:
    """What has been counted of each task that has run."""
    cursor = await connection.execute(RUNS)
    return [JobRuns(*row) for row in await cursor.fetchall()]


async def count_by_status(connection: Connection) -> dict[tuple[str, str], int]:
    """How many jobs there are that have not gone well yet, by queue and status."""
    cursor = await connection.execute(BY_STATUS)
    return {(queue, status): number for queue, status, number in await cursor.fetchall()}


async def longest_due(connection: Connection) -> dict[str, float]:
    """For how many seconds the job has been due that waits longest, by queue; queues without one are left out."""
    cursor = await connection.execute(LONGEST_DUE)
    return {queue: float(seconds) for queue, seconds in await cursor.fetchall()}


async def count_workers(connection: Connection) -> int:
    """How many workers gave a sign of life in the last minute."""
    cursor = await connection.execute(WORKERS)
    [(number,)] = await cursor.fetchall()
    return int(number)
