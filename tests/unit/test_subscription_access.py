"""What subscriptions give their tenant, in both values of SUBSCRIPTIONS, from the events that
arrived.
"""

from typing import Any, Final

import pytest

from tenantry.domain.access import AccessPhase
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent, SubscriptionDetails, SubscriptionItem
from tenantry.domain.billing.state import BillingPolicy, SubscriptionRule
from tenantry.domain.billing.tenant_record import BillingRecord, access_phase
from tenantry.domain.plans import parse_catalog
from tests.support import facts
from tests.support.catalogs import CATALOG, EXTRA_PROJECTS, PLANS
from tests.support.ledger import ledger_of

DAY: Final = 86_400
GRACE: Final = 65 * DAY
MODES: Final = tuple(SubscriptionRule)


def policy(mode: SubscriptionRule, more: str = "") -> BillingPolicy:
    return BillingPolicy(parse_catalog(f"{PLANS}{EXTRA_PROJECTS}{more}"), mode)


def told(
    second: int,
    status: str,
    *,
    plan: str = "business",
    name: str = "sub_1",
    kind: str = ev.SUBSCRIPTION_UPDATED,
    **more: Any,
) -> BillingEvent:
    """An event that reports a subscription."""
    given = {
        "price_id": f"price_{plan}",
        "current_period_end": None,
        "customer_id": "cus_1",
        **more,
    }
    event = facts.updated(second, f"evt_{second}", status=status, subscription_id=name, **given)
    return BillingEvent(
        **{**{each: getattr(event, each) for each in event.__struct_fields__}, "type": kind}
    )


def failed(second: int, name: str = "sub_1") -> BillingEvent:
    return facts.failed(second, f"evt_{second}", subscription_id=name, invoice_id=f"in_{second}")


def record(
    events: list[BillingEvent], mode: SubscriptionRule, *, more: str = "", base_plan: str = "free"
) -> BillingRecord:
    """The record after these events, delivered one by one and, with the same result, in reverse."""
    [only] = {
        ledger_of(policy(mode, more), order, plan=base_plan).account.record
        for order in (events, events[::-1])
    }
    return only


def access(
    events: list[BillingEvent],
    mode: SubscriptionRule,
    now: int,
    *,
    more: str = "",
    base_plan: str = "free",
) -> tuple[str, str, int | None]:
    phase = phase_at(events, mode, now, more=more, base_plan=base_plan)
    return phase.state, phase.plan, phase.until


def phase_at(
    events: list[BillingEvent],
    mode: SubscriptionRule,
    now: int,
    *,
    more: str = "",
    base_plan: str = "free",
) -> AccessPhase:
    return access_phase(
        record(events, mode, more=more, base_plan=base_plan), now, policy(mode, more).catalog
    )


NOTHING: Final = ("none", "free", None)


# A failed payment


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("status", ["incomplete", "unpaid", "paused"])
def test_a_failed_payment_gives_no_access_where_there_was_none(
    status: str, mode: SubscriptionRule
) -> None:
    events = [told(10, status, kind=ev.SUBSCRIPTION_CREATED), failed(20), failed(20 + DAY)]
    found = record(events, mode)
    assert (found.plan, found.subscription_status) == ("business", "past_due")  # as SPEC 3 says
    assert access(events, mode, 30) == NOTHING
    assert (
        phase_at(events, mode, 30).reason
        == f"A payment failed while the subscription was {status}."
    )


@pytest.mark.parametrize("status", ["incomplete_expired", "canceled"])
def test_a_failed_payment_gives_no_access_after_the_end(status: str) -> None:
    """With `each` an invoice of an ended subscription changes nothing."""
    events = [told(10, status), failed(20)]
    assert record(events, SubscriptionRule.ANY).subscription_status == "past_due"
    assert access(events, SubscriptionRule.ANY, 30) == NOTHING
    assert access(events, SubscriptionRule.EACH, 30) == NOTHING
    ended = [told(10, "active"), facts.deleted(20, subscription_id="sub_1"), failed(30)]
    assert access(ended, SubscriptionRule.ANY, 40) == NOTHING


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_payment_of_an_unknown_subscription_gives_no_access(
    mode: SubscriptionRule,
) -> None:
    found = record([failed(20)], mode)
    assert found.subscription_status == "past_due"
    assert access([failed(20)], mode, 30) == NOTHING


@pytest.mark.parametrize("mode", MODES)
def test_grace_begins_with_a_failed_payment_where_there_was_full_access(
    mode: SubscriptionRule,
) -> None:
    for status in ("active", "trialing"):
        events = [told(10, status), failed(20)]
        assert access(events, mode, 30) == ("grace", "business", 20 + GRACE)
        assert access(events, mode, 20 + GRACE) == NOTHING


@pytest.mark.parametrize("mode", MODES)
def test_grace_that_the_provider_reports_counts_whatever_came_before(
    mode: SubscriptionRule,
) -> None:
    events = [told(10, "incomplete"), failed(20), told(30, "past_due")]
    assert access(events, mode, 40) == ("grace", "business", 20 + GRACE)


@pytest.mark.parametrize("mode", MODES)
def test_failures_after_unpaid_do_not_revive_the_grace_period(mode: SubscriptionRule) -> None:
    events = [told(10, "active"), failed(20), told(30, "unpaid"), failed(40)]
    assert access(events, mode, 50) == NOTHING


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_payment_gives_no_longer_access_than_there_was(mode: SubscriptionRule) -> None:
    void = SubscriptionDetails(pause="void")
    paused = [told(10, "active", current_period_end=5_000, details=void), failed(20)]
    assert access(paused, mode, 30) == ("grace", "business", 5_000)
    leaving = [told(10, "active", details=SubscriptionDetails(cancel_at=5_000)), failed(20)]
    assert access(leaving, mode, 30) == ("grace", "business", 5_000 + 3 * DAY)
    trial = [told(10, "trialing", details=SubscriptionDetails(trial_end=5_000)), failed(20)]
    assert access(trial, mode, 30) == ("grace", "business", 5_000 + 3 * DAY)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("active", ("full", "business", None)),
        ("unpaid", ("grace", "business", None)),
        ("incomplete", NOTHING),
    ],
)
def test_overrides_of_the_catalog_do_not_raise_access_after_a_failed_payment(
    status: str, expected: tuple[str, str, int | None], mode: SubscriptionRule
) -> None:
    more = '[access]\npast_due = "full"\nunpaid = "grace"\n'
    state, plan, _ = access([told(10, status), failed(20)], mode, 30, more=more)
    assert (state, plan) == expected[:2]


# The order of choice


ADDON_ALONE: Final = {"plan": "projects", "name": "sub_addon"}


def test_a_plan_in_grace_comes_before_a_subscription_without_a_plan() -> None:
    events = [told(10, "active"), told(15, "active", **ADDON_ALONE), failed(20)]
    found = record(events, SubscriptionRule.EACH)
    assert (found.plan, found.subscription_status) == ("business", "past_due")
    phase = phase_at(events, SubscriptionRule.EACH, 30)
    assert (phase.state, phase.plan, phase.until) == ("grace", "business", 20 + GRACE)
    assert phase.addons == (("extra_projects", 1),)
    after = phase_at(events, SubscriptionRule.EACH, 20 + GRACE)
    assert (after.state, after.plan, after.addons) == ("full", "free", (("extra_projects", 1),))


def test_full_access_without_a_plan_comes_before_a_plan_without_access() -> None:
    events = [told(10, "unpaid"), told(15, "active", **ADDON_ALONE)]
    found = record(events, SubscriptionRule.EACH)
    assert (found.plan, found.subscription_status) == ("free", "active")


# The operator's plan


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "events",
    [
        [told(10, "incomplete", plan="business")],
        [told(10, "incomplete_expired", plan="business")],
        [told(10, "incomplete", plan="business"), failed(20)],
        [told(10, "unpaid", plan="business")],
        [told(10, "canceled", plan="business")],
        [told(10, "active", plan="business"), facts.deleted(20)],
        [told(10, "active", **ADDON_ALONE)],
        [told(10, "active", plan="unknown")],
        [
            told(
                10,
                "active",
                details=SubscriptionDetails(items=(SubscriptionItem("price_business", 0),)),
            )
        ],
        [failed(20)],
    ],
    ids=[
        "abandoned",
        "expired",
        "never paid",
        "unpaid",
        "canceled",
        "ended",
        "add-on",
        "unknown",
        "empty",
        "invoice",
    ],
)
def test_the_operators_plan_stays_without_a_subscription_that_gives_a_plan(
    events: list[BillingEvent], mode: SubscriptionRule
) -> None:
    phase = phase_at(events, mode, 100, base_plan="pro")
    assert (phase.state, phase.plan, phase.until) == ("full", "pro", None)
    if mode is SubscriptionRule.EACH:
        assert record(events, mode, base_plan="pro").plan == "pro"
    else:  # SPEC 3
        spec = record(events, mode), record(events, mode, base_plan="pro")
        assert spec[0].subscription_status == spec[1].subscription_status
        assert spec[1].plan == ("pro" if events == [failed(20)] else spec[0].plan)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("base_plan", "status", "plan", "expected"),
    [
        ("pro", "active", "business", ("full", "business")),
        ("pro", "past_due", "business", ("full", "pro")),
        ("pro", "active", "pro", ("full", "pro")),
        ("business", "active", "pro", ("full", "business")),
    ],
)
def test_the_operators_plan_takes_part_in_the_choice(
    base_plan: str, status: str, plan: str, expected: tuple[str, str], mode: SubscriptionRule
) -> None:
    phase = phase_at([told(10, status, plan=plan)], mode, 100, base_plan=base_plan)
    assert (phase.state, phase.plan) == expected
    by_operator = phase.reason == "By contract: a contract."
    assert by_operator == (status == "past_due" or base_plan == "business")


# Items of quantity 0


def items(*given: tuple[str, int]) -> SubscriptionDetails:
    return SubscriptionDetails(
        items=tuple(SubscriptionItem(f"price_{plan}", number) for plan, number in given)
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "given", [(("business", 0),), (("business", 0), ("pro", 0)), (("business", 0), ("projects", 0))]
)
def test_items_of_quantity_0_give_nothing(
    given: tuple[tuple[str, int], ...], mode: SubscriptionRule
) -> None:
    events = [told(10, "active", details=items(*given))]
    assert access(events, mode, 30) == NOTHING
    assert phase_at(events, mode, 30).reason == "The subscription is active. Its quantity is 0."
    assert record(events, mode).plan == ("free" if mode is SubscriptionRule.EACH else "business")


@pytest.mark.parametrize("mode", MODES)
def test_an_item_of_quantity_0_is_not_chosen(mode: SubscriptionRule) -> None:
    events = [told(10, "active", details=items(("business", 0), ("pro", 2)))]
    found = record(events, mode)
    # SPEC 3: the first item
    assert found.plan == ("pro" if mode is SubscriptionRule.EACH else "business")
    assert access(events, mode, 30) == ("full", "pro", None)
    addon = [told(10, "active", details=items(("business", 0), ("projects", 2)))]
    phase = phase_at(addon, mode, 30)
    assert (phase.state, phase.plan, phase.addons) == ("full", "free", (("extra_projects", 2),))


def test_items_of_quantity_0_are_seen_without_addons_in_the_catalog() -> None:
    ledger = ledger_of(facts.ANY, [told(10, "active", details=items(("unknown", 0)))])
    assert access_phase(ledger.account.record, 30, CATALOG).state == "none"


# The announced end

ENDS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("active", {"details": SubscriptionDetails(cancel_at=5_000)}),
    ("active", {"cancel_at_period_end": True, "current_period_end": 5_000}),
    ("trialing", {"details": SubscriptionDetails(trial_end=5_000)}),
    (
        "trialing",
        {
            "details": SubscriptionDetails(trial_end=5_000, cancel_at=9_000),
            "current_period_end": 7_000,
        },
    ),
    (
        "active",
        {
            "cancel_at_period_end": True,
            "current_period_end": 5_000,
            "details": SubscriptionDetails(cancel_at=9_000),
        },
    ),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("status", "given"), ENDS)
def test_access_ends_three_days_after_the_earliest_announced_end(
    status: str, given: dict[str, Any], mode: SubscriptionRule
) -> None:
    events, until = [told(10, status, **given)], 5_000 + 3 * DAY
    assert access(events, mode, until - 1) == ("full", "business", until)
    assert access(events, mode, until) == NOTHING
    end = "Its trial has ended." if status == "trialing" else "Its announced end has passed."
    assert phase_at(events, mode, until).reason == f"The subscription is {status}. {end}"


@pytest.mark.parametrize("mode", MODES)
def test_end_that_is_not_announced_any_more_does_not_end_access(mode: SubscriptionRule) -> None:
    first = told(10, "trialing", details=SubscriptionDetails(trial_end=5_000, cancel_at=6_000))
    renewed = told(
        20, "active", details=SubscriptionDetails(trial_end=5_000), current_period_end=6_000
    )
    assert access([first, renewed], mode, 10 * GRACE) == ("full", "business", None)


@pytest.mark.parametrize("mode", MODES)
def test_the_announced_end_in_the_record_stays_what_the_provider_said(
    mode: SubscriptionRule,
) -> None:
    found = record([told(10, "active", cancel_at_period_end=True, current_period_end=5_000)], mode)
    assert (found.ends_at, found.access[0].until) == (5_000, 5_000 + 3 * DAY)


@pytest.mark.parametrize("mode", MODES)
def test_overrides_of_the_catalog_do_not_outlive_the_announced_end(mode: SubscriptionRule) -> None:
    events = [told(10, "paused", details=SubscriptionDetails(cancel_at=5_000))]
    until = 5_000 + 3 * DAY
    assert access(events, mode, 30, more='[access]\npaused = "full"\n') == (
        "full",
        "business",
        until,
    )


@pytest.mark.parametrize("mode", MODES)
def test_the_operators_plan_counts_after_the_announced_end(mode: SubscriptionRule) -> None:
    events, until = (
        [told(10, "active", details=SubscriptionDetails(cancel_at=5_000))],
        5_000 + 3 * DAY,
    )
    assert access(events, mode, 30, base_plan="pro") == ("full", "business", until)
    assert access(events, mode, until, base_plan="pro") == ("full", "pro", None)


# Add-ons


@pytest.mark.parametrize("mode", MODES)
def test_addons_of_a_subscription_count_with_access(mode: SubscriptionRule) -> None:
    events = [told(10, "active", details=items(("business", 1), ("projects", 3)))]
    assert phase_at(events, mode, 30).addons == (("extra_projects", 3),)
    assert phase_at([*events, failed(20)], mode, 30).addons == (("extra_projects", 3),)
    assert (
        phase_at(
            [*events, told(20, "unpaid", details=items(("business", 1), ("projects", 3)))], mode, 30
        ).addons
        == ()
    )
