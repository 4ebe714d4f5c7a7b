"""The service, a gateway of each kind in front of an application, and who asks: once for a
session.
"""

from collections.abc import AsyncIterator

import pytest

from tests.support.gateways import Backstage, Gateway, backstage, running_gateway
from tests.support.postgres import PostgresServer
from tests.support.service import Organization


@pytest.fixture(scope="session")
async def behind(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Backstage]:
    with postgres.database() as conninfo:
        async with backstage(conninfo, tmp_path_factory.mktemp("service")) as behind:
            yield behind


@pytest.fixture(scope="session")
async def nginx(
    behind: Backstage, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    async with running_gateway("nginx", tmp_path_factory.mktemp("nginx"), behind.port) as gateway:
        yield gateway


@pytest.fixture(scope="session")
async def caddy(
    behind: Backstage, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    async with running_gateway("caddy", tmp_path_factory.mktemp("caddy"), behind.port) as gateway:
        yield gateway


@pytest.fixture(params=["nginx", "caddy"])
def running(request: pytest.FixtureRequest) -> Gateway:
    """Each gateway in turn; both run for the whole session."""
    gateway: Gateway = request.getfixturevalue(request.param)
    return gateway


@pytest.fixture
def gateway(running: Gateway) -> Gateway:
    """The gateway, with nothing received or asked so far."""
    running.application.received.clear()
    running.line.forget()
    return running


@pytest.fixture(scope="session")
async def org(behind: Backstage) -> Organization:
    return await behind.service.organization()


@pytest.fixture(scope="session")
def owner(org: Organization) -> str:
    return str(org.owner.credential)


@pytest.fixture(scope="session")
async def reader(behind: Backstage, org: Organization) -> str:
    """A key for ``projects:read`` alone."""
    return str((await behind.service.key(org.owner, org.id, "projects:read")).caller.credential)
