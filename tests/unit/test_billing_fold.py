"""Folding a whole history as it is read."""

import pytest

from tenantry.domain.billing.ledger_fold import LedgerFold
from tenantry.domain.billing.state import BillingState
from tenantry.domain.billing.timeline import Fold, Folded
from tests.support.facts import ANY, account, deleted, failed, updated
from tests.support.ledger import refolded

FRESH = BillingState()
FIRST = updated(100, "first", arrival=2, previous={"status": "incomplete"})
SECOND = updated(100, "second", arrival=1, status="past_due", previous={"status": "active"})
THIRD = failed(200, "third", arrival=3)


def test_no_events_leave_the_beginning() -> None:
    beginning = BillingState(plan="business")
    assert refolded(beginning, (), ANY) == Folded(beginning)


def test_the_checkpoint_is_before_the_newest_second() -> None:
    result = refolded(FRESH, [FIRST, deleted(200, "ended", arrival=3), THIRD], ANY)
    assert result.tip_created == 200
    assert result.tip_state == refolded(FRESH, [FIRST], ANY).state
    assert (result.state.plan, result.state.subscription_status) == ("free", "past_due")


def test_the_events_of_a_second_come_out_in_their_order_once_it_is_over() -> None:
    fold = Fold(FRESH, ANY)
    assert fold.add(SECOND) == []
    assert fold.add(FIRST) == []
    assert [event for event, _ in fold.add(THIRD)] == [FIRST, SECOND]
    assert [event for event, _ in fold.end()[1]] == [THIRD]


def test_an_event_out_of_order_is_refused() -> None:
    fold = Fold(FRESH, ANY)
    fold.add(THIRD)
    with pytest.raises(ValueError, match="first is older than"):
        fold.add(FIRST)


def test_an_account_is_corrected_in_what_events_decide_alone() -> None:
    damaged = account(
        customer_id="cus_1", state=BillingState(plan="pro"), tip_created=7, tip_state=FRESH
    )
    whole = LedgerFold(damaged, ANY)
    whole.add(FIRST)
    right = whole.end()[0].account
    assert right == account(
        customer_id="cus_1",
        state=refolded(FRESH, [FIRST], ANY).state,
        tip_created=100,
        tip_state=FRESH,
    )
