"""The job queue's tables (procrastinate's), for what its own interface does not answer."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final, cast

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
