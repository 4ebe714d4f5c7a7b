"""Fixtures of the tests that run the whole service."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import make_cluster
from tests.support.emptying import SharedDatabase, emptying
from tests.support.guarded_events import forgotten_events
from tests.support.postgres import PostgresServer
from tests.support.provider_api import ProviderServer, running_provider
from tests.support.service import Service, running_service
from tests.support.truth import Stage, World, running_stage


@pytest.fixture(autouse=True)
def no_forgotten_event(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test that does not look at the error by which the guard of events ends a request."""
    yield
    assert not forgotten_events(caplog.get_records("call"))


@pytest.fixture(scope="module")
async def shared_database(postgres: PostgresServer) -> AsyncIterator[SharedDatabase]:
    """The database of a file: that of its `service`, too."""
    with postgres.database() as conninfo:
        async with emptying(conninfo) as empty:
            yield SharedDatabase(conninfo, empty)


@pytest.fixture
async def emptied(shared_database: SharedDatabase) -> str:
    """The connection string of the file's database, which holds no rows of earlier tests.

    For tests that count rows or use fixed ids, and leave schema and privileges as they are. A
    service on it that is not the file's own must make no tenants by `Service.organization`: the
    file's numbers its tenants alike.
    """
    await shared_database.empty()
    return shared_database.conninfo


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    """The service, shared by the tests of a file: each creates separate tenants, and none moves the
    clock.
    """
    async with running_service(shared_database.conninfo) as service:
        yield service


@pytest.fixture
def emptied_service(service: Service, emptied: str) -> Service:
    """The service that the tests of a file share, on a database without rows of earlier tests.

    Tests may move its clock forward.
    """
    return service


@pytest.fixture
async def fresh_service(conninfo: str) -> AsyncIterator[Service]:
    """The service on a database of this test's own."""
    async with running_service(conninfo) as service:
        yield service


@pytest.fixture(scope="module")
async def stage(shared_database: SharedDatabase) -> AsyncIterator[Stage]:
    """The service with a key to a provider, shared by the worlds of a file."""
    async with running_stage(shared_database.conninfo) as stage:
        yield stage


@pytest.fixture
async def world(stage: Stage, emptied: str) -> AsyncIterator[World]:
    """A new provider beside the service of `stage`, whose database holds no rows of earlier
    tests.
    """
    async with stage.world() as world:
        yield world


@pytest.fixture(scope="session")
def empty_cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a PostgreSQL cluster that does not run; tests start copies of it
    (`copy_cluster`).
    """
    return make_cluster(tmp_path_factory.mktemp("cluster"))


@pytest.fixture
async def server() -> AsyncIterator[ProviderServer]:
    """A payment provider whose answers a test prepares."""
    async with running_provider() as server:
        yield server
