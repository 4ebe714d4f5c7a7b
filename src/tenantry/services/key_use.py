"""When each API key was last used, at constant cost: remembered here, written together every few seconds."""

import asyncio
import logging
from datetime import datetime
from typing import Final

from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.kit.clock import Clock
from tenantry.store import api_keys

INTERVAL: Final = 5.0
"""Seconds between writes: what a process that is killed can lose."""

logger = logging.getLogger(__name__)


class KeyUse:
    """Collects uses of keys; `run` writes them, in one statement for all keys that were used."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._used: dict[str, datetime] = {}

    def record(self, key_id: str) -> None:
        """The key was just used."""
        self._used[key_id] = self._clock()

    async def run(self) -> None:
        """Write what was collected every `INTERVAL` seconds, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.write()

    async def write(self) -> None:
        """Write what was collected so far. While the database is out of reach it is kept for the next time."""
        used, self._used = self._used, {}
        if not used:
            return
        try:
            async with self._database.transaction() as connection:
                await api_keys.record_use(connection, used)
        except DatabaseUnavailableError:
            self._used = {**used, **self._used}
            logger.info("the last use of %d keys is written later: the database is out of reach", len(used))
