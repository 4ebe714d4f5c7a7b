"""Fixtures of the end-to-end tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for a PostgreSQL: not below pytest's own, which each session of pytest closes to
    other accounts.
    """
    with tempfile.TemporaryDirectory(prefix="kept-") as folder:
        yield Path(folder)
