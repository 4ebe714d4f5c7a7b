"""Connections to standbys that cannot be made."""

import asyncio

import pytest

from tenantry.db.database import Lane, servers
from tenantry.db.standby_connector import StandbyConnector
from tenantry.db.standby_registry import StandbyRegistry


async def test_host_that_cannot_be_one_is_skipped_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = StandbyRegistry(Lane(servers("host=/nowhere")))
    connector = StandbyConnector(["host=db..example", "host=/nowhere"], {}, registry)
    async with asyncio.timeout(20):
        while len(caplog.messages) < 2:  # it connects in the background
            assert await connector.link() is None
            await asyncio.sleep(0)
    await connector.close()
    assert ["place 1 of DATABASE_CHECKS_URL" in text for text in caplog.messages] == [True, False]
