"""Containment of keys in many steps; `tests/laws` runs a few of them."""

import pytest

from tests.support.figures import RecordProperty
from tests.support.key_operations import run_key_operations


@pytest.mark.timeout(900)
def test_no_sequence_of_requests_makes_a_key_that_exceeds_its_makers(
    conninfo: str, record_property: RecordProperty
) -> None:
    run_key_operations(conninfo, record_property, sequences=60, steps=5_000)
