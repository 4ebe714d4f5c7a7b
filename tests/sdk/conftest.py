"""Fixtures of the SDK's tests."""

from collections.abc import AsyncIterator

import pytest

from tests.sdk.support import ASYNC, SYNC, Flavour, Served, serving


@pytest.fixture
async def served(conninfo: str) -> AsyncIterator[Served]:
    """The service, on an empty database."""
    async with serving(conninfo) as running:
        yield running


@pytest.fixture(params=[ASYNC, SYNC], ids=lambda flavour: flavour.name)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Each of the two clients."""
    chosen: Flavour = request.param
    return chosen
