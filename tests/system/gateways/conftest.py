"""The service, a gateway of each kind in front of an application, and who asks: once for a
session.
"""

from collections.abc import AsyncIterator

import pytest

from tests.support.gateways import (
    Gateway,
    ServiceBehindGateway,
    running_gateway,
    service_behind_gateway,
)
from tests.support.postgres import PostgresServer
from tests.support.service import Organization


@pytest.fixture(scope="session")
async def behind(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceBehindGateway]:
    with postgres.database() as conninfo:
        async with service_behind_gateway(conninfo, tmp_path_factory.mktemp("service")) as behind:
            yield behind


@pytest.fixture(scope="session")
async def nginx(
    behind: ServiceBehindGateway, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    async with running_gateway("nginx", tmp_path_factory.mktemp("nginx"), behind.port) as gateway:
        yield gateway


@pytest.fixture(scope="session")
async def caddy(
    behind: ServiceBehindGateway, tmp_path_factory: pytest.TempPathFactory
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
async def org(behind: ServiceBehindGateway) -> Organization:
    return await behind.service.organization()


@pytest.fixture(scope="session")
def owner(org: Organization) -> str:
    return str(org.owner.credential)


@pytest.fixture(scope="session")
async def reader(behind: ServiceBehindGateway, org: Organization) -> str:
    """A key for ``projects:read`` alone."""
    return str((await behind.service.key(org.owner, org.id, "projects:read")).caller.credential)
