"""Fixtures of the tests that run the whole service."""

from collections.abc import AsyncIterator

import pytest

from tests.support.postgres import PostgresServer
from tests.support.service import Service, running_service


@pytest.fixture(scope="module")
async def service(postgres: PostgresServer) -> AsyncIterator[Service]:
    """The service, shared by the tests of a file: each makes tenants of its own, and none moves the clock."""
    with postgres.database() as conninfo:
        async with running_service(conninfo) as service:
            yield service


@pytest.fixture
async def fresh_service(conninfo: str) -> AsyncIterator[Service]:
    """The service on a database of this test's own."""
    async with running_service(conninfo) as service:
        yield service
