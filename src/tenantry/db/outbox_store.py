"""The jobs that wait in the queue (procrastinate's tables), and the time by its clock."""

from collections.abc import Collection
from datetime import datetime
from typing import Final, cast

from tenantry.db.connection import Connection

# By their locks: a queueing lock would reject the retry of a job while another one waits.
WAITING: Final = """
SELECT clock_timestamp(),
       ARRAY (SELECT asked.name
                FROM unnest(%s::text[]) AS asked (name)
               WHERE EXISTS (SELECT FROM procrastinate_jobs job
                              WHERE job.lock = %s || ' ' || asked.name AND job.status = 'todo'))
"""

IS_WAITING: Final = """
SELECT FROM procrastinate_jobs WHERE lock = %s AND status = 'todo' LIMIT 1
"""
RUN_WAITING: Final = """
SELECT FROM procrastinate_jobs
 WHERE lock = %s AND task_name = %s AND status = 'todo' AND args->>'tenant_id' = %s
 LIMIT 1
"""


async def waiting(
    connection: Connection, task: str, names: Collection[str]
) -> tuple[datetime, list[str]]:
    """Return the database's time, and those of these names, such as tenants, that have a waiting
    job of this task.
    """
    [(now, found)] = await connection.fetch(WAITING, (list(names), task))
    return now, found


async def is_waiting(connection: Connection, lock: str) -> bool:
    """Whether a job waits that has this lock."""
    return await connection.fetch_row(IS_WAITING, (lock,)) is not None


async def is_run_waiting(connection: Connection, task: str, tenant_id: str) -> bool:
    """Whether a job of this task waits for a tenant: all its jobs have one lock."""
    return await connection.fetch_row(RUN_WAITING, (task, task, tenant_id)) is not None


async def now(connection: Connection) -> datetime:
    """Return the time by the database's clock, by which workers fetch jobs."""
    [(moment,)] = await connection.fetch("SELECT clock_timestamp()")
    return cast("datetime", moment)
