"""Placing events among those of before: late ones, ties, and how far back one must look."""

import msgspec
import pytest

from tenantry.domain.billing.events import BillingEvent, Outcome
from tenantry.domain.billing.ledger import BillingAccount, ReplayNeed
from tenantry.domain.billing.state import WHOLE_TENANT, BillingState
from tenantry.domain.billing.timeline import Placement, Timeline, begin, place
from tests.support.facts import ANY, account, deleted, failed, succeeded, updated

FRESH = BillingState()


def place_last(*events: BillingEvent, checkpoint: BillingState = FRESH) -> Placement:
    """The placement of the last of some events, which arrive as given."""
    timeline = Timeline(checkpoint)
    result = None
    for number, event in enumerate(events, start=1):
        result = place(timeline, msgspec.structs.replace(event, arrival=number), ANY)
        timeline = result.timeline
    assert result is not None
    return result


def status(placement: Placement) -> str:
    return placement.after.subscription_status


def test_the_first_event_is_applied() -> None:
    placement = place_last(updated(100))
    assert (placement.outcome, placement.before, status(placement)) == (
        Outcome.APPLIED,
        FRESH,
        "active",
    )


def test_a_newer_event_is_applied() -> None:
    assert status(place_last(updated(100), deleted(200))) == "canceled"


def test_an_event_that_says_what_is_known_changes_nothing() -> None:
    placement = place_last(updated(100, "1"), updated(200, "2"))
    assert (placement.outcome, placement.before) == (Outcome.NO_CHANGE, placement.after)


def test_a_late_update_does_not_revive_an_ended_subscription() -> None:
    placement = place_last(deleted(200), updated(100))
    assert (placement.outcome, status(placement)) == (Outcome.LATE, "canceled")


def test_a_late_event_can_change_fields_that_newer_events_did_not_set() -> None:
    placement = place_last(updated(100), succeeded(300), failed(200))
    assert (placement.outcome, status(placement)) == (Outcome.LATE, "active")
    placement = place_last(
        failed(300), updated(100, cancel_at_period_end=True, price_id="price_business")
    )
    assert placement.outcome is Outcome.APPLIED
    assert (placement.after.plan, placement.after.subscription_status) == ("business", "past_due")


def test_a_late_success_does_not_clear_a_newer_failure() -> None:
    assert (
        status(place_last(updated(100), failed(300, invoice_id="in_2"), succeeded(200)))
        == "past_due"
    )


def test_a_late_event_changes_the_status_that_a_later_payment_restores() -> None:
    placement = place_last(failed(200), succeeded(300), updated(100, status="trialing"))
    assert status(placement) == "trialing"


def test_an_event_of_the_same_second_is_placed_by_its_proof() -> None:
    second = updated(100, "2", status="past_due", previous={"status": "active"})
    first = updated(100, "1", status="active", previous={"status": "incomplete"})
    placement = place_last(second, first)
    assert (placement.outcome, status(placement)) == (Outcome.LATE, "past_due")


def test_an_event_of_the_same_second_without_proof_counts_as_newer() -> None:
    assert status(place_last(updated(100), deleted(100))) == "canceled"


def test_a_failure_is_mailed() -> None:
    assert place_last(failed(100)).notify


def test_a_late_failure_is_mailed() -> None:
    assert place_last(updated(300), failed(100)).notify


def test_a_failure_whose_invoice_has_been_paid_is_not_mailed() -> None:
    assert not place_last(succeeded(200), failed(100)).notify


def test_a_failure_is_mailed_although_another_invoice_has_been_paid() -> None:
    assert place_last(succeeded(200, invoice_id="in_2"), failed(100)).notify


def test_a_failure_without_an_invoice_id_is_mailed() -> None:
    assert place_last(succeeded(200, invoice_id=None), failed(100, invoice_id=None)).notify


def test_a_failure_after_an_older_success_of_its_invoice_is_mailed() -> None:
    assert place_last(succeeded(100), failed(200)).notify


@pytest.mark.parametrize("event", [updated(), deleted(), succeeded()])
def test_no_other_event_is_mailed(event: BillingEvent) -> None:
    assert not place_last(event).notify


def test_the_tip_is_the_state_before_the_newest_second() -> None:
    timeline = place_last(
        updated(100), failed(200), updated(200, "evt_2", status="past_due")
    ).timeline
    assert (timeline.folded().tip_created, timeline.folded().tip_state) == (
        200,
        place_last(updated(100)).after,
    )


HISTORY = [
    updated(100, "a", arrival=1),
    failed(150, "b", arrival=2),
    updated(200, "c", arrival=3, status="past_due", previous={"status": "active"}),
    succeeded(200, "d", arrival=4),
]


def after_history() -> tuple[BillingAccount, Timeline]:
    whole = begin(FRESH, HISTORY, ANY)
    return account().with_folds({WHOLE_TENANT: whole.folded()}, ANY), whole


@pytest.mark.parametrize(
    ("event", "need", "known"),
    [
        (deleted(300, "e", arrival=5), None, []),
        (deleted(200, "e", arrival=5), ReplayNeed(200, late=False), HISTORY[2:]),
        (deleted(120, "e", arrival=5), ReplayNeed(120, late=True), HISTORY),
    ],
)
def test_a_shorter_history_leads_to_the_same_state(
    event: BillingEvent, need: ReplayNeed | None, known: list[BillingEvent]
) -> None:
    stored, whole = after_history()
    short = place(begin(stored.checkpoint(WHOLE_TENANT, need, ANY), known, ANY), event, ANY)
    assert short.timeline.folded() == place(whole, event, ANY).timeline.folded()


def test_a_failure_after_a_success_of_its_invoice_in_the_same_second_is_not_mailed() -> None:
    placement = place_last(updated(100), succeeded(200), failed(200))
    assert (placement.notify, placement.is_ambiguous, status(placement)) == (False, False, "active")


ON = updated(200, "on", cancel_at_period_end=True, previous={"cancel_at_period_end": False})
OFF = updated(200, "off", cancel_at_period_end=False, previous={"cancel_at_period_end": True})


def test_a_later_second_is_judged_anew_after_a_late_event() -> None:
    known = [updated(100), OFF, ON]
    assert [event.id for event in place_last(*known).timeline.second(200)] == ["on", "off"]
    assert not place_last(*known).is_ambiguous
    placement = place_last(*known, updated(150, "late", status="past_due"))
    assert placement.is_ambiguous
    assert "Nothing proves the order of off, on, of a later second, after it" in placement.reason


def test_a_late_event_of_another_subscription_leaves_an_order_proven() -> None:
    placement = place_last(
        updated(100),
        OFF,
        ON,
        updated(150, "late", subscription_id="sub_2", subscription_created=20),
    )
    assert [event.id for event in placement.timeline.second(200)] == ["on", "off"]
    assert not placement.is_ambiguous


def test_a_late_event_is_judged_by_its_own_subscriptions_last_event() -> None:
    other = updated(150, "other", subscription_id="sub_2", subscription_created=20)
    assert [
        event.id for event in place_last(updated(100), other, OFF, ON).timeline.second(200)
    ] == [
        "on",
        "off",
    ]
