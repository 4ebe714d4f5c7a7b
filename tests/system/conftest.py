"""Fixtures of the tests that need more than Python."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser

from tests.support.browser import running_browser
from tests.support.typescript_client import Package, packed_client

_LIMIT: Final = 600
"""Seconds for a test without its own limit: these build images, start clusters and wait for
supervisors.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this folder more time than others have."""
    for item in items:
        if (
            item.path.is_relative_to(Path(__file__).parent)
            and item.get_closest_marker("timeout") is None
        ):
            item.add_marker(pytest.mark.timeout(_LIMIT))


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The system's chromium; a test makes its own contexts in it."""
    async with running_browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The TypeScript client, packed."""
    return packed_client(tmp_path_factory.mktemp("package"))


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for a PostgreSQL: not below pytest's own, which each session of pytest closes to
    other accounts.
    """
    with tempfile.TemporaryDirectory(prefix="kept-") as folder:
        yield Path(folder)
