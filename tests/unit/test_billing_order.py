"""The order in which events count."""

import random
from itertools import pairwise, permutations
from typing import Any

import msgspec
import pytest

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent, SubscriptionDetails, SubscriptionItem
from tenantry.domain.billing.order import in_order
from tenantry.domain.billing.state import BillingPolicy, BillingState, KnownSubscription, apply
from tests.support.facts import (
    ANY,
    BY_BILLING_MONTH,
    EACH,
    UNPROVEN,
    deleted,
    failed,
    observed,
    succeeded,
    updated,
)

FRESH = BillingState()
KNOWN = BillingState("pro", "active", 5000, False, "active", "sub_1", 10, seats=1)


def arriving(events: tuple[BillingEvent, ...]) -> list[BillingEvent]:
    """The events, numbered in this order of arrival."""
    return [
        msgspec.structs.replace(event, arrival=number)
        for number, event in enumerate(events, start=1)
    ]


def orders(
    *events: BillingEvent, before: BillingState = FRESH, policy: BillingPolicy = ANY
) -> set[tuple[str, ...]]:
    """The orders that all orders of arrival lead to."""
    sorted_events = (
        in_order(arriving(arrived), before, policy) for arrived in permutations(events)
    )
    return {tuple(event.id for event in ordered) for ordered in sorted_events}


def ids(*events: BillingEvent, before: BillingState = FRESH) -> list[str]:
    """The order that the events come to when they arrive as given."""
    return [event.id for event in in_order(arriving(events), before, ANY)]


def began(event_id: str, **facts: Any) -> BillingEvent:
    """The event `customer.subscription.created`."""
    return msgspec.structs.replace(
        updated(event_id=event_id, **facts), type=ev.SUBSCRIPTION_CREATED
    )


def test_arrival_decides_where_nothing_is_proven() -> None:
    assert ids(updated(event_id="b"), failed(event_id="c"), deleted(event_id="a")) == [
        "b",
        "c",
        "a",
    ]


def test_replaced_values_come_before_their_event() -> None:
    first = updated(event_id="1", status="active", previous={"status": "incomplete"})
    second = updated(event_id="2", status="past_due", previous={"status": "active"})
    assert orders(first, second) == {("1", "2")}


@pytest.mark.parametrize(
    ("fact", "values"),
    [
        ("price_id", ("price_free", "price_pro", "price_business")),
        ("current_period_end", (1, 2, 3)),
        ("status", ("trialing", "active", "past_due")),
    ],
)
def test_each_tracked_fact_proves_an_order(fact: str, values: tuple[str | int, ...]) -> None:
    first, second = (
        msgspec.structs.replace(updated(event_id=name, previous={fact: old}), **{fact: new})
        for name, old, new in (("1", values[0], values[1]), ("2", values[1], values[2]))
    )
    assert orders(first, second) == {("1", "2")}


Items = tuple[SubscriptionItem, ...]
PRO_AND_MORE: Items = (SubscriptionItem("price_pro"), SubscriptionItem("price_members", 2))


def change(event_id: str, details: dict[str, Any], previous: dict[str, Any]) -> BillingEvent:
    """An update with these details, of the first item's price."""
    items: Items = details.get("items", ())
    price = items[0].price_id if items else "price_pro"
    return updated(
        event_id=event_id, details=SubscriptionDetails(**details), price_id=price, previous=previous
    )


SEATS = [{"items": (SubscriptionItem("price_pro", number),)} for number in (2, 3, 4, 5)]
DETAILS = {
    "quantity": SEATS,
    "an item is added": [
        {"items": (SubscriptionItem("price_pro", 2),)},
        {"items": PRO_AND_MORE},
        {"items": (*PRO_AND_MORE, SubscriptionItem("price_projects"))},
    ],
    "price of a second item": [
        {"items": (SubscriptionItem("price_pro"), SubscriptionItem(price))}
        for price in ("price_a", "price_b", "price_c")
    ],
    "period of an item": [
        {"items": (SubscriptionItem("price_pro", 2, end),)} for end in (100, 200, 300)
    ],
    "cancel_at": [{"cancel_at": None}, {"cancel_at": 700}, {"cancel_at": 800}],
    "pause": [{"pause": "void"}, {"pause": None}, {"pause": "keep_as_draft"}],
    "trial_end": [{"trial_end": 300}, {"trial_end": 400}, {"trial_end": None}],
    "period_start": [{"period_start": 1}, {"period_start": 2}, {"period_start": 3}],
    "anchor": [{"anchor": 1}, {"anchor": 2}, {"anchor": 3}],
}


@pytest.mark.parametrize("values", DETAILS.values(), ids=DETAILS)
def test_each_detail_proves_an_order(values: list[dict[str, Any]]) -> None:
    chain = [
        change(str(number), now, before)
        for number, (before, now) in enumerate(pairwise(values), start=1)
    ]
    assert orders(*chain) == {tuple(event.id for event in chain)}


NOT_OF_A_TENANT = {"price of a second item", "period of an item", "period_start", "anchor"}
"""What the one state of a tenant does not depend on."""


@pytest.mark.parametrize(
    ("values", "policy"),
    [
        *(
            pytest.param(DETAILS[name], EACH, id=f"each-{name}")
            for name in sorted(DETAILS.keys() - {"anchor"})
        ),
        *(
            pytest.param(DETAILS[name], ANY, id=f"any-{name}")
            for name in sorted(DETAILS.keys() - NOT_OF_A_TENANT)
        ),
        *(
            pytest.param(DETAILS["anchor"], policy, id=f"{policy.subscriptions}-anchor")
            for policy in BY_BILLING_MONTH
        ),
    ],
)
def test_there_and_back_of_a_detail_is_ordered_by_the_state_before(
    values: list[dict[str, Any]], policy: BillingPolicy
) -> None:
    first, second, *_ = values
    before = apply(FRESH, change("0", first, {}), policy).state
    there, back = change("there", second, first), change("back", first, second)
    assert orders(there, back, before=before, policy=policy) == {("there", "back")}


def test_the_state_of_a_subscription_that_expired_proves_an_order_too() -> None:
    over: dict[str, Any] = {"status": "incomplete_expired"}
    before = apply(FRESH, updated(event_id="0", **over), EACH).state
    there = updated(
        event_id="there",
        cancel_at_period_end=True,
        previous={"cancel_at_period_end": False},
        **over,
    )
    back = updated(event_id="back", previous={"cancel_at_period_end": True}, **over)
    assert orders(there, back, before=before, policy=EACH) == {("there", "back")}


def test_items_that_one_item_replaced_prove_an_order_by_the_plan_of_each() -> None:
    both, one = (
        (SubscriptionItem("price_members"), SubscriptionItem("price_business")),
        SubscriptionItem("price_pro", 2),
    )
    before = apply(FRESH, change("0", {"items": both}, {}), EACH).state
    there = change("there", {"items": (one,)}, {"price_id": "price_members", "items": both})
    back = change("back", {"items": both}, {"price_id": "price_pro", "items": (one,)})
    assert orders(there, back, before=before, policy=EACH) == {("there", "back")}


def test_an_event_that_came_from_another_tenant_did_not_replace_a_state_of_this_one() -> None:
    here = updated(event_id="here", status="past_due", previous={"status": "active"})
    back = updated(event_id="back", status="active", previous={"org_id": "zeta"})
    assert orders(here, back, before=KNOWN) == {("here", "back"), ("back", "here")}
    without_previous = msgspec.structs.replace(back, previous={})
    assert orders(here, without_previous, before=KNOWN) == {("back", "here")}


def test_a_chain_that_comes_back_to_a_value_is_one_order() -> None:
    chain = [
        updated(event_id="1", status="active", previous={"status": "trialing"}),
        updated(event_id="2", status="past_due", previous={"status": "active"}),
        updated(event_id="3", status="active", previous={"status": "past_due"}),
    ]
    assert orders(*chain) == {("1", "2", "3")}


TOGGLE = (
    updated(event_id="on", cancel_at_period_end=True, previous={"cancel_at_period_end": False}),
    updated(event_id="off", cancel_at_period_end=False, previous={"cancel_at_period_end": True}),
)


def test_there_and_back_is_ordered_by_the_state_before() -> None:
    before = BillingState("pro", "active", 5000, False, "active", "sub_1", 10, seats=1)
    assert orders(*TOGGLE, before=before) == {("on", "off")}
    assert orders(*TOGGLE, before=msgspec.structs.replace(before, cancel_at_period_end=True)) == {
        ("off", "on")
    }


def test_there_and_back_between_plans_is_ordered_by_the_plan_before() -> None:
    up = updated(event_id="up", price_id="price_business", previous={"price_id": "price_pro"})
    down = updated(event_id="down", price_id="price_pro", previous={"price_id": "price_business"})
    before = BillingState("pro", "active", 5000, False, "active", "sub_1", 10, seats=1)
    assert orders(up, down, before=before) == {("up", "down")}


def test_a_circle_of_proofs_leaves_it_to_arrival() -> None:
    on, off = TOGGLE
    assert ids(on, off) == ["on", "off"]
    assert ids(off, on) == ["off", "on"]


def test_a_state_of_another_subscription_proves_nothing() -> None:
    on, off = TOGGLE
    before = BillingState("pro", "active", 5000, False, "active", "sub_2", 10)
    assert ids(off, on, before=before) == ["off", "on"]


def test_events_of_different_subscriptions_prove_nothing_about_each_other() -> None:
    first = updated(
        event_id="1", subscription_id="sub_1", status="active", previous={"status": "trialing"}
    )
    second = updated(
        event_id="2", subscription_id="sub_2", status="past_due", previous={"status": "active"}
    )
    assert ids(second, first) == ["2", "1"]


def test_unchanged_values_prove_the_order_too() -> None:
    chain = [
        updated(
            event_id="1",
            status="past_due",
            cancel_at_period_end=False,
            previous={"status": "active"},
        ),
        updated(
            event_id="2",
            status="past_due",
            cancel_at_period_end=True,
            previous={"cancel_at_period_end": False},
        ),
        updated(
            event_id="3",
            status="active",
            cancel_at_period_end=True,
            previous={"status": "past_due"},
        ),
    ]
    before = BillingState("pro", "active", 5000, False, "active", "sub_1", 10, seats=1)
    assert orders(*chain, before=before) == {("1", "2", "3")}


def test_an_end_comes_after_the_update_that_did_not_replace_it() -> None:
    last = updated(event_id="1", status="active", previous={"status": "trialing"})
    assert orders(last, deleted(event_id="2")) == {("1", "2")}


def test_a_missing_link_keeps_the_proven_order_of_two_events() -> None:
    first = updated(
        event_id="1", status="active", price_id="price_pro", previous={"status": "incomplete"}
    )
    second = updated(
        event_id="2", status="past_due", price_id="price_pro", previous={"status": "active"}
    )
    stray = updated(
        event_id="3",
        status="unpaid",
        price_id="price_free",
        previous={"price_id": "price_business"},
    )
    assert all(order.index("1") < order.index("2") for order in orders(first, second, stray))


def test_invoices_keep_their_place_by_arrival() -> None:
    first = updated(event_id="1", status="active", previous={"status": "incomplete"})
    second = updated(event_id="2", status="past_due", previous={"status": "active"})
    assert ids(failed(event_id="f"), second, succeeded(event_id="s"), first) == ["f", "s", "1", "2"]


def test_an_invoice_proves_nothing() -> None:
    event = updated(event_id="1", previous={"status": None, "current_period_end": None})
    assert ids(event, failed(event_id="2", subscription_id="sub_1")) == ["1", "2"]


def test_many_events_in_one_second_are_ordered_at_once() -> None:
    steps = [
        updated(
            event_id=f"{number:02}",
            current_period_end=number + 1,
            previous={"current_period_end": number},
        )
        for number in range(1, 40)
    ]
    assert ids(*reversed(steps)) == [event.id for event in steps]


def test_very_many_events_in_one_second_are_in_the_order_of_arrival() -> None:
    steps = [
        updated(
            event_id=f"{number:02}",
            current_period_end=number + 1,
            previous={"current_period_end": number},
        )
        for number in range(1, 66)
    ]
    assert ids(*reversed(steps)) == [event.id for event in reversed(steps)]


def test_seven_events_of_one_second_keep_their_order() -> None:
    note: dict[str, Any] = {"previous": {}}
    steps = [
        updated(event_id="1", price_id="price_business", **note),
        updated(event_id="2", price_id="price_pro", previous={"price_id": "price_business"}),
        updated(event_id="3", price_id="price_pro", **note),
        updated(event_id="4", price_id="price_pro", **note),
        updated(event_id="5", price_id="price_business", previous={"price_id": "price_pro"}),
        updated(event_id="6", price_id="price_business", **note),
        deleted(event_id="7", price_id="price_business"),
    ]
    before = BillingState("business", "active", 5000, False, "active", "sub_1", 10, seats=1)
    assert ids(*steps, before=before) == ["1", "2", "3", "4", "5", "6", "7"]
    assert {order[-1] for order in sampled_orders(*steps, before=before)} == {"7"}


def sampled_orders(*events: BillingEvent, before: BillingState) -> set[tuple[str, ...]]:
    rng = random.Random(8)  # noqa: S311  # the same sample in every run
    return {
        tuple(
            event.id
            for event in in_order(arriving(tuple(rng.sample(events, len(events)))), before, ANY)
        )
        for _ in range(200)
    }


def test_the_order_that_sets_each_replaced_value_wins_over_one_that_needs_a_state_never_seen() -> (
    None
):
    first = updated(event_id="1", status="active")
    second = updated(event_id="2", status="past_due", previous={"status": "active"})
    assert orders(first, second) == {("1", "2")}


def test_each_subscription_is_compared_with_its_own_last_event() -> None:
    on, off = TOGGLE
    other = KnownSubscription("sub_1", "active", "pro", 5000, cancel_at_period_end=True)
    before = BillingState("pro", "active", 5000, False, "active", "sub_2", 20, (other,))
    assert orders(on, off, before=before) == {("off", "on")}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (failed(event_id="1", subscription_id="sub_1"), deleted(event_id="2")),
        (succeeded(event_id="1", subscription_id="sub_1"), deleted(event_id="2")),
        (failed(event_id="1"), succeeded(event_id="2")),
        (
            failed(event_id="1", attempt_count=2, status="open"),
            succeeded(event_id="2", attempt_count=1, status="paid"),
        ),
        (failed(event_id="1", attempt_count=1), failed(event_id="2", attempt_count=2)),
        (
            succeeded(event_id="1", attempt_count=1, status="open"),
            failed(event_id="2", attempt_count=2),
        ),
        (updated(event_id="1", status="unpaid"), deleted(event_id="2")),
        (
            updated(event_id="1", status="unpaid", previous={"status": "past_due"}),
            deleted(event_id="2"),
        ),
        (began("1"), updated(event_id="2")),
        (began("1"), observed(event_id="2")),
        (began("1"), deleted(event_id="2")),
        (began("1"), failed(event_id="2", subscription_id="sub_1")),
    ],
)
def test_order_proven_by_two_payloads(first: BillingEvent, second: BillingEvent) -> None:
    assert orders(first, second) == {("1", "2")}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (failed(event_id="1", subscription_id="sub_2"), deleted(event_id="2")),
        (failed(event_id="1"), deleted(event_id="2")),
        (failed(event_id="1", invoice_id="in_1"), succeeded(event_id="2", invoice_id="in_2")),
        (failed(event_id="1", invoice_id=None), succeeded(event_id="2", invoice_id=None)),
        (updated(event_id="1", subscription_id="sub_2"), deleted(event_id="2")),
        (failed(event_id="1", subscription_id="sub_1"), deleted(event_id="2", details=UNPROVEN)),
        (updated(event_id="1"), deleted(event_id="2", details=UNPROVEN)),
        (began("1", subscription_id="sub_2"), updated(event_id="2")),
        (began("1"), failed(event_id="2")),
    ],
)
def test_events_that_do_not_refer_to_each_other_keep_their_order_of_arrival(
    first: BillingEvent, second: BillingEvent
) -> None:
    assert orders(first, second) == {("1", "2"), ("2", "1")}
