"""Queries of the job queue's tables (procrastinate's) that its own interface lacks, and counts of
runs.
"""

from typing import Final, NamedTuple

from tenantry.db.connection import Connection

RECORD_RUN: Final = """
INSERT INTO job_runs (task, succeeded, failed, succeeded_at)
     VALUES (%(task)s, %(succeeded)s::bool::int, (NOT %(succeeded)s::bool)::int,
             CASE WHEN %(succeeded)s::bool THEN now() END)
    ON CONFLICT (task) DO UPDATE
       SET succeeded = job_runs.succeeded + excluded.succeeded, failed = job_runs.failed + excluded.failed,
           succeeded_at = coalesce(excluded.succeeded_at, job_runs.succeeded_at)
"""
RUNS: Final = """
SELECT task, succeeded, failed, coalesce(extract(epoch FROM succeeded_at), 0)::float8
  FROM job_runs
 ORDER BY task
"""
BY_STATUS: Final = """
SELECT queue_name, status::text, count(*)
  FROM procrastinate_jobs
 WHERE status <> 'succeeded'
 GROUP BY queue_name, status
"""
# A retried job is due from its scheduled time; any other from when it was deferred, in the order of
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


async def started_jobs(connection: Connection, worker_id: int) -> list[int]:
    """Return the ids of the jobs that a worker has started, and whose end is not recorded."""
    statement = "SELECT id FROM procrastinate_jobs WHERE status = 'doing' AND worker_id = %s"
    return await connection.fetch_column(statement, (worker_id,))


class JobRuns(NamedTuple):
    """How often a task has run, and when it last succeeded: Unix seconds, 0 if it never has."""

    task: str
    succeeded: int
    failed: int
    last_success: float


async def record_run(connection: Connection, task: str, *, succeeded: bool) -> None:
    await connection.execute(RECORD_RUN, {"task": task, "succeeded": succeeded})


async def read_runs(connection: Connection) -> list[JobRuns]:
    return [JobRuns(*row) for row in await connection.fetch(RUNS)]


async def count_by_status(connection: Connection) -> dict[tuple[str, str], int]:
    return {(queue, status): number for queue, status, number in await connection.fetch(BY_STATUS)}


async def longest_due(connection: Connection) -> dict[str, float]:
    """Return for how many seconds the longest waiting job of each queue has been due."""
    return {queue: float(seconds) for queue, seconds in await connection.fetch(LONGEST_DUE)}
