"""Events as the domain sees them, for tests of its rules."""

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent, SubscriptionDetails
from tenantry.domain.billing.ledger import BillingAccount, TenantProfile
from tenantry.domain.billing.state import (
    WHOLE_TENANT,
    BillingPolicy,
    BillingState,
    SubscriptionRule,
)
from tenantry.domain.billing.tenant_record import BillingRecord
from tenantry.domain.billing.timeline import Folded
from tenantry.domain.grants import GrantTerms
from tenantry.domain.plans import parse_catalog
from tests.support.catalogs import CATALOG, COUNTED_BY_BILLING_MONTH, PLANS

PROFILE: Final = TenantProfile(
    "Acme", "owner@acme.example", datetime(2026, 10, 1, tzinfo=UTC), None, suspension=None
)
ANY: Final = BillingPolicy(catalog=CATALOG)
EACH: Final = BillingPolicy(catalog=CATALOG, subscriptions=SubscriptionRule.EACH)
BY_BILLING_MONTH: Final = [
    BillingPolicy(parse_catalog(COUNTED_BY_BILLING_MONTH + PLANS), rule)
    for rule in SubscriptionRule
]
"""With a feature that is counted by the billing month."""

UNPROVEN: Final = SubscriptionDetails()
"""Details of a `deleted` that does not prove the end of its subscription: it has SPEC 2.5's fields
alone.
"""


def updated(created: int = 100, event_id: str = "evt_u", **facts: Any) -> BillingEvent:
    return _of_subscription(
        ev.SUBSCRIPTION_UPDATED, created, event_id, {"status": "active", **facts}
    )


def deleted(created: int = 100, event_id: str = "evt_d", **facts: Any) -> BillingEvent:
    """With the proof of the end that the provider's objects have."""
    proof = {"details": SubscriptionDetails(ended_at=created)}
    return _of_subscription(
        ev.SUBSCRIPTION_DELETED, created, event_id, {"status": "canceled", **proof, **facts}
    )


def observed(created: int = 100, event_id: str = "snapshot_1", **facts: Any) -> BillingEvent:
    """What the provider answered."""
    return _of_subscription(ev.SNAPSHOT, created, event_id, {"status": "active", **facts})


def _of_subscription(
    event_type: str, created: int, event_id: str, facts: dict[str, Any]
) -> BillingEvent:
    known = {
        "org_id": "acme",
        "subscription_id": "sub_1",
        "subscription_created": 10,
        "price_id": "price_pro",
        "current_period_end": 5000,
        "cancel_at_period_end": False,
    }
    return BillingEvent(id=event_id, type=event_type, created=created, **{**known, **facts})


def failed(created: int = 100, event_id: str = "evt_f", **facts: Any) -> BillingEvent:
    known = {
        "customer_id": "cus_1",
        "invoice_id": "in_1",
        "invoice_url": "https://pay.example/in_1",
    }
    return BillingEvent(id=event_id, type=ev.PAYMENT_FAILED, created=created, **{**known, **facts})


def succeeded(created: int = 100, event_id: str = "evt_s", **facts: Any) -> BillingEvent:
    known = {"customer_id": "cus_1", "invoice_id": "in_1"}
    return BillingEvent(
        id=event_id, type=ev.PAYMENT_SUCCEEDED, created=created, **{**known, **facts}
    )


def completed(created: int = 100, event_id: str = "evt_c", **facts: Any) -> BillingEvent:
    known = {"org_id": "acme", "customer_id": "cus_1", "checkout_mode": "subscription"}
    return BillingEvent(
        id=event_id, type=ev.CHECKOUT_COMPLETED, created=created, **{**known, **facts}
    )


def granted(
    created: int = 100, event_id: str = "evt_g", name: str = "contract", **terms: Any
) -> BillingEvent:
    """The operator sets a grant."""
    given = GrantTerms(name, **{"reason": "a contract", **terms})
    return BillingEvent(id=event_id, type=ev.GRANT_SET, created=created, org_id="acme", grant=given)


def grant_ended(
    created: int = 100, event_id: str = "evt_ge", name: str = "contract"
) -> BillingEvent:
    """The operator ends a grant."""
    given = GrantTerms(name)
    return BillingEvent(
        id=event_id, type=ev.GRANT_ENDED, created=created, org_id="acme", grant=given
    )


def account(
    tenant_id: str = "acme",
    state: BillingState | None = None,
    tip_created: int | None = None,
    tip_state: BillingState | None = None,
    policy: BillingPolicy = ANY,
    **fields: Any,
) -> BillingAccount:
    """An account; ``state`` and the checkpoint are those of its one fold."""
    known = {
        "owner_id": f"usr_{tenant_id}",
        "deleted": False,
        "profile": PROFILE,
        "customer_id": None,
        "record": BillingRecord(),
        "folds": {},
    }
    found = BillingAccount(tenant_id=tenant_id, **{**known, **fields})
    if state is None and tip_created is None:
        return found
    whole = found.with_folds(
        {WHOLE_TENANT: Folded(state or BillingState(), tip_created, tip_state)}, policy
    )
    return msgspec.structs.replace(whole, is_whole=found.is_whole)
