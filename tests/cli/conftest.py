"""Fixtures of the tests of the commands."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.signing_in import Entrance, Premises, running_premises
from tests.cli.support import Home, Place
from tests.sdk.support import Served, serving
from tests.support.postgres import PostgresServer


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home without anything."""
    return Home(tmp_path)


@pytest.fixture(scope="session")
async def served(postgres: PostgresServer) -> AsyncIterator[Served]:
    """The service, shared by all tests: each makes an organization of its own, and none moves the clock."""
    with postgres.database() as conninfo:
        async with serving(conninfo) as running:
            yield running


@pytest.fixture
async def place(served: Served, home: Home) -> Place:
    """An organization of the service."""
    return Place(served, await served.service.organization(), home)


@pytest.fixture(scope="session")
async def premises(postgres: PostgresServer, people: Path) -> AsyncIterator[Premises]:
    """A service and the demo's identity provider, shared by all tests: none stops either of them."""
    with postgres.database() as conninfo:
        async with running_premises(conninfo, people) as running:
            yield running


@pytest.fixture
def entrance(premises: Premises, home: Home) -> Entrance:
    """The same, with a home that knows both."""
    return Entrance.at(premises, home)
