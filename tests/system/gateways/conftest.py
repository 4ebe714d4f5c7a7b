"""The service, a gateway of each kind in front of an application, and who asks."""

from collections.abc import AsyncIterator

import pytest

from tests.support.gateways import Backstage, Gateway, backstage, running_gateway
from tests.support.postgres import PostgresServer
from tests.support.service import Organization


@pytest.fixture(scope="module")
async def behind(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backstage]:
    with postgres.database() as conninfo:
        async with backstage(conninfo, tmp_path_factory.mktemp("service")) as behind:
            yield behind


@pytest.fixture(scope="module", params=["nginx", "caddy"])
async def running(
    request: pytest.FixtureRequest, behind: Backstage, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    async with running_gateway(request.param, tmp_path_factory.mktemp(request.param), behind.port) as gateway:
        yield gateway


@pytest.fixture
def gateway(running: Gateway) -> Gateway:
    """The gateway, with nothing received or asked so far."""
    running.application.received.clear()
    running.line.forget()
    return running


@pytest.fixture(scope="module")
async def org(behind: Backstage) -> Organization:
    return await behind.service.organization()


@pytest.fixture(scope="module")
def owner(org: Organization) -> str:
    return str(org.owner.credential)


@pytest.fixture(scope="module")
async def reader(behind: Backstage, org: Organization) -> str:
    """A key for ``projects:read`` alone."""
    return str((await behind.service.key(org.owner, org.id, "projects:read")).caller.credential)
