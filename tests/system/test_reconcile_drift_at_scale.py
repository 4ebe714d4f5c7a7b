"""Reconciliation of hundreds of tenants that lost one event in twenty."""

from tests.support import figures
from tests.support.drift import drift_is_repaired


async def test_the_drifted_of_hundreds_of_tenants_are_named_repaired_and_found_no_more(
    conninfo: str, record_property: figures.RecordProperty
) -> None:
    await drift_is_repaired(conninfo, 400, record_property)
