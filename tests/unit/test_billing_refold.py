"""Folding a whole history as it is read."""

import pytest

from tenantry.domain.billing.refold import Refold, Refolded, corrected, refold
from tenantry.domain.billing.state import BillingState
from tests.support.facts import ANY, account, deleted, failed, updated

FRESH = BillingState()
FIRST = updated(100, "first", arrival=2, previous={"status": "incomplete"})
SECOND = updated(100, "second", arrival=1, status="past_due", previous={"status": "active"})
THIRD = failed(200, "third", arrival=3)


def test_no_events_leave_the_beginning() -> None:
    beginning = BillingState(plan="business")
    assert refold(beginning, (), ANY) == Refolded(beginning)


def test_the_checkpoint_is_before_the_newest_second() -> None:
    refolded = refold(FRESH, [FIRST, deleted(200, "ended", arrival=3), THIRD], ANY)
    assert refolded.tip_created == 200
    assert refolded.tip_state == refold(FRESH, [FIRST], ANY).state
    assert (refolded.state.plan, refolded.state.subscription_status, refolded.events) == ("free", "past_due", 3)


def test_the_events_of_a_second_come_out_in_their_order_once_it_is_over() -> None:
    fold = Refold(FRESH, ANY)
    assert fold.take(SECOND) == []
    assert fold.take(FIRST) == []
    assert fold.take(THIRD) == [FIRST, SECOND]
    assert fold.end()[1] == [THIRD]


def test_an_event_out_of_order_is_refused() -> None:
    fold = Refold(FRESH, ANY)
    fold.take(THIRD)
    with pytest.raises(ValueError, match="first is older than"):
        fold.take(FIRST)


def test_an_account_is_corrected_in_what_events_decide_alone() -> None:
    damaged = account(customer_id="cus_1", state=BillingState(plan="pro"), tip_created=7, tip_state=FRESH)
    right = corrected(damaged, refold(FRESH, [FIRST], ANY))
    assert right == account(
        customer_id="cus_1", state=refold(FRESH, [FIRST], ANY).state, tip_created=100, tip_state=FRESH
    )
