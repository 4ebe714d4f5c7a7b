"""Fixtures of the tests of the commands."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.command_support import Home, Workspace
from tests.cli.sign_in_support import SignInHome, SignInServices, running_sign_in_services
from tests.sdk.sdk_support import INVITING, Served, serving
from tests.support.postgres import PostgresServer


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An empty home."""
    return Home(tmp_path)


@pytest.fixture(scope="session")
async def served(postgres: PostgresServer) -> AsyncIterator[Served]:
    """The service, shared by all tests: each creates its own organization, and none moves the
    clock.
    """
    with postgres.database() as conninfo:
        async with serving(conninfo, None, **INVITING) as running:
            yield running


@pytest.fixture
async def workspace(served: Served, home: Home) -> Workspace:
    """An organization of the service."""
    return Workspace(served, await served.service.organization(), home)


@pytest.fixture(scope="session")
async def sign_in_services(postgres: PostgresServer, people: Path) -> AsyncIterator[SignInServices]:
    """A service and the demo's identity provider, shared by all tests; no test stops them."""
    with postgres.database() as conninfo:
        async with running_sign_in_services(conninfo, people) as running:
            yield running


@pytest.fixture
def sign_in_home(sign_in_services: SignInServices, home: Home) -> SignInHome:
    """The same, with a home whose default profile names both."""
    return SignInHome.at(sign_in_services, home)
