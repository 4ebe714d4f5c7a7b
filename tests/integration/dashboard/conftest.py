"""Fixtures of the tests that read pages and send forms."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.dashboard.signing_in import USER, Browser, at_provider
from tests.support.app import OPERATOR_TOKEN
from tests.support.dashboard import Dashboard, running_dashboard
from tests.support.postgres import PostgresServer


@pytest.fixture
async def dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    """The service on a database of this test's own."""
    async with running_dashboard(conninfo, people) as dashboard:
        yield dashboard


@pytest.fixture(scope="module")
async def unchanged_dashboard(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    """The same, shared by the tests of a file that change nothing."""
    with postgres.database() as conninfo:
        async with running_dashboard(conninfo, people) as dashboard:
            yield dashboard


@pytest.fixture
async def browser(conninfo: str) -> AsyncIterator[Browser]:
    """A browser in which nobody has signed in; there are the tenants acme, of `USER`, and other."""
    async with at_provider(conninfo) as browser:
        for tenant, owner in (("acme", USER), ("other", "somebody")):
            answer = await browser.client.put(
                f"/api/v1/tenants/{tenant}",
                json={"name": tenant.title(), "ownerEmail": "o@x.example", "ownerId": owner},
                headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"},
            )
            assert answer.is_success, answer.text
        yield browser
