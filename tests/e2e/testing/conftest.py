"""Suites of users, run as they run them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.suites import Suite


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for a PostgreSQL: not below pytest's own, which each session of pytest closes to other accounts."""
    with tempfile.TemporaryDirectory(prefix="kept-") as folder:
        yield Path(folder)


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)
