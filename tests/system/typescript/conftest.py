"""A service and its tenants for programs of the TypeScript client."""

import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.sdk.sdk_support import Served, serving
from tests.support.postgres import PostgresServer
from tests.support.service import Organization


@pytest.fixture(scope="module")
async def served(postgres: PostgresServer) -> AsyncIterator[Served]:
    with postgres.database() as conninfo:
        async with serving(conninfo) as running:
            yield running


@pytest.fixture
async def acme(served: Served) -> Organization:
    return await served.service.organization()


@pytest.fixture(scope="module")
def nowhere() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
