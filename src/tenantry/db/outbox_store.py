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


async def waiting(
    connection: Connection, task: str, names: Collection[str]
) -> tuple[datetime, list[str]]:
    """Return the database's time, and those of these names, such as tenants, that have a waiting
    job of this task.
    """
    [(now, found)] = await connection.fetch(WAITING, (list(names), task))
    return now, found


async def now(connection: Connection) -> datetime:
    """Return the time by the database's clock, by which workers fetch jobs."""
    [(moment,)] = await connection.fetch("SELECT clock_timestamp()")
    return cast("datetime", moment)
