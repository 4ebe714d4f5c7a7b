"""Fixtures for tests of pages and forms."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.dashboard.signing_in import Browser, at_provider
from tests.support.dashboard import Dashboard, running_dashboard, started_dashboard
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
async def shared_dashboard(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    """The service behind `dashboard`."""
    with postgres.database() as conninfo:
        async with started_dashboard(conninfo, people) as dashboard:
            yield dashboard


@pytest.fixture
async def dashboard(shared_dashboard: Dashboard) -> AsyncIterator[Dashboard]:
    """The tenants acme and beta in an empty database for each test; all tests share the service."""
    async with shared_dashboard.reset():
        yield shared_dashboard


@pytest.fixture
async def own_dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    """The same with a separate service, which the test may stop."""
    async with running_dashboard(conninfo, people) as dashboard:
        yield dashboard


@pytest.fixture(scope="session")
async def shared_browser(postgres: PostgresServer) -> AsyncIterator[Browser]:
    """The service and the identity provider behind `browser`."""
    with postgres.database() as conninfo:
        async with at_provider(conninfo) as browser:
            yield browser


@pytest.fixture
async def browser(shared_browser: Browser) -> AsyncIterator[Browser]:
    """A signed-out browser, with the tenants acme, owned by `USER`, and other.

    All tests share the service and its identity provider. The clock stands still, later than in the
    test before.
    """
    async with shared_browser.reset():
        yield shared_browser


@pytest.fixture
async def own_browser(conninfo: str) -> AsyncIterator[Browser]:
    """The same with a separate service and identity provider, which the test may stop."""
    async with at_provider(conninfo) as browser, browser.reset():
        yield browser
