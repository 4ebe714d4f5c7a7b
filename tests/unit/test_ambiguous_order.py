"""Events of one second: whether their order is decided, and what is said where it is not."""

from typing import Any

import msgspec
import pytest

from tenantry.domain.billing.events import Anomaly, BillingEvent, Outcome
from tenantry.domain.billing.ledger import SnapshotRequest
from tenantry.domain.billing.order import in_order, is_decided
from tenantry.domain.billing.state import BillingState
from tests.support.facts import ANY, completed, deleted, failed, observed, succeeded, updated
from tests.support.ledger import Ledger

ACTIVE = BillingState(
    plan="pro",
    subscription_status="active",
    current_period_end=5000,
    provider_status="active",
    subscription_id="sub_1",
    subscription_created=10,
    seats=1,
)
PAST_DUE: dict[str, Any] = {"status": "past_due", "previous": {"status": "active"}}


@pytest.mark.parametrize(
    "events",
    [
        [updated(status="past_due")],
        [failed(), updated(**PAST_DUE)],
        [succeeded(), updated(previous={"current_period_end": 4000})],
        [
            updated(event_id="evt_1", **PAST_DUE),
            updated(event_id="evt_2", previous={"status": "past_due"}),
        ],
        [deleted(), observed(status="canceled", previous=None)],
        [updated(event_id=f"evt_{number}") for number in range(100)],
        [updated(event_id=f"evt_{number}", previous={}) for number in range(6)],
        [succeeded(event_id=f"evt_{number}", invoice_id=f"in_{number}") for number in range(100)],
    ],
)
def test_an_order_is_decided_if_every_order_leads_to_one_state(events: list[BillingEvent]) -> None:
    assert is_decided(events, ACTIVE, ANY)
    assert is_decided(events[::-1], ACTIVE, ANY)


@pytest.mark.parametrize(
    "events",
    [
        [failed(), deleted()],
        [failed(invoice_id="in_1"), succeeded(invoice_id="in_2")],
        [updated(event_id="evt_1", status="trialing"), updated(event_id="evt_2")],
        [deleted(), updated(subscription_id="sub_2")],
        [updated(event_id=f"evt_{number}", current_period_end=number) for number in range(7)],
    ],
)
def test_an_order_is_ambiguous_if_orders_lead_to_different_states(
    events: list[BillingEvent],
) -> None:
    assert not is_decided(events, ACTIVE, ANY)
    assert not is_decided(events[::-1], ACTIVE, ANY)


FIRST = updated(event_id="evt_1", status="past_due", previous={"status": "active"})
SECOND = updated(event_id="evt_2", status="active", previous={"status": "past_due"})


def ordered(*arrivals: BillingEvent) -> list[str]:
    numbered = [
        msgspec.structs.replace(event, arrival=number) for number, event in enumerate(arrivals)
    ]
    return [event.id for event in in_order(numbered, ACTIVE, ANY)]


def test_a_snapshot_follows_all_events_that_had_arrived_before_the_request() -> None:
    assert ordered(FIRST, SECOND, observed(status="trialing")) == ["evt_1", "evt_2", "snapshot_1"]
    assert ordered(SECOND, FIRST, observed(status="trialing")) == ["evt_1", "evt_2", "snapshot_1"]
    assert ordered(failed(), deleted(), observed()) == ["evt_f", "evt_d", "snapshot_1"]


def test_an_event_that_had_arrived_precedes_the_snapshot_even_if_it_replaced_the_same_values() -> (
    None
):
    assert ordered(FIRST, observed(status="active")) == ["evt_1", "snapshot_1"]


def test_an_event_that_arrives_after_the_request_is_placed_by_the_values_it_replaced() -> None:
    assert ordered(observed(status="past_due"), SECOND, FIRST) == ["evt_1", "snapshot_1", "evt_2"]
    assert ordered(observed(status="active"), FIRST) == ["snapshot_1", "evt_1"]
    assert ordered(observed(status="past_due"), FIRST) == ["evt_1", "snapshot_1"]


def test_a_snapshot_decides_an_ambiguous_order() -> None:
    tie = [
        msgspec.structs.replace(event, arrival=number)
        for number, event in enumerate((failed(), deleted()))
    ]
    assert not is_decided(tie, ACTIVE, ANY)
    assert is_decided([*tie, observed(arrival=2)], ACTIVE, ANY)


def test_a_snapshot_decides_an_ambiguous_order_of_another_subscription() -> None:
    prices = ("price_pro", "price_business")
    open_ones = [
        updated(event_id=price, price_id=price, subscription_id="sub_2", arrival=1)
        for price in prices
    ]
    assert is_decided([*open_ones, observed(arrival=2)], ACTIVE, ANY)


def test_an_ambiguous_order_is_explained_counted_and_requests_a_snapshot() -> None:
    ledger = Ledger(ANY)
    ledger.deliver([updated(50)])
    ledger.deliver([failed()])
    application = ledger.applied([deleted()])
    [entry] = application.entries
    assert entry.outcome is Outcome.APPLIED
    assert entry.reason == (
        "The subscription has ended. Nothing proves the order of this and evt_f, of the same second: "
        "the order of arrival counts."
    )
    assert entry.anomalies == (Anomaly.AMBIGUOUS_ORDER,)
    assert application.snapshot_requests == [SnapshotRequest("acme", later=True)]


def test_of_many_ambiguous_events_three_are_named() -> None:
    ledger = Ledger(ANY)
    ledger.deliver([updated(event_id=f"evt_{number}", status=f"s{number}") for number in range(6)])
    [entry] = ledger.applied([updated(event_id="evt_6")]).entries
    assert "order of this and evt_0, evt_1, evt_2 and 3 more, of the same second" in entry.reason


def test_a_checkout_requests_a_snapshot_at_once() -> None:
    assert Ledger(ANY).applied([completed()]).snapshot_requests == [
        SnapshotRequest("acme", later=False)
    ]


def test_ordinary_events_request_no_snapshot() -> None:
    assert Ledger(ANY).applied([updated(), failed(200), succeeded(300)]).snapshot_requests == []
