"""Reconciliation of many tenants that lost one event in twenty; `tests/system` has a thousand
tenants.
"""

import pytest

from tests.support import figures
from tests.support.drift import drift_is_repaired


@pytest.mark.thorough
async def test_the_drifted_of_many_tenants_are_named_repaired_and_found_no_more(
    conninfo: str, record_property: figures.RecordProperty
) -> None:
    await drift_is_repaired(conninfo, 80, record_property)
