"""Suites of users, run as they run them."""

from pathlib import Path

import pytest

from tests.support.suites import Suite


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)
