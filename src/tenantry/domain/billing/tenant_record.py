"""The billing fields of the tenant record, from the states of the tenant's folds."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from tenantry.domain.access import (
    NO_SUBSCRIPTION,
    AccessEnding,
    AccessPhase,
    phase_at,
    phase_of_status,
)
from tenantry.domain.billing.events import Fact
from tenantry.domain.billing.state import CANCELED, BillingPolicy, BillingState
from tenantry.domain.billing.subscription_access import end_of
from tenantry.domain.billing.subscription_rank import chosen_state, is_for_good
from tenantry.domain.billing.tenant_access import access_phases
from tenantry.domain.plans import FREE, OVER, Catalog

SPEC_FIELDS: Final = ("plan", "subscription_status", "current_period_end", "cancel_at_period_end")
"""The fields of the tenant record that SPEC 2.2 names."""


class BillingRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of the tenant record that events write. Times are seconds since the Unix epoch.

    ``access`` is empty where plan and status say everything.
    """

    plan: str = FREE
    subscription_status: str = NO_SUBSCRIPTION
    current_period_end: int | None = None
    cancel_at_period_end: bool = False
    cancel_at: int | None = None
    ends_at: int | None = None
    seats: int | None = None
    access: tuple[AccessPhase, ...] = ()


def differences(
    before: BillingRecord | BillingState, after: BillingRecord | BillingState
) -> dict[str, tuple[Fact, Fact]]:
    """Return the fields of SPEC 2.2 in which two states differ, with the value in each."""
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in SPEC_FIELDS)
    return {name: (one, other) for name, one, other in pairs if one != other}


def record_of(
    states: Sequence[BillingState],
    policy: BillingPolicy,
    grants: Sequence[BillingState] = (),
) -> BillingRecord:
    """Return the billing fields of a tenant with these states of folds, and with these grants.

    With `SubscriptionRule.ANY` there is one state at most, and its fields are the record's (SPEC
    3). Of several subscriptions the first in `status_rank` counts; grants for good are among them.
    """
    chosen = chosen_state(states, grants, policy)
    status = chosen.subscription_status
    access = access_phases(
        states,
        grants,
        chosen,
        policy,
    )
    return BillingRecord(
        plan=_plan_of(chosen, grants, policy),
        subscription_status=status,
        current_period_end=chosen.current_period_end,
        cancel_at_period_end=chosen.cancel_at_period_end,
        cancel_at=chosen.details.cancel_at,
        ends_at=end_of(chosen, policy),
        seats=None if status in OVER else chosen.seats,
        access=access,
    )


def _plan_of(chosen: BillingState, grants: Sequence[BillingState], policy: BillingPolicy) -> str:
    """Return the plan of the record: an invoice alone changes none, so that of a grant for good
    stays.
    """
    if not grants or chosen.provider_status is not None:
        return chosen.plan
    given = [state.plan for state in (chosen, *filter(is_for_good, grants))]
    return max(given, key=policy.catalog.rank)


def access_phase(
    record: BillingRecord,
    now: float,
    catalog: Catalog,
) -> AccessPhase:
    """Return the access of a tenant at ``now``, in seconds since the Unix epoch."""
    if not record.access:
        return phase_of_status(record.plan, record.subscription_status, catalog)
    return phase_at(record.access, now)


def access_end(record: BillingRecord) -> AccessEnding | None:
    """Return the end of a tenant's access without another event; None if it does not end.

    Phases without access may follow, each with what grants give then.
    """
    for before, after in pairwise(record.access):
        if before.until is not None and before.state != "none" and after.state == "none":
            return AccessEnding(before.until, before, after)
    return None


def moved_away(state: BillingState, moved_at: int) -> BillingState:
    """Return the state of a subscription whose metadata names another tenant since ``moved_at``: it
    has ended.
    """
    details = msgspec.structs.replace(state.details, ended_at=moved_at)
    return msgspec.structs.replace(
        state,
        plan=FREE,
        subscription_status=CANCELED,
        current_period_end=None,
        seats=None,
        past_due_since=None,
        unpaid_invoices=(),
        details=details,
    )
