"""Fixtures of the SDK's tests."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.sdk.sdk_support import ASYNC, INVITING, SYNC, Flavour, Served, serving
from tests.support.authorities import trusting_one_authority
from tests.support.catalogs import catalog_file
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="package", autouse=True)
def one_authority() -> Iterator[None]:
    """Clients of these tests load one certificate authority instead of all of the system's."""
    with trusting_one_authority():
        yield


@pytest.fixture(scope="session")
async def served(postgres: PostgresServer) -> AsyncIterator[Served]:
    """The service, shared by all tests: each creates separate organizations, and none moves the
    clock.
    """
    with postgres.database() as conninfo:
        async with serving(conninfo, None, **INVITING) as running:
            yield running


@pytest.fixture(scope="session")
async def unlimited(postgres: PostgresServer) -> AsyncIterator[Served]:
    """The same with a plan catalog that limits nothing."""
    plans = catalog_file('[[plans]]\nid = "free"\n')
    with postgres.database() as conninfo:
        async with serving(conninfo, TENANTRY_PLANS=plans) as running:
            yield running


@pytest.fixture(params=[ASYNC, SYNC], ids=lambda flavour: flavour.name)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Each of the two clients."""
    chosen: Flavour = request.param
    return chosen
