"""When and from where API keys were last used, at constant cost: remembered here, written every few seconds."""

import asyncio
import logging
from typing import Final

import psycopg

from tenantry.auth import api_keys_store as api_keys
from tenantry.auth.api_keys_store import Use
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError

INTERVAL: Final = 5.0
"""Seconds between writes: what a process that is killed can lose."""

_AT_ONCE: Final = 1000  # more would run into the time limit of a statement, and hold their rows for as long

logger = logging.getLogger(__name__)


class KeyUse:
    """Collects uses of keys; `run` writes them, many in one statement."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._used: dict[str, Use] = {}

    def record(self, use: Use) -> None:
        """The key was just used; only the last use of each is kept."""
        self._used[use.key_id] = use

    async def run(self) -> None:
        """Write what was collected every `INTERVAL` seconds, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.write()

    async def write(self) -> None:
        """Write what was collected so far. While the database does not take it, it is kept for the next time."""
        used, self._used = list(self._used.values()), {}
        for start in range(0, len(used), _AT_ONCE):
            try:
                async with self._database.transaction(ACROSS_TENANTS) as connection:
                    await api_keys.record_uses(connection, used[start : start + _AT_ONCE])
            except (DatabaseUnavailableError, psycopg.Error) as error:
                left = used[start:]
                self._used = {**{use.key_id: use for use in left}, **self._used}
                why = type(error.__cause__ or error).__name__
                logger.info("the last use of %d keys is written later: %s", len(left), why)
                return
