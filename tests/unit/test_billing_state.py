"""What one event does to a tenant's billing state: SPEC 3, row by row, and what CONTRACT 6 adds."""

from typing import Any

import msgspec
import pytest

from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.state import BillingPolicy, BillingState, UnpaidInvoice, apply
from tests.support.facts import ANY, completed, deleted, failed, succeeded, updated

FRESH = BillingState()
BUSINESS = BillingState("business", "active", 9000, True, "active", "sub_1", 10)


def record(state: BillingState) -> tuple[str, str, int | None, bool]:
    return (
        state.plan,
        state.subscription_status,
        state.current_period_end,
        state.cancel_at_period_end,
    )


def after(state: BillingState, *events: BillingEvent, policy: BillingPolicy = ANY) -> BillingState:
    for event in events:
        state = apply(state, event, policy).state
    return state


@pytest.mark.parametrize("start", [FRESH, BUSINESS])
def test_updated_writes_its_four_fields_whatever_was_before(start: BillingState) -> None:
    event = updated(
        status="trialing", price_id="price_pro", current_period_end=7000, cancel_at_period_end=True
    )
    assert record(after(start, event)) == ("pro", "trialing", 7000, True)


@pytest.mark.parametrize(
    "status",
    [
        "incomplete",
        "incomplete_expired",
        "trialing",
        "active",
        "past_due",
        "canceled",
        "unpaid",
        "paused",
        "new",
    ],
)
def test_updated_copies_the_status_verbatim(status: str) -> None:
    assert after(FRESH, updated(status=status)).subscription_status == status


def test_any_price_of_a_plan_means_the_plan() -> None:
    assert after(FRESH, updated(price_id="price_pro_yearly")).plan == "pro"


@pytest.mark.parametrize("price_id", ["price_unknown", "", None])
def test_an_unknown_price_means_free_with_a_reason(price_id: str | None) -> None:
    step = apply(BUSINESS, updated(price_id=price_id), ANY)
    assert step.state.plan == "free"
    assert "which means plan free" in step.reason


def test_updated_without_a_period_clears_it() -> None:
    assert after(BUSINESS, updated(current_period_end=None)).current_period_end is None


@pytest.mark.parametrize("start", [FRESH, BUSINESS])
def test_deleted_writes_its_three_fields_and_no_other(start: BillingState) -> None:
    assert record(after(start, deleted(cancel_at_period_end=not start.cancel_at_period_end))) == (
        "free",
        "canceled",
        None,
        start.cancel_at_period_end,
    )


@pytest.mark.parametrize("start", [FRESH, BUSINESS, after(BUSINESS, deleted())])
def test_a_failed_payment_makes_past_due_and_changes_nothing_else(start: BillingState) -> None:
    past_due = {
        "subscription_status": "past_due",
        "past_due_since": 100,
        "unpaid_invoices": (UnpaidInvoice("in_1", 100),),
    }
    assert after(start, failed()) == msgspec.structs.replace(start, **past_due)


def test_a_payment_clears_past_due() -> None:
    assert after(BUSINESS, failed(), succeeded()) == BUSINESS


@pytest.mark.parametrize("status", ["none", "active", "trialing", "canceled", "unpaid"])
def test_a_payment_changes_nothing_unless_past_due(status: str) -> None:
    state = BillingState(subscription_status=status, provider_status="active")
    assert after(state, succeeded()) == state


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([updated(status="trialing"), failed(), succeeded()], "trialing"),
        ([updated(status="unpaid"), failed(), succeeded()], "unpaid"),
        ([updated(status="past_due"), succeeded()], "active"),
        ([updated(status="past_due"), failed(), succeeded()], "active"),
        ([updated(), deleted(), failed(), succeeded()], "canceled"),
        ([failed(), succeeded()], "active"),
        ([updated(status="past_due"), succeeded(), failed(), succeeded()], "active"),
    ],
)
def test_a_payment_restores_what_the_subscription_last_said(
    events: list[BillingEvent], status: str
) -> None:
    assert after(FRESH, *events).subscription_status == status


def test_a_checkout_says_nothing_about_the_state() -> None:
    assert after(BUSINESS, completed()) == BUSINESS


@pytest.mark.parametrize("event", [updated(), deleted(), failed(), succeeded()])
def test_handling_an_event_twice_is_handling_it_once(event: BillingEvent) -> None:
    once = after(BUSINESS, event)
    assert after(once, event) == once


OLD: dict[str, Any] = {"subscription_id": "sub_old", "subscription_created": 10}
NEW: dict[str, Any] = {
    "subscription_id": "sub_new",
    "subscription_created": 20,
    "price_id": "price_business",
}


def test_every_subscription_counts() -> None:
    assert (
        after(FRESH, updated(**OLD), updated(**NEW), deleted(**OLD)).subscription_status
        == "canceled"
    )
