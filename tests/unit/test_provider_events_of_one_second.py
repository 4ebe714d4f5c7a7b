"""Events of one second, as the provider writes them: the state after every order of arrival."""

from collections.abc import Sequence
from itertools import pairwise, permutations
from typing import Any, Final

import pytest

from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.billing.tenant_record import BillingRecord
from tenantry.integrations.stripe.decode import decode_event
from tests.support import events
from tests.support.events import MONTH, NOW, Shape
from tests.support.facts import ANY, EACH
from tests.support.ledger import Ledger

Json = dict[str, Any]

BOTH_POLICIES: Final = pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])
BOTH_SHAPES: Final = pytest.mark.parametrize("shape", list(Shape))
SUBSCRIPTION: Final[Json] = {"customer": "cus_1", "subscription_id": "sub_1"}


def after(policy: BillingPolicy, arrivals: Sequence[Json]) -> tuple[BillingRecord, bool]:
    """The record after these events, and whether the ledger says that their order is ambiguous."""
    ledger = Ledger(policy)
    for event in arrivals:
        ledger.deliver(
            [decode_event(events.body(event), arrived=NOW, make_up_id=lambda: "evt_made_up")]
        )
    return ledger.account.record, bool(ledger.ambiguous)


def update(thing: Json, previous: Json | None, shape: Shape) -> Json:
    return events.event("customer.subscription.updated", thing, previous=previous, shape=shape)


def seats(number: int, shape: Shape) -> Json:
    """A subscription of so many seats."""
    thing = events.subscription(**SUBSCRIPTION, shape=shape)
    thing["items"]["data"][0]["quantity"] = number
    return thing | {"quantity": number}


def seat_changes(numbers: Sequence[int], shape: Shape) -> list[Json]:
    """Changes of the number of seats in one second; the first is from one seat."""
    states = [seats(number, shape) for number in (1, *numbers)]
    return [
        update(now, {"quantity": before["quantity"], "items": before["items"]}, shape)
        for before, now in pairwise(states)
    ]


@BOTH_POLICIES
@BOTH_SHAPES
def test_the_last_of_three_changes_of_the_seats_counts_in_every_order(
    policy: BillingPolicy, shape: Shape
) -> None:
    changes = seat_changes((3, 4, 5), shape)
    reversed_record, is_ambiguous = after(policy, changes[::-1])
    assert (reversed_record.seats, is_ambiguous) == (5, False)
    assert {after(policy, order)[0].seats for order in permutations(changes)} == {5}


@BOTH_POLICIES
@BOTH_SHAPES
def test_seats_there_and_back_end_as_before(policy: BillingPolicy, shape: Shape) -> None:
    known = events.updated(**SUBSCRIPTION, shape=shape, created=NOW - 60)
    there, back = seat_changes((4, 1), shape)
    assert {after(policy, [known, *order])[0].seats for order in permutations((there, back))} == {1}


def with_period(thing: Json, shape: Shape, period: Json) -> Json:
    if shape is Shape.OLD:
        return thing | period
    items = [item | period for item in thing["items"]["data"]]
    return thing | {"items": thing["items"] | {"data": items}}


CHANGES: Final[dict[str, list[Json]]] = {
    "cancel_at": [{"cancel_at": None}, {"cancel_at": NOW + 50}, {"cancel_at": NOW + 90}],
    "trial_end": [{"trial_end": NOW + 10}, {"trial_end": NOW + 20}, {"trial_end": NOW + 30}],
    "pause": [
        {"pause_collection": {"behavior": "keep_as_draft", "resumes_at": None}},
        {"pause_collection": {"behavior": "void", "resumes_at": None}},
        {"pause_collection": None},
    ],
}
REPLACED: Final[dict[str, list[Json]]] = {
    "cancel_at": CHANGES["cancel_at"],
    "trial_end": CHANGES["trial_end"],
    "pause": [{"pause_collection": {"behavior": "keep_as_draft"}}, CHANGES["pause"][1]],
}


@BOTH_POLICIES
@BOTH_SHAPES
@pytest.mark.parametrize("name", CHANGES)
def test_the_last_change_of_a_detail_counts_in_every_order(
    policy: BillingPolicy, shape: Shape, name: str
) -> None:
    thing = events.subscription(**SUBSCRIPTION, shape=shape)
    first, second, third = CHANGES[name]
    known = events.event(
        "customer.subscription.updated", thing | first, created=NOW - 60, shape=shape
    )
    changes = [
        update(thing | second, REPLACED[name][0], shape),
        update(thing | third, REPLACED[name][1], shape),
    ]
    right = after(policy, [known, *changes])
    assert not right[1]
    assert {after(policy, [known, *order]) for order in permutations(changes)} == {right}
    ledger = Ledger(policy)
    for event in [known, *changes[::-1]]:
        ledger.deliver(
            [decode_event(events.body(event), arrived=NOW, make_up_id=lambda: "evt_made_up")]
        )
    [state] = ledger.account.states()
    details = state.details
    assert (details.cancel_at, details.trial_end, details.pause) == (
        third.get("cancel_at", thing["cancel_at"]),
        third.get("trial_end", thing["trial_end"]),
        None,
    )


@BOTH_POLICIES
@BOTH_SHAPES
def test_a_renewal_and_a_change_of_the_price_are_in_their_order(
    policy: BillingPolicy, shape: Shape
) -> None:
    old = {"current_period_end": NOW, "current_period_start": NOW - MONTH}
    new = {"current_period_end": NOW + MONTH, "current_period_start": NOW}
    pro, business = (
        events.subscription(**SUBSCRIPTION, price=f"price_{name}", shape=shape)
        for name in ("pro", "business")
    )
    ended, renewed, upgraded = (
        with_period(pro, shape, old),
        with_period(pro, shape, new),
        with_period(business, shape, new),
    )
    known = events.event("customer.subscription.updated", ended, created=NOW - 60, shape=shape)
    renewal = update(renewed, old if shape is Shape.OLD else {"items": ended["items"]}, shape)
    upgrade = update(upgraded, {"items": renewed["items"], "plan": {"id": "price_pro"}}, shape)
    found = {after(policy, [known, *order]) for order in permutations((renewal, upgrade))}
    assert {(record.plan, record.current_period_end, ambiguous) for record, ambiguous in found} == {
        ("business", NOW + MONTH, False)
    }


def spec_event(event_id: str, event_type: str, status: str) -> Json:
    """An event with the fields of SPEC 2.5 alone, and the ids."""
    thing = {
        "id": "sub_1",
        "customer": "cus_1",
        "metadata": {"orgId": "acme"},
        "items": {"data": [{"price": {"id": "price_pro"}}]},
        "status": status,
        "current_period_end": NOW + MONTH,
        "cancel_at_period_end": False,
    }
    return {
        "id": event_id,
        "type": f"customer.subscription.{event_type}",
        "created": NOW,
        "data": {"object": thing},
    }


@BOTH_POLICIES
def test_without_proof_of_the_end_an_update_after_it_counts(policy: BillingPolicy) -> None:
    end, update_ = (
        spec_event("evt_1", "deleted", "canceled"),
        spec_event("evt_2", "updated", "active"),
    )
    record, is_ambiguous = after(policy, [end, update_])
    assert (record.plan, record.subscription_status, record.current_period_end) == (
        "pro",
        "active",
        NOW + MONTH,
    )
    assert is_ambiguous
    record, _ = after(policy, [update_, end])
    assert (record.plan, record.subscription_status, record.current_period_end) == (
        "free",
        "canceled",
        None,
    )


@BOTH_POLICIES
def test_with_proof_of_the_end_nothing_counts_after_it(policy: BillingPolicy) -> None:
    end, update_ = (
        spec_event("evt_1", "deleted", "canceled"),
        spec_event("evt_2", "updated", "active"),
    )
    end["data"]["object"]["ended_at"] = NOW
    found = [after(policy, order) for order in permutations((end, update_))]
    assert [(record.subscription_status, ambiguous) for record, ambiguous in found] == [
        ("canceled", False)
    ] * 2
