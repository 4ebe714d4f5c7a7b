"""The billing fields of a tenant's record, from the states of its folds."""

from typing import Any, Final

import pytest

from tenantry.domain.access import AccessPhase, phase_at, phase_of_status
from tenantry.domain.billing.events import NO_DETAILS, SubscriptionDetails, SubscriptionItem
from tenantry.domain.billing.state import BillingPolicy, BillingState, SubscriptionRule, apply
from tenantry.domain.billing.subscription_access import LATE_END
from tenantry.domain.billing.subscription_rank import status_rank
from tenantry.domain.billing.tenant_record import BillingRecord, moved_away, record_of
from tenantry.domain.plans import AccessState, parse_catalog
from tests.support.cases import cases
from tests.support.catalogs import CATALOG, CATALOG_WITH_ADDON, PLANS
from tests.support.facts import updated

EACH: Final = BillingPolicy(CATALOG, subscriptions=SubscriptionRule.EACH, past_due_grace=100)
ADDING: Final = BillingPolicy(CATALOG_WITH_ADDON, past_due_grace=100)
END: Final = 5_000
VOID: Final = SubscriptionDetails(pause="void")


def overriding(**access: str) -> BillingPolicy:
    table = "".join(f'{status} = "{state}"\n' for status, state in access.items())
    return BillingPolicy(catalog=parse_catalog(f"{PLANS}[access]\n{table}"), past_due_grace=100)


def state(status: str = "active", plan: str = "pro", **fields: Any) -> BillingState:
    """Of a subscription with a plan item, in a period until `END`."""
    reported = {
        "provider_status": status,
        "subscription_id": "sub_1",
        "current_period_end": END,
        "seats": 1,
    }
    known = {**reported, **fields}
    if known.get("details", NO_DETAILS).pause == "void":
        known["paid_until"] = known["current_period_end"]
    return BillingState(plan, status, **known)


def access_at(now: int, *states: BillingState, policy: BillingPolicy = EACH) -> AccessPhase:
    record = record_of(states, policy)
    if not record.access:
        return phase_of_status(record.plan, record.subscription_status, policy.catalog)
    return phase_at(record.access, now)


def brief(phase: AccessPhase) -> tuple[AccessState, str, int | None]:
    return phase.state, phase.plan, phase.until


# Access of one subscription

STATUSES: Final = {
    "trialing": ("full", "pro"),
    "active": ("full", "pro"),
    "past_due": ("grace", "pro"),
    "unpaid": ("none", "free"),
    "incomplete": ("none", "free"),
    "paused": ("none", "free"),
    "another": ("none", "free"),
    "incomplete_expired": ("none", "free"),
    "canceled": ("none", "free"),
}
PAUSES: Final = (None, "void", "keep_as_draft", "mark_uncollectible")
CANCELLATIONS: Final[dict[str, tuple[dict[str, Any], dict[str, Any], int | None, list[int]]]] = {
    "renews": ({}, {}, None, []),
    "with the period": ({"cancel_at_period_end": True}, {}, END, [END]),
    "with an unknown period": (
        {"cancel_at_period_end": True, "current_period_end": None},
        {},
        None,
        [],
    ),
    "at a time": ({}, {"cancel_at": 9_000}, 9_000, [9_000]),
    "at a time, and with the period": (
        {"cancel_at_period_end": True},
        {"cancel_at": 4_000},
        4_000,
        [4_000, END],
    ),
    "ended": ({}, {"cancel_at": 9_000, "ended_at": 3_000}, 9_000, [9_000]),
}
"""Facts of a state, the announced end of the record, and every announced end."""


def test_record_of_every_status_pause_and_cancellation() -> None:
    for status, (access, plan) in STATUSES.items():
        for pause in PAUSES:
            for name, (fields, details, ends_at, announced) in CANCELLATIONS.items():
                case = f"{status}, pause {pause}, {name}"
                given = state(status, details=SubscriptionDetails(pause=pause, **details), **fields)
                record = record_of([given], EACH)
                over = status in ("canceled", "incomplete_expired")
                assert record.ends_at == (3_000 if name == "ended" and over else ends_at), case
                assert record.cancel_at == details.get("cancel_at"), case
                assert (record.plan, record.subscription_status) == ("pro", status), case
                assert record.seats == (None if over else 1), case
                assert record.current_period_end == given.current_period_end, case
                assert record.cancel_at_period_end == given.cancel_at_period_end, case
                found = access_at(0, given)
                ends = [given.current_period_end] if (status, pause) == ("active", "void") else []
                ends += [end + LATE_END for end in announced]
                until = (
                    min((end for end in ends if end is not None), default=None)
                    if access != "none"
                    else None
                )
                assert brief(found) == (access, plan, until), case
                assert bool(record.access) == (until is not None), case


@pytest.mark.parametrize("status", ["past_due", "unpaid"])
def test_grace_ends_to_the_second(status: str) -> None:
    given, policy = state(status, past_due_since=1_000), overriding(unpaid="grace")
    assert brief(access_at(1_099, given, policy=policy)) == ("grace", "pro", 1_100)
    assert brief(access_at(1_100, given, policy=policy)) == ("none", "free", None)


def test_reasons_say_what_ended() -> None:
    late = state("past_due", past_due_since=1_000)
    assert access_at(0, late).reason == "The subscription is past due."
    assert (
        access_at(1_100, late).reason == "The subscription is past due. The grace period has ended."
    )
    paused = state("active", details=VOID)
    assert (
        access_at(END - 1, paused).reason
        == "Payments are paused; access ends with the paid period."
    )
    assert access_at(END, paused).reason == "Payments are paused, and the paid period has ended."


@cases(
    ("access", "given", "expected"),
    [
        ({"past_due": "none"}, state("past_due", past_due_since=0), ("none", "free", None)),
        ({"past_due": "full"}, state("past_due", past_due_since=0), ("full", "pro", None)),
        ({"unpaid": "grace"}, state("unpaid"), ("grace", "pro", None)),
        ({"paused": "full"}, state("paused"), ("full", "pro", None)),
        ({"active": "grace"}, state("active", details=VOID), ("grace", "pro", None)),
        ({"active": "full"}, state("active", details=VOID), ("full", "pro", None)),
        ({"trialing": "none"}, state("trialing"), ("none", "free", None)),
    ],
)
def test_catalog_overrides_a_status(
    access: dict[str, str], given: BillingState, expected: tuple[AccessState, str, int | None]
) -> None:
    record = record_of([given], overriding(**access))
    assert record.access == ()  # plan and status say it by themselves
    assert brief(access_at(10_000, given, policy=overriding(**access))) == expected


def test_tenant_without_a_subscription() -> None:
    assert record_of([BillingState()], EACH) == BillingRecord()
    assert record_of([BillingState("business")], EACH) == BillingRecord("business")


def test_paused_subscription_without_a_period_has_access() -> None:
    assert brief(access_at(END, state("active", details=VOID, current_period_end=None))) == (
        "full",
        "pro",
        None,
    )


def test_subscription_that_moved_away_has_ended() -> None:
    moved = moved_away(state("past_due", past_due_since=1_000), 2_000)
    assert record_of([moved], EACH) == BillingRecord("free", "canceled", ends_at=2_000)


# Several subscriptions

RANKED: Final = (
    state("canceled", "free", subscription_id="sub_over", seats=None, subscription_created=90),
    state("unpaid", "business", subscription_id="sub_none", subscription_created=80),
    state("active", "free", subscription_id="sub_no_item", seats=None, subscription_created=60),
    state("past_due", "business", subscription_id="sub_grace", subscription_created=70),
    state("active", "free", subscription_id="sub_free", subscription_created=50),
    state("active", "pro", subscription_id="sub_pro", subscription_created=None),
    state("trialing", "pro", subscription_id="sub_old", subscription_created=20),
    state("active", "pro", subscription_id="sub_new", subscription_created=30),
    state("active", "pro", subscription_id="sub_new_b", subscription_created=30),
    state("active", "business", subscription_id="sub_best", subscription_created=10),
)
"""Later ones come before the earlier ones."""


def test_order_of_subscriptions() -> None:
    ranks = [status_rank(each, EACH) for each in RANKED]
    assert ranks == sorted(set(ranks))
    for number in range(1, len(RANKED) + 1):
        present, best = RANKED[:number], RANKED[number - 1]
        for given in (present, present[::-1]):
            record = record_of(given, EACH)
            assert (record.plan, record.subscription_status) == (
                best.plan,
                best.subscription_status,
            )


def test_next_subscription_counts_when_the_grace_of_the_first_has_ended() -> None:
    late = state("past_due", "business", past_due_since=1_000, subscription_id="sub_1")
    later = state("past_due", "pro", past_due_since=1_500, subscription_id="sub_2")
    paused = state("active", "pro", details=VOID, current_period_end=500, subscription_id="sub_3")
    record = record_of([later, paused, late], EACH)
    assert (record.plan, record.subscription_status, record.current_period_end) == (
        "pro",
        "active",
        500,
    )
    assert [(phase.state, phase.plan, phase.until) for phase in record.access] == [
        ("full", "pro", 500),
        ("grace", "business", 1_100),
        ("grace", "pro", 1_600),
        ("none", "free", None),
    ]


def test_equal_phases_are_one() -> None:
    states = [
        state("past_due", past_due_since=since, subscription_id=f"sub_{since}")
        for since in (10, 20)
    ]
    assert [brief(phase) for phase in record_of(states, EACH).access] == [
        ("grace", "pro", 120),
        ("none", "free", None),
    ]


def test_full_access_beside_a_late_subscription_needs_no_phases() -> None:
    assert (
        record_of(
            [state("past_due", "business", past_due_since=0), state("active", "pro")], EACH
        ).access
        == ()
    )


# Add-ons


def addons(number: int, status: str = "active", **fields: Any) -> BillingState:
    items = (
        SubscriptionItem("price_pro"),
        SubscriptionItem("price_projects", number),
        SubscriptionItem("price_unknown", 9),
    )
    return state(status, details=SubscriptionDetails(items=items), **fields)


def test_addons_of_all_subscriptions_with_access_count() -> None:
    late = addons(4, "past_due", past_due_since=1_000, subscription_id="sub_2")
    record = record_of([addons(2), late, addons(8, "unpaid", subscription_id="sub_3")], ADDING)
    assert [(phase.until, phase.addons) for phase in record.access] == [
        (1_100, (("extra_projects", 6),)),
        (None, (("extra_projects", 2),)),
    ]


def test_there_are_no_addons_without_access() -> None:
    phases = record_of([addons(4, "past_due", past_due_since=1_000)], ADDING).access
    assert [(phase.state, phase.addons) for phase in phases] == [
        ("grace", (("extra_projects", 4),)),
        ("none", ()),
    ]
    assert record_of([addons(4, "unpaid")], ADDING).access == ()


def test_items_that_are_no_addons_need_no_phases() -> None:
    assert record_of([addons(0)], ADDING).access == ()
    assert record_of([addons(2)], EACH).access == ()


@pytest.mark.parametrize("status", ["canceled", "incomplete_expired"])
def test_of_expired_subscriptions_that_of_the_higher_plan_counts(status: str) -> None:
    facts: dict[str, Any] = {"status": status, "subscription_created": 100}
    older = updated(100, subscription_id="sub_1", price_id="price_business", **facts)
    newer = updated(200, subscription_id="sub_2", price_id="price_pro", **facts)
    record = record_of([apply(BillingState(), event, EACH).state for event in (older, newer)], EACH)
    assert (record.plan, record.seats) == ("business", None)
