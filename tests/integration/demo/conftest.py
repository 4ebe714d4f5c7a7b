"""Fixtures of the tests of the development companions."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tenantry_devkit.demo.companion import Companion
from tests.support.sign_in import Clock, running_provider


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def provider(people: Path, clock: Clock) -> Iterator[tuple[Companion, httpx2.Client]]:
    with running_provider(people, clock) as running:
        yield running


@pytest.fixture
def companion(provider: tuple[Companion, httpx2.Client]) -> Companion:
    return provider[0]


@pytest.fixture
def http(provider: tuple[Companion, httpx2.Client]) -> httpx2.Client:
    return provider[1]
