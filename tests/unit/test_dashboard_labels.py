"""The table of the dashboard's texts."""

from tenantry.dashboard.labels import labels
from tenantry.domain.audit import Action
from tenantry.domain.billing.events import (
    ACCESS_ENDED,
    CUSTOMER_MISSING,
    GRANT_ENDED,
    GRANT_SET,
    KNOWN_TYPES,
    SNAPSHOT,
    Anomaly,
    Outcome,
)


def test_every_value_has_a_text() -> None:
    table = labels()
    assert set(table.outcomes) == set(Outcome)
    assert set(table.anomalies) == set(Anomaly)
    assert set(table.audit_actions) == set(Action)
    assert set(table.event_types) == {
        *KNOWN_TYPES,
        SNAPSHOT,
        CUSTOMER_MISSING,
        ACCESS_ENDED,
        GRANT_SET,
        GRANT_ENDED,
    }
