"""The tenant's record that its events lead to, in the billing oracle."""

from typing import Final, NamedTuple

import msgspec

from tenantry.domain.billing.events import SUBSCRIPTION_DELETED, BillingEvent
from tenantry.domain.billing.state import SubscriptionRule
from tests.support.billing_oracle_events import told_by
from tests.support.billing_oracle_placement import Placement
from tests.support.catalogs import CATALOG_WITH_ADDON
from tests.support.provider_world import History, HistoryTenant
from tests.support.subscription_oracle import Expected, ExpectedAccess, ExpectedRecord, Rules

_EACH: Final = Rules(CATALOG_WITH_ADDON)
_ANY: Final = _EACH._replace(subscriptions=SubscriptionRule.ANY)


class ExpectedTenant(NamedTuple):
    """What a tenant must have now. `access_ended` is when access ended without another event, if it
    did.
    """

    record: ExpectedRecord
    access: ExpectedAccess
    access_ended: int | None


def expected_of(history: History, placement: Placement, tenant: HistoryTenant) -> Expected:
    """Return the outcome of a tenant's events."""
    events = [
        told_by(history.events[position])
        for position in sorted(placement.tenant_of)
        if placement.tenant_of[position] == tenant.id
    ]
    if history.mode == "any":
        return Expected(events, _ANY, tenant.plan)
    stayed = Expected(events, _EACH, tenant.plan)
    moved = placement.moved_away.get(tenant.id, {})
    # nothing has ended where no event of it is the tenant's, or payments alone
    ends = [_end(id_, moved[id_], events) for id_ in moved if id_ in _known(stayed)]
    return Expected([*events, *ends], _EACH, tenant.plan) if ends else stayed


def _known(expected: Expected) -> set[str]:
    return {each.id for each in expected.subscriptions}


def _end(subscription: str, when: int, events: list[BillingEvent]) -> BillingEvent:
    """The end of a subscription that has moved away, as an event."""
    told = [event.details for event in events if event.subscription_id == subscription]
    return BillingEvent(
        id=f"{subscription} moved",
        type=SUBSCRIPTION_DELETED,
        created=when,
        subscription_id=subscription,
        status="canceled",
        details=msgspec.structs.replace(told[-1], items=(), ended_at=when),
    )


def tenant_of(expected: Expected, now: int) -> ExpectedTenant:
    """Return what a tenant must have now."""
    access = expected.access_at(now)
    ends = [
        until or 0
        for state, until in (each.access_by_status for each in expected.subscriptions)
        if state in {"full", "grace"}
    ]
    ended = max(ends, default=None) if access.state == "none" else None
    return ExpectedTenant(expected.record, access, ended)
