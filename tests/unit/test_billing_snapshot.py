"""What the provider answers, as an entry of the ledger: which subscription counts, and how it is
folded.
"""

from typing import Any

import pytest

from tenantry.domain.billing.events import Outcome
from tenantry.domain.billing.snapshot import ProviderSubscription, snapshots
from tenantry.domain.billing.state import BillingState
from tenantry.domain.billing.timeline import Folded
from tests.support.facts import ANY, EACH, account, deleted, failed, observed, updated
from tests.support.ledger import Ledger, ledger_of


def subscription(subscription_id: str = "sub_1", **facts: Any) -> ProviderSubscription:
    known = {
        "customer_id": "cus_1",
        "created": 10,
        "status": "active",
        "org_id": "acme",
        "price_id": "price_pro",
        "current_period_end": 5000,
    }
    return ProviderSubscription(id=subscription_id, **{**known, **facts})


def chosen(*subscriptions: ProviderSubscription, policy: Any = ANY, **state: Any) -> str | None:
    known = account(state=BillingState(**state))
    events = snapshots(
        subscriptions, known, policy, new_id=lambda: "snapshot_1", as_of=100, arrival=0
    )
    return ", ".join(f"{event.subscription_id} {event.status}" for event in events) or None


def test_the_answer_has_the_facts_of_the_subscription() -> None:
    answer = [subscription(cancel_at_period_end=True)]
    [event] = snapshots(answer, account(), ANY, new_id=lambda: "snapshot_1", as_of=100, arrival=0)
    assert event == observed(customer_id="cus_1", cancel_at_period_end=True)


def test_an_unknown_subscription_gives_no_answer() -> None:
    assert chosen() is None


def test_a_subscription_unknown_to_the_provider_gives_no_answer() -> None:
    assert chosen(provider_status="active", subscription_id="sub_9") is None
    assert (
        chosen(
            subscription("sub_1", status="canceled"),
            provider_status="active",
            subscription_id="sub_9",
        )
        is None
    )


def test_the_subscription_that_the_state_came_from_counts_while_it_lives() -> None:
    both = subscription("sub_1"), subscription("sub_2", created=20)
    assert chosen(*both, subscription_id="sub_1", provider_status="active") == "sub_1 active"
    assert (
        chosen(*both, subscription_id="sub_1", provider_status="active", policy=EACH)
        == "sub_1 active, sub_2 active"
    )


def test_a_living_subscription_counts_before_a_newer_one_that_has_ended() -> None:
    assert (
        chosen(subscription("sub_1"), subscription("sub_2", created=20, status="canceled"))
        == "sub_1 active"
    )


def test_of_ended_subscriptions_the_newest_counts() -> None:
    ended = [
        subscription(f"sub_{number}", created=number, status="canceled") for number in (3, 1, 2)
    ]
    assert chosen(*ended) == "sub_3 canceled"


def test_an_ended_subscription_that_says_what_the_state_says_is_preferred() -> None:
    ended = (
        subscription("sub_1", status="canceled"),
        subscription("sub_2", created=20, status="incomplete_expired"),
    )
    assert chosen(*ended, provider_status="canceled") == "sub_1 canceled"


def test_an_incomplete_subscription_counts_after_its_first_event() -> None:
    waiting = subscription(status="incomplete")
    assert chosen(waiting) is None
    assert (
        chosen(waiting, subscription_id="sub_1", provider_status="incomplete") == "sub_1 incomplete"
    )


def test_an_ended_subscription_that_was_never_paid_counts_only_where_the_state_says_so() -> None:
    expired = subscription("sub_2", created=20, status="incomplete_expired")
    assert chosen(expired) is None
    assert chosen(expired, provider_status="active") is None
    assert chosen(subscription(status="canceled"), expired) == "sub_1 canceled"
    assert chosen(expired, provider_status="incomplete_expired") == "sub_2 incomplete_expired"


@pytest.mark.parametrize("status", ["incomplete", "incomplete_expired"])
def test_of_each_subscription_one_that_was_never_paid_counts_after_its_first_event(
    status: str,
) -> None:
    unpaid, paid = subscription("sub_1", status=status), subscription("sub_2", created=20)
    assert chosen(unpaid, paid, policy=EACH) == "sub_2 active"
    known = account().with_folds({"sub_1": Folded(BillingState(subscription_id="sub_1"))}, EACH)
    [event] = snapshots([unpaid], known, EACH, new_id=lambda: "snapshot_1", as_of=100, arrival=0)
    assert (event.subscription_id, event.status) == ("sub_1", status)


def test_a_subscription_of_another_tenant_does_not_count() -> None:
    assert chosen(subscription(org_id="other")) is None
    assert chosen(subscription(org_id=None)) == "sub_1 active"


def test_an_answer_is_folded_like_an_update() -> None:
    asked, told = Ledger(ANY), Ledger(ANY)
    asked.deliver([observed(status="past_due", price_id="price_business")])
    told.deliver([updated(status="past_due", price_id="price_business")])
    assert asked.account == told.account


def test_an_answer_that_the_subscription_is_cancelled_is_folded_like_its_end() -> None:
    asked, told = Ledger(ANY), Ledger(ANY)
    for ledger, end in ((asked, observed(200, status="canceled")), (told, deleted(200))):
        ledger.deliver([updated(100)])
        ledger.deliver([end])
    assert asked.account.state == told.account.state
    assert asked.account.state.plan == "free"


def test_late_events_do_not_undo_an_answer() -> None:
    ledger = Ledger(ANY)
    ledger.deliver([observed(200)])
    [entry] = ledger.applied([deleted(150)]).entries
    assert (entry.outcome, entry.after) == (Outcome.LATE, ledger.account.record)


def test_an_answer_that_confirms_takes_the_place_of_the_one_before() -> None:
    ledger = Ledger(ANY)
    ledger.deliver([updated(100)])
    ledger.deliver([observed(200, "snapshot_1")])
    application = ledger.applied([observed(300, "snapshot_2")])
    assert application.superseded == ["snapshot_1"]


@pytest.mark.parametrize(
    ("before", "newer"),
    [
        (
            [observed(200, "snapshot_1", status="past_due")],
            observed(300, "snapshot_2", status="past_due"),
        ),
        ([observed(200, "snapshot_1"), failed(250)], observed(300, "snapshot_2")),
        ([observed(200, "snapshot_1")], observed(300, "snapshot_2", status="past_due")),
        ([observed(200, "snapshot_1")], observed(150, "snapshot_2")),
    ],
    ids=[
        "it repaired something",
        "something came between",
        "it says something else",
        "it is older",
    ],
)
def test_an_answer_that_changes_the_state_is_a_new_entry(before: list[Any], newer: Any) -> None:
    ledger = ledger_of(ANY, [updated(100), *before])
    assert ledger.applied([newer]).superseded == []
