"""Fixtures of the tests that need more than Python."""

import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser

from tests.support.browser import Browsers, killed_unless_ended
from tests.support.suites import Suite
from tests.support.typescript_client import Package, packed_client

_LIMIT: Final = 600
"""Seconds for a test without its own limit: these build images, start clusters and wait for
supervisors.
"""

_BROWSER_LIMIT: Final = 120.0
"""Seconds for a test with a browser, which take up to 40; after them the browser is killed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this folder more time than others have."""
    for item in items:
        if (
            item.path.is_relative_to(Path(__file__).parent)
            and item.get_closest_marker("timeout") is None
        ):
            item.add_marker(pytest.mark.timeout(_LIMIT))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End a test whose browser does not answer where it waits, before its own limit."""
    if "browsers" not in getattr(item, "fixturenames", ()):
        return (yield)
    with killed_unless_ended(_BROWSER_LIMIT):
        return (yield)


@pytest.fixture(scope="session")
async def browsers() -> AsyncIterator[Browsers]:
    async with Browsers() as browsers:
        yield browsers


@pytest.fixture
async def browser(browsers: Browsers) -> Browser:
    """The system's chromium; a test makes its own contexts in it."""
    return await browsers.connected()


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The TypeScript client, packed."""
    return packed_client(tmp_path_factory.mktemp("package"))


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """A suite of a user, run as they run it."""
    return Suite(tmp_path)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for a PostgreSQL: not below pytest's own, which each session of pytest closes to
    other accounts.
    """
    with tempfile.TemporaryDirectory(prefix="kept-") as folder:
        yield Path(folder)
