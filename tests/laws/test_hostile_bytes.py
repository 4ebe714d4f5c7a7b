"""The fuzz targets without a fuzzer: earlier findings and some thousand mutations.

`bench.fuzz` runs them with a coverage-guided fuzzer.
"""

import logging
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import settings

from bench.fuzz.catalog import NAMES, target
from bench.fuzz.mutation import inputs

INPUTS: Final = 10 * settings().max_examples


@pytest.fixture(autouse=True)
def nothing_logged() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", NAMES)
def test_parser_meets_its_requirements_for_every_input(name: str) -> None:
    one = target(name)
    for data in inputs(one, INPUTS):
        one.check(data)
