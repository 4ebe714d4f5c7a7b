"""The table of the dashboard's texts."""

import re
from typing import Final

import pytest

from tenantry.dashboard.labels import labels, shown_value, with_organizations
from tenantry.domain.audit import Action, TenantUpdate
from tenantry.domain.billing.events import (
    ACCESS_ENDED,
    CUSTOMER_MISSING,
    GRANT_ENDED,
    GRANT_SET,
    HANDLED_TYPES,
    SNAPSHOT,
    Anomaly,
)
from tests.support.catalogs import CATALOG


def test_every_value_has_a_text() -> None:
    table = labels()
    assert set(table.anomalies) == set(Anomaly)
    assert set(table.audit_actions) == set(Action)
    assert set(table.tenant_updates) == set(TenantUpdate)
    assert set(table.event_types) == {
        *HANDLED_TYPES,
        SNAPSHOT,
        CUSTOMER_MISSING,
        ACCESS_ENDED,
        GRANT_SET,
        GRANT_ENDED,
    }


def test_filters_offer_each_action_by_another_name() -> None:
    names = [label.short for label in labels().audit_actions.values()]
    assert len(set(names)) == len(names)


_PHASES: Final = (
    '[{"state":"grace","plan":"pro","reason":"Due.","until":1764590400},'
    '{"state":"none","plan":"free","reason":"Unpaid."}]'
)
_FIRST: Final = "grace period, with the limits of the plan pro, until 1 Dec 2025, 12:00 UTC"


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (_PHASES, f"{_FIRST}, then none: the limits of the plan free apply"),
        (_PHASES[:-10] + "\u2026", f"{_FIRST}, then \u2026"),
        ("[{\u2026", "[{\u2026"),
        ('{"a": 1}', '{"a": 1}'),
    ],
    ids=["whole", "cut", "cut in the first phase", "malformed"],
)
def test_access_is_shown_in_words(stored: str, shown: str) -> None:
    text = shown_value("access", stored, CATALOG)
    assert isinstance(text, str)
    assert re.sub("<[^>]*>", "", text) == shown


def test_texts_of_commands_say_organization_except_in_names() -> None:
    assert with_organizations(
        "A tenant pays; its tenant's id. Tenants: a tenant of two tenants"
    ) == (
        "An organization pays; its organization's id. Organizations: an organization of two organizations"
    )
    names = "`tenantry admin create-tenant`, tenants.drift, /tenants, tenant_id, tenant-a"
    assert with_organizations(names) == names
