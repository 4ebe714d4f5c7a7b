"""Containment, through the real services on a real database.

`tests/system` runs many more steps of the same machine.
"""

from tests.support.figures import RecordProperty
from tests.support.key_operations import run_key_operations


def test_no_sequence_of_requests_makes_a_key_that_exceeds_its_makers(
    conninfo: str, record_property: RecordProperty
) -> None:
    run_key_operations(conninfo, record_property, sequences=5)
