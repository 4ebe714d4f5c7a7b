"""The sentences of the billing history."""

from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tenantry.billing.ledger_queries import HistoryEntry, HistoryState
from tenantry.dashboard.billing_history import sentences
from tenantry.dashboard.labels import labels
from tenantry.domain.billing.events import SUBSCRIPTION_DELETED, Outcome
from tenantry.domain.grants import GrantTerms
from tenantry.domain.plans import Catalog, Limits, Plan

CATALOG: Final = Catalog(
    (
        Plan("free", "Free", (), Limits()),
        Plan("pro", "Pro", ("price_pro",), Limits(), rank=1),
        Plan("odd", "<script>\u202e", ("price_odd",), Limits(), rank=2),
    )
)
JUNE: Final = datetime(2026, 6, 1, tzinfo=UTC)
JULY: Final = datetime(2026, 7, 1, tzinfo=UTC)
UPDATED: Final = "customer.subscription.updated"


def state(status: str = "active", plan: str = "pro", **fields: Any) -> HistoryState:
    fields = {"current_period_end": JUNE, "cancel_at_period_end": False, **fields}
    return HistoryState(plan, status, **fields)


def entry(
    event_type: str = UPDATED,
    before: HistoryState | None = None,
    after: HistoryState | None = None,
    **facts: Any,
) -> HistoryEntry:
    names = ("reversal", "subscription_id", "amount", "currency", "grant")
    facts = {**dict.fromkeys(names), **facts}
    return HistoryEntry(
        id="evt_1",
        type=event_type,
        created=JUNE,
        received_at=JUNE,
        livemode=True,
        outcome=Outcome.APPLIED,
        reason="",
        before=before,
        after=after,
        anomalies=[],
        **facts,
    )


def said(one: HistoryEntry) -> list[str]:
    return [sentence.striptags() for sentence in sentences(one, CATALOG)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, state(), ["Your subscription started.", "Your plan changed from Free to Pro."]),
        (state(), state("past_due"), ["Your subscription is past due."]),
        (state("past_due"), state(), ["Your subscription is active again."]),
        (state("trialing"), state(), ["Your trial ended, and your paid subscription began."]),
        (
            state("none", "free"),
            state("trialing"),
            ["Your trial started.", "Your plan changed from Free to Pro."],
        ),
        (
            state(ends_at=JUNE, cancel_at_period_end=True),
            state("canceled", "free", current_period_end=None),
            ["Your subscription ended.", "Your plan changed from Pro to Free."],
        ),
        (
            state(),
            state(cancel_at_period_end=True, ends_at=JUNE),
            ["Your subscription will end on 1 Jun 2026."],
        ),
        (
            state(current_period_end=None),
            state(current_period_end=None, cancel_at_period_end=True),
            ["Your subscription will end with the current period."],
        ),
        (
            state(cancel_at_period_end=True, ends_at=JUNE),
            state(),
            ["Your subscription will no longer end: it renews."],
        ),
        (
            state(),
            state(current_period_end=JULY),
            ["Your subscription was renewed until 1 Jul 2026."],
        ),
        (
            state(current_period_end=JULY),
            state(),
            ["Your period now ends on 1 Jun 2026."],
        ),
        (
            state("trialing"),
            state("trialing", current_period_end=JULY),
            ["Your trial now ends on 1 Jul 2026."],
        ),
        (state(seats=3), state(seats=1200), ["Your seats changed from 3 to 1,200."]),
        (state(), state(), ["Subscription updated."]),
    ],
)
def test_changes(
    before: HistoryState | None, after: HistoryState | None, expected: list[str]
) -> None:
    assert said(entry(before=before, after=after)) == expected


@pytest.mark.parametrize("status", ["past_due", "unpaid", "paused", "canceled"])
def test_period_of_a_subscription_that_is_not_paid_is_no_renewal(status: str) -> None:
    for before, after in ((JUNE, JULY), (JULY, JUNE)):
        moved = entry(
            before=state(status, current_period_end=before),
            after=state(status, current_period_end=after),
        )
        assert said(moved) == ["Subscription updated."]


def test_end_and_period_of_another_subscription_are_no_change() -> None:
    before = state(cancel_at_period_end=True, ends_at=JUNE)
    other_plan = entry(before=before, after=state(plan="free", current_period_end=JULY))
    assert said(other_plan) == ["Your plan changed from Pro to Free."]
    same_plan = entry(SUBSCRIPTION_DELETED, before, state(current_period_end=JULY))
    assert said(same_plan) == ["Subscription ended."]


ENDING: Final = state(cancel_at_period_end=True, ends_at=JUNE)


@pytest.mark.parametrize(
    ("event_type", "after", "expected"),
    [
        # an `updated` event of the other subscription, which was incomplete or past due before
        (UPDATED, state(current_period_end=JULY), ["Subscription updated."]),
        ("customer.subscription.created", state(), ["Subscription created."]),
        (
            "customer.subscription.created",
            state(current_period_end=JULY),
            ["Subscription created."],
        ),
        ("invoice.payment_succeeded", state(), ["The payment of 20.00 EUR was received."]),
        ("tenantry.grant.set", state("none"), ["Your contract more gives plan Pro."]),
    ],
)
def test_switch_to_a_subscription_of_the_same_plan_is_no_change_of_the_end(
    event_type: str, after: HistoryState, expected: list[str]
) -> None:
    facts = {"amount": 2000, "currency": "eur", "grant": GrantTerms("more", plan="pro")}
    assert said(entry(event_type, ENDING, after, **facts)) == expected


def test_switch_back_says_the_end_that_counts_now() -> None:
    switched = entry(UPDATED, state(current_period_end=JULY), ENDING)
    assert said(switched) == ["Your subscription will end on 1 Jun 2026."]


def test_subscription_may_begin_with_an_end() -> None:
    assert said(entry(after=state(ends_at=JUNE))) == [
        "Your subscription started.",
        "Your plan changed from Free to Pro.",
        "Your subscription will end on 1 Jun 2026.",
    ]


@pytest.mark.parametrize(
    ("event_type", "amount", "expected"),
    [
        ("invoice.payment_failed", 2000, "The payment of 20.00 EUR failed."),
        ("invoice.payment_failed", None, "The payment failed."),
        ("invoice.payment_succeeded", 2000, "The payment of 20.00 EUR was received."),
        ("invoice.payment_succeeded", 0, "Nothing was to be paid."),
        ("invoice.voided", 2000, "The invoice of 20.00 EUR was canceled."),
    ],
)
def test_payments(event_type: str, amount: int | None, expected: str) -> None:
    assert said(entry(event_type, amount=amount, currency="eur")) == [expected]


def test_contracts() -> None:
    terms = GrantTerms("more", plan="pro", limits=(("projects", 500),), until=1_782_864_000)
    words = "Your contract more gives plan Pro, 500 projects until 1 Jul 2026."
    assert said(entry("tenantry.grant.set", grant=terms)) == [words]
    assert said(entry("tenantry.grant.ended", grant=terms)) == ["Your contract more ended."]


def test_text_of_others_is_escaped() -> None:
    [sentence] = sentences(entry(before=state(), after=state(plan="odd")), CATALOG)
    assert "<script>" not in sentence
    assert "&lt;script&gt;" in sentence
    assert "\u202e\u2069" in sentence  # isolated from the text around it
    [unknown] = sentences(entry("<script>"), CATALOG)
    assert unknown == "&lt;script&gt;."


@pytest.mark.parametrize("event_type", [*labels().event_types, "unknown.type"])
def test_every_entry_says_something(event_type: str) -> None:
    assert all(said(entry(event_type)))
