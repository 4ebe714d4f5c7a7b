"""Laws of billing: a tenant's state is a function of the set of its events."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import (
    FOLDED_TYPES,
    INVOICE_TYPES,
    KNOWN_TYPES,
    REQUIRED_TYPES,
    BillingEvent,
)
from tenantry.domain.billing.state import BillingPolicy
from tests.support.facts import ANY, EACH, completed, deleted, failed, succeeded, updated
from tests.support.ledger import CUSTOMER, Ledger, ledger_of, recorded

STATUSES: Final = ("trialing", "active", "past_due", "unpaid")
ACTS: Final = (
    *["changes"] * 3,
    "pauses",
    "resumes",
    "notice",
    "fails",
    "is paid",
    "is given up",
    "ends",
)
"""What may happen next to a subscription; `histories` says by which events."""
PRICES: Final = ("price_free", "price_pro", "price_business")


@st.composite
def histories(draw: st.DrawFn) -> list[BillingEvent]:
    """What happened to a tenant, in order: every two events of one second have a proof of their
    order.

    The provider's endpoint has further types enabled or not, any of them.
    """
    enabled = REQUIRED_TYPES | draw(st.sets(st.sampled_from(sorted(KNOWN_TYPES - REQUIRED_TYPES))))
    now, subscription = 1000, 0
    facts = _begun(subscription)
    events = _beginning(now, "evt_0", facts)
    for number in range(1, draw(st.integers(1, 8))):
        event_id = f"evt_{number}"
        now += draw(st.integers(1, 50))
        of_invoice = {"subscription_id": facts["subscription_id"], "invoice_id": f"in_{number - 1}"}
        match draw(st.sampled_from(ACTS)):
            case "changes":
                for part in range(draw(st.integers(1, 4))):
                    changes = draw(_changes(facts))
                    previous = {fact: facts[fact] for fact in changes}
                    facts = {**facts, **changes}
                    events.append(updated(now, f"{event_id}_{part}", previous=previous, **facts))
            case "pauses" | "resumes" as act:
                event_type, status = _PAUSES[act]
                # a status that no event tells would leave no proof of order
                if event_type in enabled:
                    facts = {**facts, "status": status}
                    events.append(_as(event_type, updated(now, event_id, **facts)))
            case "notice":
                event_type = draw(st.sampled_from((ev.TRIAL_WILL_END, *sorted(ev.CHECKOUT_TYPES))))
                about = {"customer_id": CUSTOMER, "checkout_mode": "subscription"}
                events.append(_as(event_type, updated(now, event_id, **facts, **about)))
            case "fails":
                events.append(failed(now, event_id, **{**of_invoice, "invoice_id": f"in_{number}"}))
            case "is paid":
                paid = succeeded(now, event_id, **of_invoice)
                events += [paid, _as(ev.INVOICE_PAID, paid, f"{event_id}_again")]
            case "is given up":
                event_type = draw(st.sampled_from((ev.INVOICE_VOIDED, ev.INVOICE_UNCOLLECTIBLE)))
                events.append(_as(event_type, succeeded(now, event_id, **of_invoice)))
            case _:
                events.append(deleted(now, event_id, **{**facts, "status": "canceled"}))
                subscription, now = subscription + 1, now + 1
                facts = _begun(subscription)
                events += _beginning(now, f"{event_id}_new", facts)
    return [event for event in events if event.type in enabled]


_PAUSES: Final = {
    "pauses": (ev.SUBSCRIPTION_PAUSED, "paused"),
    "resumes": (ev.SUBSCRIPTION_RESUMED, "active"),
}


def _as(event_type: str, event: BillingEvent, event_id: str | None = None) -> BillingEvent:
    """The event with the facts of another one."""
    return msgspec.structs.replace(event, type=event_type, id=event_id or event.id)


def _beginning(now: int, event_id: str, facts: dict[str, Any]) -> list[BillingEvent]:
    """A subscription begins incomplete, and gets its status in the same second."""
    incomplete = _as(
        ev.SUBSCRIPTION_CREATED,
        updated(now, f"{event_id}_created", **{**facts, "status": "incomplete"}),
    )
    return [incomplete, updated(now, event_id, previous={"status": "incomplete"}, **facts)]


def _begun(number: int) -> dict[str, Any]:
    return {
        "subscription_id": f"sub_{number}",
        "subscription_created": 100 + number,
        "status": "trialing",
        "price_id": "price_pro",
        "current_period_end": 5000,
        "cancel_at_period_end": False,
    }


def _changes(facts: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """One or more of a subscription's facts, changed."""
    other = {
        "status": st.sampled_from([status for status in STATUSES if status != facts["status"]]),
        "price_id": st.sampled_from([price for price in PRICES if price != facts["price_id"]]),
        "current_period_end": st.just(facts["current_period_end"] + 100),
        "cancel_at_period_end": st.just(not facts["cancel_at_period_end"]),
    }
    return st.sets(st.sampled_from(sorted(other)), min_size=1, max_size=2).flatmap(
        lambda names: st.fixed_dictionaries({name: other[name] for name in sorted(names)})
    )


@st.composite
def deliveries(draw: st.DrawFn, events: Sequence[BillingEvent]) -> list[list[BillingEvent]]:
    """The events in any order, some twice, in batches of any size."""
    again = draw(st.lists(st.sampled_from(list(events)), max_size=6))
    stream = draw(st.permutations([*events, *again]))
    cuts = sorted(draw(st.sets(st.integers(1, len(stream)), max_size=6)))
    return [
        list(stream[start:end]) for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]


@given(st.data(), histories(), st.sampled_from([ANY, EACH]))
def test_every_order_of_delivery_leads_to_the_state_that_the_history_leads_to(
    data: st.DataObject, history: list[BillingEvent], policy: BillingPolicy
) -> None:
    ledger = Ledger(policy)
    for batch in data.draw(deliveries(history)):
        ledger.deliver(batch)
    assert ledger.account.record == recorded(history, policy)


@given(st.data(), histories(), st.sampled_from([ANY, EACH]), st.booleans())
def test_a_subscription_without_metadata_counts_for_the_tenant_of_its_customer(
    data: st.DataObject, history: list[BillingEvent], policy: BillingPolicy, linked: bool
) -> None:
    """In every order, whether the customer was linked before, or a checkout session links it at any
    moment.
    """
    nameless = data.draw(st.sets(st.sampled_from([event.id for event in history])))
    events = [
        msgspec.structs.replace(
            event,
            customer_id=CUSTOMER,
            org_id=None if event.id in nameless or event.type in INVOICE_TYPES else "acme",
        )
        for event in history
    ]
    ledger = Ledger(policy, [CUSTOMER] if linked else [])
    for batch in data.draw(
        deliveries([*events, completed(1000, "evt_checkout", customer_id=CUSTOMER)])
    ):
        ledger.deliver(batch)
    assert ledger.account.record == recorded(events, policy)


@given(st.data(), histories())
def test_a_failure_is_notified_at_most_once_and_exactly_once_unless_paid(
    data: st.DataObject, history: list[BillingEvent]
) -> None:
    ledger = Ledger(ANY)
    for batch in data.draw(deliveries(history)):
        ledger.deliver(batch)
    failures = {event.id for event in history if event.type == "invoice.payment_failed"}
    paid = {event.invoice_id for event in history if event.type == "invoice.payment_succeeded"}
    unpaid = {
        event.id for event in history if event.id in failures and event.invoice_id not in paid
    }
    assert sorted(ledger.notified) == sorted(set(ledger.notified))
    assert unpaid <= set(ledger.notified) <= failures


@given(histories())
def test_the_history_in_order_sends_every_notification(history: list[BillingEvent]) -> None:
    ledger = ledger_of(ANY, history)
    assert ledger.notified == tuple(
        event.id for event in history if event.type == "invoice.payment_failed"
    )


loose_events = st.builds(
    BillingEvent,
    id=st.uuids().map(str),
    type=st.sampled_from(sorted(FOLDED_TYPES)),
    created=st.integers(0, 6),
    org_id=st.just("acme"),
    customer_id=st.just(CUSTOMER),
    subscription_id=st.sampled_from(["sub_1", "sub_2", None]),
    subscription_created=st.sampled_from([1, 2, None]),
    status=st.sampled_from([*STATUSES, "canceled"]),
    price_id=st.sampled_from([*PRICES, None]),
    current_period_end=st.sampled_from([None, 1, 2]),
    cancel_at_period_end=st.booleans(),
    previous=st.none()
    | st.fixed_dictionaries(
        {}, optional={"status": st.sampled_from(STATUSES), "price_id": st.sampled_from(PRICES)}
    ),
)


@given(st.data(), st.lists(loose_events, min_size=1, max_size=14), st.sampled_from([ANY, EACH]))
def test_batches_and_checkpoints_make_no_difference(
    data: st.DataObject, events: list[BillingEvent], policy: BillingPolicy
) -> None:
    """Whatever the events say, ties without proof included: one by one or in batches, the same
    order of arrival.
    """
    one_by_one, in_batches = Ledger(policy), Ledger(policy)
    batches = data.draw(deliveries(events))
    for batch in batches:
        in_batches.deliver(batch)
        for event in batch:
            one_by_one.deliver([event])
    assert in_batches.account == one_by_one.account
    assert in_batches.notified == one_by_one.notified


def test_history_does_not_begin_with_an_event_that_names_no_subscription() -> None:
    """Found by the law above: such an event does not say which subscription ended before it."""
    events = [
        updated(3, "a", subscription_id="sub_2"),
        deleted(0, "b", subscription_id="sub_2"),
        deleted(0, "c", subscription_id="sub_2"),
        updated(1, "d", subscription_id=None),
        deleted(2, "e", subscription_id="sub_1"),
    ]
    one_by_one, in_one_batch = ledger_of(ANY, events), Ledger(ANY)
    in_one_batch.deliver(events)
    assert in_one_batch.account == one_by_one.account
