"""Everything that a client may repeat, on every address."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.dashboard import Dashboard, running_dashboard
from tests.support.repeating_clients import RepeatingClients


@pytest.fixture
async def dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    async with running_dashboard(conninfo, people) as dashboard:
        yield dashboard


async def test_largest_number_of_everything_on_every_address(dashboard: Dashboard) -> None:
    person = await dashboard.sign_in()
    session = "; ".join(f"{name}={value}" for name, value in person.client.cookies.items())
    assert await RepeatingClients(dashboard, session).try_all() == []
