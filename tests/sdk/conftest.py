"""Fixtures of the SDK's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sdk.support import ASYNC, SYNC, Flavour, Served, serving


@pytest.fixture
async def served(conninfo: str) -> AsyncIterator[Served]:
    """The service, on an empty database."""
    async with serving(conninfo) as running:
        yield running


@pytest.fixture
async def unlimited(conninfo: str, tmp_path: Path) -> AsyncIterator[Served]:
    """The service, whose plans limit nothing."""
    plans = tmp_path / "plans.toml"
    plans.write_text('[[plans]]\nid = "free"\n')
    async with serving(conninfo, TENANTRY_PLANS=str(plans)) as running:
        yield running


@pytest.fixture(params=[ASYNC, SYNC], ids=lambda flavour: flavour.name)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Each of the two clients."""
    chosen: Flavour = request.param
    return chosen
