"""Sessions of pytest that are killed while the plugin's service runs: neither processes nor files outlive them."""

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.testing.test_what_is_left import check_ended_session, check_forked_child
from tests.support.suites import Suite


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for a PostgreSQL: not below pytest's own, which each session of pytest closes to other accounts."""
    with tempfile.TemporaryDirectory(prefix="kept-") as folder:
        yield Path(folder)


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


async def test_nothing_is_left_of_a_session_that_is_killed(suite: Suite, place: Path) -> None:
    await check_ended_session(suite, place, signal.SIGKILL, -signal.SIGKILL)


async def test_nothing_is_left_of_a_killed_session_whose_test_leaves_a_child_that_shares_its_files(
    suite: Suite, place: Path
) -> None:
    await check_forked_child(suite, place, signal.SIGKILL, -signal.SIGKILL)
