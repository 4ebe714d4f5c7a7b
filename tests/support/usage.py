"""Counts of requests, as another process would write them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime

from tenantry.auth.usage_counting import UsageCounter
from tenantry.common.clock import Clock
from tenantry.domain.usage import RequestOutcome
from tests.support.patience import patient_database


@asynccontextmanager
async def counting(conninfo: str, clock: Clock) -> AsyncIterator[UsageCounter]:
    """A counter of another process on this database, which writes when the test says so."""
    database = patient_database(conninfo, pool_size=1)
    await database.open()
    yield UsageCounter(database, clock)
    await database.close()


async def write_usage(
    conninfo: str,
    moment: datetime,
    org_id: str,
    numbers: Mapping[tuple[str, RequestOutcome], int],
) -> None:
    """Write the requests of a tenant's keys in the hour of ``moment``."""
    async with counting(conninfo, lambda: moment) as counter:
        for (key_id, outcome), number in numbers.items():
            for _ in range(number):
                counter.count((org_id, key_id), outcome)
        await counter.close()
