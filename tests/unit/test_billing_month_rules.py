"""Billing months: from billing day to billing day, and what a change of the anchor moves."""

from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tenantry.common.clock import EPOCH_MAX
from tenantry.domain.billing.batch_application import confirmed
from tenantry.domain.billing.events import BillingEvent, SubscriptionDetails, SubscriptionItem
from tenantry.domain.billing.state import BillingPolicy, BillingState, SubscriptionRule
from tenantry.domain.billing.timeline import begin
from tenantry.domain.billing_months import BillingMonths
from tenantry.domain.entitlements import NO_BILLING, billing_phase_at, period_at
from tenantry.domain.features import Feature, feature_words
from tests.support import facts
from tests.support.cases import cases
from tests.support.facts import BY_BILLING_MONTH
from tests.support.ledger import ledger_of

FEATURE: Final = Feature("exports", "metered", "files", "billing_month")
ANY, EACH = (
    next(policy for policy in BY_BILLING_MONTH if policy.subscriptions is rule)
    for rule in (SubscriptionRule.ANY, SubscriptionRule.EACH)
)
policies = pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])
CALENDAR: Final = ("2026-01-01 00:00:00", "2026-02-01 00:00:00")


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def text_of(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")


def told(when: str, anchor: str | None, **more: Any) -> BillingEvent:
    """A subscription, as an event reports it."""
    details = SubscriptionDetails(anchor=None if anchor is None else at(anchor))
    known = {"customer_id": "cus_1", "current_period_end": at("2030-01-01"), "details": details}
    name = f"{when} {more.get('subscription_id', '')}"
    return facts.updated(at(when), name, **{**known, **more})


def month(policy: BillingPolicy, events: list[BillingEvent], when: str) -> tuple[str, str]:
    """The period in which use counts at a time."""
    phases = ledger_of(policy, events).account.billing_periods
    now = datetime.fromtimestamp(at(when), UTC)
    start, end = period_at(FEATURE, now, billing_phase_at(phases, at(when)))
    return text_of(start), text_of(end)


@cases(
    ("anchor", "days"),
    [
        (
            "2024-01-31 12:34:56",
            ["2024-01-31", "2024-02-29", "2024-03-31", "2024-04-30", "2024-05-31"],
        ),
        ("2024-01-30 00:00:00", ["2024-12-30", "2025-01-30", "2025-02-28", "2025-03-30"]),
        ("2024-02-29 23:59:59", ["2025-01-29", "2025-02-28", "2025-03-29", "2028-02-29"]),
        ("2023-02-28 01:02:03", ["2024-01-28", "2024-02-28", "2024-03-28"]),
        ("2026-12-31 06:00:00", ["2025-11-30", "2025-12-31", "2026-01-31", "2026-02-28"]),
    ],
)
def test_billing_day_that_a_month_lacks_is_its_last_day_and_comes_back(
    anchor: str, days: list[str]
) -> None:
    months = BillingMonths(at(anchor))
    time = anchor.partition(" ")[2]
    for day in days:
        second = at(f"{day} {time}")
        assert months.at(second)[0] == second
        assert months.at(second - 1)[1] == second


def test_month_begins_at_the_time_of_day_of_the_anchor() -> None:
    month = BillingMonths(at("2026-01-15 23:30:01")).at(at("2026-02-15 23:30:00"))
    assert [text_of(second) for second in month] == ["2026-01-15 23:30:01", "2026-02-15 23:30:01"]


@cases("second", [0, EPOCH_MAX - 1, EPOCH_MAX])
def test_no_second_is_too_early_or_too_late(second: int) -> None:
    for anchor in (0, at("2026-01-31"), EPOCH_MAX):
        start, end = BillingMonths(anchor).at(second)
        assert start <= second <= end <= EPOCH_MAX
        assert BillingMonths(anchor).moved_to(second, EPOCH_MAX).anchor == second


@policies
def test_yearly_plan_counts_by_the_month_too(policy: BillingPolicy) -> None:
    events = [told("2025-08-31 10:00", "2025-08-31 10:00", price_id="price_pro_yearly")]
    expected = ("2026-01-31 10:00:00", "2026-02-28 10:00:00")
    assert month(policy, events, "2026-02-28 09:59:59") == expected


@policies
def test_change_of_price_moves_no_month(policy: BillingPolicy) -> None:
    anchor = "2026-01-10 10:00"
    events = [
        told("2026-01-10 10:00", anchor),
        told("2026-01-20 12:00", anchor, price_id="price_business"),
    ]
    expected = ("2026-01-10 10:00:00", "2026-02-10 10:00:00")
    assert month(policy, events, "2026-01-25") == expected


SWITCHED: Final = [
    told("2026-01-10 10:00", "2026-01-10 10:00"),
    told("2026-01-20 12:00", "2026-01-20 12:00", price_id="price_pro_yearly"),
]
"""The provider resets the anchor, because the interval changes."""
RUNNING: Final = ("2026-01-10 10:00:00", "2026-02-10 10:00:00")
REST: Final = ("2026-02-10 10:00:00", "2026-02-20 12:00:00")
NEXT: Final = ("2026-02-20 12:00:00", "2026-03-20 12:00:00")


@policies
def test_month_that_runs_ends_as_it_was_to_end_when_the_interval_changes(
    policy: BillingPolicy,
) -> None:
    looks = ("2026-01-20 12:00", "2026-02-10 10:00", "2026-02-20 11:59", "2026-02-20 12:00")
    assert [month(policy, SWITCHED, when) for when in looks] == [RUNNING, REST, REST, NEXT]


@policies
def test_events_after_a_reset_keep_the_month_that_runs(policy: BillingPolicy) -> None:
    later = ("2026-01-25", "2026-02-09", "2026-02-11")
    events = [*SWITCHED, *(told(when, "2026-01-20 12:00") for when in later)]
    looks = ("2026-02-10 09:00", "2026-02-12", "2026-02-20 12:00")
    for number in range(2, 5):
        found = [month(policy, events[:number], when) for when in looks]
        assert found == [RUNNING, REST, NEXT]


@policies
def test_there_and_back_begins_no_quota_within_the_month(policy: BillingPolicy) -> None:
    events = [*SWITCHED]
    for day in range(21, 31):
        when = f"2026-01-{day} 08:00"
        events.append(told(when, when))
        assert month(policy, events, when) == RUNNING
    assert month(policy, events, "2026-02-15") == ("2026-02-10 10:00:00", "2026-02-28 08:00:00")


@policies
def test_reset_counts_from_its_anchor_though_its_event_is_lost(policy: BillingPolicy) -> None:
    first, _ = SWITCHED
    later = told("2026-02-15", "2026-01-20 12:00", price_id="price_pro_yearly")
    assert month(policy, [first, later], "2026-02-16") == REST
    late = [first, told("2026-05-01", "2026-01-20 12:00")]
    assert month(policy, late, "2026-05-01") == ("2026-04-20 12:00:00", "2026-05-20 12:00:00")


@policies
def test_trial_that_ends_early_or_is_extended_keeps_its_month(policy: BillingPolicy) -> None:
    trial = told("2026-01-10 10:00", "2026-01-24 10:00", status="trialing")
    running = ("2025-12-24 10:00:00", "2026-01-24 10:00:00")
    assert month(policy, [trial], "2026-01-11") == running
    for anchor in ("2026-01-12 09:00", "2026-02-03 10:00"):
        changed = [trial, told("2026-01-12 09:00", anchor)]
        assert month(policy, changed, "2026-01-23") == running
        assert month(policy, changed, "2026-01-24 10:00")[0] == running[1]


def test_another_subscription_begins_its_own_months() -> None:
    """With ``any``; with ``each`` every subscription has its own state anyway."""
    one = told("2026-01-10 10:00", "2026-01-10 10:00", status="incomplete")
    other = told("2026-01-20 12:00", "2026-01-20 12:00", subscription_id="sub_2")
    for policy in (ANY, EACH):
        expected = ("2026-01-20 12:00:00", "2026-02-20 12:00:00")
        assert month(policy, [one, other], "2026-01-25") == expected


@policies
def test_subscription_after_one_that_ended_begins_its_own_months(policy: BillingPolicy) -> None:
    ended = facts.deleted(at("2026-01-24"), subscription_id="sub_1", customer_id="cus_1")
    assert month(policy, [*SWITCHED, ended], "2026-01-25") == CALENDAR
    again = told("2026-01-26 07:00", "2026-01-26 07:00", subscription_id="sub_2")
    expected = ("2026-01-26 07:00:00", "2026-02-26 07:00:00")
    assert month(policy, [*SWITCHED, ended, again], "2026-01-27") == expected


@policies
def test_without_a_subscription_that_gives_access_the_calendar_month_counts(
    policy: BillingPolicy,
) -> None:
    anchor = "2026-01-10 10:00"
    assert month(policy, [facts.granted(5, plan="business")], "2026-01-15") == CALENDAR
    given: list[dict[str, Any]] = [
        *({"status": status} for status in ("incomplete", "unpaid", "paused", "canceled")),
        {"price_id": "price_unknown"},
        {"details": SubscriptionDetails((SubscriptionItem("price_pro", 0),), anchor=at(anchor))},
        {"details": SubscriptionDetails()},
    ]
    for more in given:
        assert month(policy, [told(anchor, anchor, **more)], "2026-01-15") == CALENDAR, more
    granted = facts.granted(5, plan="business")
    assert month(policy, [granted, told(anchor, anchor)], "2026-01-15") == CALENDAR


@policies
def test_months_end_with_the_access(policy: BillingPolicy) -> None:
    details = SubscriptionDetails(anchor=at("2026-01-10"), cancel_at=at("2026-01-20"))
    events = [told("2026-01-10", "2026-01-10", details=details)]
    assert month(policy, events, "2026-01-22") == ("2026-01-10 00:00:00", "2026-02-10 00:00:00")
    assert month(policy, events, "2026-01-23") == CALENDAR  # three days for the event of the end


@cases("policy", [facts.ANY, facts.EACH])
def test_anchor_is_kept_only_where_a_quota_follows_it(policy: BillingPolicy) -> None:
    account = ledger_of(policy, SWITCHED).account
    assert account.billing_periods == ()
    for fold in account.folds.values():
        assert (fold.state.details.anchor, fold.state.running_month) == (None, None)


@policies
def test_answer_that_reports_a_billing_day_to_come_stays(policy: BillingPolicy) -> None:
    """A late event may give a month that ran when the first of the answers came."""
    known = told("2026-01-10", "2026-01-24")
    for anchor, stays in (("2026-01-24", True), ("2026-01-09", False)):
        given = {"details": SubscriptionDetails(anchor=at(anchor)), "customer_id": "cus_1"}
        first, second = (
            facts.observed(at(when), when, current_period_end=at("2030-01-01"), **given)
            for when in ("2026-01-11", "2026-01-12")
        )
        known = told("2026-01-10", anchor)
        timeline = begin(BillingState(), [known, first], policy)
        assert (confirmed(timeline, second) is None) is stays


def test_words_name_the_billing_month() -> None:
    assert feature_words(FEATURE, 1000) == "1,000 files a billing month"


def test_tenant_that_never_had_a_subscription_has_the_calendar_month() -> None:
    start, end = period_at(FEATURE, datetime(2026, 1, 15, tzinfo=UTC), NO_BILLING)
    assert (text_of(start), text_of(end)) == CALENDAR
