"""Laws of billing months: whatever happens to the billing day of a subscription and however it
arrives, a quota counts in the month that an independent oracle gives.

TENANTRY_TEST_HISTORIES=2000 runs so many random histories of each kind.
"""

import os
import random
from datetime import UTC, datetime
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantry.domain.billing.ledger_fold import LedgerFold
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.billing_months import BillingMonths
from tenantry.domain.entitlements import UsagePeriod, billing_phase_at, period_at
from tenantry.domain.features import Feature
from tests.support import figures
from tests.support.billing_month_oracle import (
    BillingDays,
    billing_day_after,
    billing_day_until,
)
from tests.support.facts import BY_BILLING_MONTH, account
from tests.support.ledger import CUSTOMER, Ledger
from tests.support.orders import in_batches

HISTORIES: Final = int(os.environ.get("TENANTRY_TEST_HISTORIES", 10 * settings().max_examples))
ACTS: Final = 12
FEATURE: Final = Feature("exports", "metered", period="billing_month")
moments = st.datetimes(datetime(1972, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def by_rule(policy: BillingPolicy) -> str:
    return policy.subscriptions


def counted_in(ledger: Ledger, second: int) -> UsagePeriod:
    """The period in which use counts at a second."""
    phase = billing_phase_at(ledger.account.billing_periods, second)
    return period_at(FEATURE, datetime.fromtimestamp(second, UTC), phase)


@settings(max_examples=30 * settings().max_examples)
@given(moments, moments)
def test_a_month_is_from_billing_day_to_billing_day(anchor: datetime, now: datetime) -> None:
    first, second = int(anchor.timestamp()), int(now.timestamp())
    expected = UsagePeriod(billing_day_until(first, second), billing_day_after(first, second))
    assert BillingMonths(first).at(second) == expected


@pytest.mark.parametrize("policy", BY_BILLING_MONTH, ids=by_rule)
def test_use_counts_in_the_month_of_the_oracle_while_a_history_goes_on(
    policy: BillingPolicy, record_property: figures.RecordProperty
) -> None:
    compared, wrong = 0, list[str]()
    for seed in range(HISTORIES):
        ledger = Ledger(policy)
        for acts in range(ACTS):
            told = BillingDays(random.Random(seed), acts)  # noqa: S311
            ledger.deliver(told.events)  # those that it has are duplicates
            for second in told.seconds():
                compared += 1
                if counted_in(ledger, second) != told.month(second):
                    wrong.append(f"seed {seed} at {second}: {counted_in(ledger, second)}")
    _check(record_property, "Billing months as they happened", compared, wrong)


@pytest.mark.parametrize("policy", BY_BILLING_MONTH, ids=by_rule)
def test_use_counts_in_the_month_of_the_oracle_in_every_order(
    policy: BillingPolicy, record_property: figures.RecordProperty
) -> None:
    compared, wrong = 0, list[str]()
    for seed in range(HISTORIES):
        rng = random.Random(seed)  # noqa: S311
        told = BillingDays(rng, rng.randrange(ACTS))
        for _ in range(3):
            ledger = Ledger(policy)
            for batch in in_batches(rng, told.delivered()):
                ledger.deliver(batch)
            for second in told.seconds():
                compared += 1
                if counted_in(ledger, second) != told.month(second):
                    wrong.append(f"seed {seed} at {second}: {counted_in(ledger, second)}")
            if refolded(ledger, policy) != ledger.account.billing_periods:
                wrong.append(f"seed {seed}: a replay differs")
    _check(record_property, "Billing months in random orders", compared, wrong)


def refolded(ledger: Ledger, policy: BillingPolicy) -> object:
    """The phases that a replay of the whole ledger gives."""
    whole = LedgerFold(account(customer_id=CUSTOMER), policy)
    for event in sorted(ledger._events.values(), key=lambda each: (each.created, each.arrival)):
        whole.add(event)
    return whole.end()[0].account.billing_periods


def _check(
    record_property: figures.RecordProperty, what: str, compared: int, wrong: list[str]
) -> None:
    figures.record(record_property, what, {"comparisons": compared}, {"tenantry": len(wrong)})
    assert not wrong, wrong[:5]
