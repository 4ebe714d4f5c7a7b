"""Fixtures that every kind of test may use."""

from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresServer, as_url, running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test process."""
    with running_server() as server:
        yield server


@pytest.fixture
def conninfo(postgres: PostgresServer) -> Iterator[str]:
    """The connection string of a migrated, empty database of this test's own."""
    with postgres.database() as conninfo:
        yield conninfo


@pytest.fixture
def database_url(conninfo: str) -> str:
    """`conninfo` as a ``postgresql://`` address, as `DATABASE_URL` takes it."""
    return as_url(conninfo)
