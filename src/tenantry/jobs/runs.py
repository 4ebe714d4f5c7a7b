"""Counting how jobs go, for the metrics: in the database, since whoever runs jobs may answer no requests."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

from tenantry.db.database import Database
from tenantry.db.scope import ACROSS_TENANTS
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.jobs import runs_store as jobs

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
