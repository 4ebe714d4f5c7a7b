"""Fixtures of the tests that read pages and send forms."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.dashboard import Dashboard, running_dashboard
from tests.support.postgres import PostgresServer


@pytest.fixture
async def dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    """The service on a database of this test's own."""
    async with running_dashboard(conninfo, people) as dashboard:
        yield dashboard


@pytest.fixture(scope="module")
async def unchanged_dashboard(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    """The same, shared by the tests of a file that change nothing."""
    with postgres.database() as conninfo:
        async with running_dashboard(conninfo, people) as dashboard:
            yield dashboard
