"""Fixtures of the tests that need more than Python."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from tests.support.browser import running_browser


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The system's chromium; a test makes its own contexts in it."""
    async with running_browser() as browser:
        yield browser
