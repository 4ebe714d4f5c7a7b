"""Fixtures of the tests of the commands."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.signing_in import Entrance
from tests.cli.signing_in import entrance as running_entrance
from tests.cli.support import Home, Place
from tests.sdk.support import serving


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home without anything."""
    return Home(tmp_path)


@pytest.fixture
async def place(conninfo: str, home: Home) -> AsyncIterator[Place]:
    """An organization of the service, on an empty database."""
    async with serving(conninfo) as served:
        yield Place(served, await served.service.organization(), home)


@pytest.fixture
async def entrance(conninfo: str, home: Home) -> AsyncIterator[Entrance]:
    """A service whose identity provider is the demo's."""
    async with running_entrance(conninfo, home) as running:
        yield running
