"""The lifecycle of a subscription and its events."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenantry_devkit.simulator import (
    NEW_VERSION,
    ApiError,
    Card,
    CheckoutSession,
    FirstPayment,
    Invoice,
    ItemChange,
    Rules,
    Simulator,
    Subscription,
    render_event,
)
from tenantry_devkit.simulator.objects import PauseBehavior
from tests.support.cases import cases
from tests.support.simulator import DAY, START, a_simulator, types

CREATED = "customer.subscription.created"
UPDATED = "customer.subscription.updated"
DELETED = "customer.subscription.deleted"
RENEWAL_THAT_FAILS = [
    UPDATED,
    "invoice.created",
    "invoice.finalized",
    "invoice.payment_failed",
    UPDATED,
]


def subscribed(sim: Simulator, price: str = "price_pro", **options: Any) -> Subscription:
    return sim.subscribe(sim.customer("cus_acme"), price, metadata={"orgId": "acme"}, **options)


def present(sim: Simulator, subscription: Subscription) -> Subscription:
    return sim.subscriptions[subscription.id]


def previous(sim: Simulator, event_type: str = UPDATED) -> dict[str, Any]:
    """What the newest event of a type says that it replaced."""
    found: dict[str, Any] = render_event(sim.events(event_type)[-1], NEW_VERSION)["data"][
        "previous_attributes"
    ]
    return found


def seconds(moment: datetime) -> int:
    return int(moment.timestamp())


async def passed(sim: Simulator, **time: float) -> list[str]:
    """The types of the events of the time that passes."""
    before = len(sim.events())
    await sim.advance(**time)
    return types(sim.events()[before:])


def test_a_subscription_begins_incomplete_and_is_active_once_paid() -> None:
    sim = a_simulator()
    subscription = subscribed(sim)
    assert types(sim.events())[-6:] == [
        CREATED,
        "invoice.created",
        "invoice.finalized",
        "invoice.paid",
        "invoice.payment_succeeded",
        UPDATED,
    ]
    assert previous(sim) == {"status": "incomplete", "default_payment_method": None}
    assert subscription.status == "active"
    assert subscription.period_end == seconds(datetime(2026, 2, 1, 12, tzinfo=UTC))


def test_subscription_of_an_api_call_is_active_at_once() -> None:
    sim = a_simulator()
    subscribed(sim, first_payment=FirstPayment.ALLOW_INCOMPLETE)
    (created,) = sim.events(CREATED)
    assert isinstance(created.object, Subscription)
    assert created.object.status == "active"
    assert not sim.events(UPDATED)


async def test_failed_first_payment_can_be_paid_within_23_hours() -> None:
    sim = a_simulator()
    customer = sim.customer(card=Card.DECLINES)
    subscription = sim.subscribe(customer, "price_pro")
    assert subscription.status == "incomplete"
    assert await passed(sim, hours=22) == []
    assert await passed(sim, hours=1) == [UPDATED, "invoice.voided"]
    assert present(sim, subscription).status == "incomplete_expired"


async def test_a_first_payment_may_succeed_later() -> None:
    sim = a_simulator()
    customer = sim.customer(card=Card.DECLINES)
    subscription = sim.subscribe(customer, "price_pro")
    sim.card_works(customer)
    sim.pay(subscription.latest_invoice or "")
    await sim.advance(days=2)
    assert present(sim, subscription).status == "active"


async def test_a_renewal_begins_the_next_period_and_bills_it() -> None:
    sim = a_simulator()
    subscription = subscribed(sim)
    assert await passed(sim, days=32) == [
        UPDATED,
        "invoice.created",
        "invoice.finalized",
        "invoice.paid",
        "invoice.payment_succeeded",
    ]
    assert present(sim, subscription).period_end == seconds(datetime(2026, 3, 1, 12, tzinfo=UTC))
    assert {event.created for event in sim.events()[-5:]} == {subscription.period_end}
    assert previous(sim)["items"]["data"][0]["current_period_end"] == subscription.period_end


async def test_every_renewal_of_a_year_happens() -> None:
    sim = a_simulator()
    subscribed(sim)
    await sim.advance(days=365)
    paid = [invoice for invoice in sim.invoices.values() if invoice.status == "paid"]
    assert len(paid) == 13


async def test_a_failed_renewal_is_past_due_and_is_active_again_once_paid() -> None:
    sim = a_simulator()
    subscription = subscribed(sim)
    sim.card_declines("cus_acme")
    assert await passed(sim, days=31) == RENEWAL_THAT_FAILS
    assert previous(sim) == {"status": "active"}
    assert present(sim, subscription).status == "past_due"
    sim.card_works("cus_acme")
    assert await passed(sim, days=3) == ["invoice.paid", "invoice.payment_succeeded", UPDATED]
    assert previous(sim) == {"status": "past_due"}
    assert present(sim, subscription).status == "active"


async def test_after_the_last_retry_the_subscription_is_canceled() -> None:
    sim = a_simulator()
    subscription = subscribed(sim)
    sim.card_declines("cus_acme")
    await sim.advance(days=31)
    failures = [await passed(sim, days=days) for days in (3, 5, 7)]
    assert failures == [["invoice.payment_failed"]] * 2 + [["invoice.payment_failed", DELETED]]
    assert present(sim, subscription).status == "canceled"
    assert present(sim, subscription).cancellation_reason == "payment_failed"
    assert await passed(sim, days=60) == []


async def test_an_account_may_leave_it_unpaid() -> None:
    sim = a_simulator(rules=Rules(retry_days=(1,), when_retries_end="unpaid"))
    subscription = subscribed(sim)
    sim.card_declines("cus_acme")
    await sim.advance(days=32)
    assert present(sim, subscription).status == "unpaid"
    sim.card_works("cus_acme")
    sim.pay(present(sim, subscription).latest_invoice or "")
    assert present(sim, subscription).status == "active"


def test_an_invoice_cannot_be_paid_twice() -> None:
    sim = a_simulator()
    subscription = subscribed(sim)
    with pytest.raises(ApiError, match="already paid"):
        sim.pay(subscription.latest_invoice or "")


async def failed_renewal(sim: Simulator) -> Subscription:
    """A subscription that is past due, with an open invoice."""
    subscription = subscribed(sim)
    sim.card_declines("cus_acme")
    await sim.advance(days=31)
    return present(sim, subscription)


@pytest.mark.parametrize(
    ("method", "event_type", "status"),
    [
        (Simulator.void_invoice, "invoice.voided", "void"),
        (Simulator.mark_uncollectible, "invoice.marked_uncollectible", "uncollectible"),
    ],
)
async def test_voided_or_uncollectible_invoice_is_not_retried(
    method: Callable[[Simulator, str], Invoice], event_type: str, status: str
) -> None:
    sim = a_simulator()
    subscription = await failed_renewal(sim)
    assert method(sim, subscription.latest_invoice or "").status == status
    assert types(sim.events())[-2:] == [event_type, UPDATED]
    assert present(sim, subscription).status == "active"
    assert await passed(sim, days=20) == []


async def test_older_unpaid_invoice_decides_the_status_after_a_newer_one_is_voided() -> None:
    sim = a_simulator(rules=Rules(retry_days=(), when_retries_end="past_due"))
    subscription = await failed_renewal(sim)
    await sim.advance(days=31)
    sim.void_invoice(present(sim, subscription).latest_invoice or "")
    assert present(sim, subscription).status == "past_due"
    sim.card_works("cus_acme")
    sim.pay(subscription.latest_invoice or "")
    assert present(sim, subscription).status == "active"


def test_incomplete_subscription_expires_with_its_voided_invoice() -> None:
    sim = a_simulator()
    subscription = sim.subscribe(sim.customer(card=Card.DECLINES), "price_pro")
    sim.void_invoice(subscription.latest_invoice or "")
    assert types(sim.events())[-2:] == [UPDATED, "invoice.voided"]
    assert present(sim, subscription).status == "incomplete_expired"


async def test_uncollectible_invoice_can_be_paid_or_voided() -> None:
    sim = a_simulator()
    invoice = sim.mark_uncollectible((await failed_renewal(sim)).latest_invoice or "")
    sim.card_works("cus_acme")
    assert sim.pay(invoice).status == "paid"
    with pytest.raises(ApiError, match="paid and cannot be voided"):
        sim.void_invoice(invoice)
    with pytest.raises(ApiError, match="paid and cannot be marked uncollectible"):
        sim.mark_uncollectible(invoice)


async def test_a_trial_costs_nothing_and_ends_in_a_paid_period() -> None:
    sim = a_simulator()
    subscription = subscribed(sim, trial_days=14)
    assert subscription.status == "trialing"
    assert [invoice.amount_due for invoice in sim.invoices.values()] == [0]
    assert await passed(sim, days=11) == ["customer.subscription.trial_will_end"]
    assert (await passed(sim, days=3))[0] == UPDATED
    assert previous(sim)["status"] == "trialing"
    assert present(sim, subscription).status == "active"
    assert present(sim, subscription).period_end == seconds(datetime(2026, 2, 15, 12, tzinfo=UTC))


async def test_unpaid_trial_is_past_due() -> None:
    sim = a_simulator()
    subscription = subscribed(sim, trial_days=14)
    sim.card_declines("cus_acme")
    assert (await passed(sim, days=14))[1:] == RENEWAL_THAT_FAILS
    assert present(sim, subscription).status == "past_due"


def test_a_trial_may_be_ended_early() -> None:
    sim = a_simulator()
    subscription = sim.end_trial(subscribed(sim, trial_days=14))
    assert subscription.status == "active"
    assert subscription.period_start == seconds(START)


async def paused_trial(sim: Simulator, **options: Any) -> Subscription:
    """A subscription that is paused because its trial ended without a payment method."""
    customer = sim.customer("cus_acme", card=Card.MISSING)
    subscription = sim.subscribe(
        customer, "price_pro", trial_days=14, missing_payment_method="pause", **options
    )
    await sim.advance(days=14)
    return present(sim, subscription)


async def test_trial_without_a_payment_method_may_end_in_a_pause() -> None:
    sim = a_simulator()
    subscription = await paused_trial(sim)
    assert (subscription.status, subscription.default_payment_method) == ("paused", None)
    assert types(sim.events())[-2:] == [UPDATED, "customer.subscription.paused"]
    assert previous(sim) == {"status": "trialing"}
    assert await passed(sim, days=60) == []


async def test_paused_subscription_is_resumed_with_a_new_period() -> None:
    sim = a_simulator()
    subscription = await paused_trial(sim)
    with pytest.raises(ApiError, match="no attached payment source"):
        sim.resume_paused(subscription)
    sim.card_works("cus_acme")
    await sim.advance(days=10)
    resumed = sim.resume_paused(subscription)
    assert types(sim.events())[-6:] == [
        UPDATED,
        "customer.subscription.resumed",
        "invoice.created",
        "invoice.finalized",
        "invoice.paid",
        "invoice.payment_succeeded",
    ]
    assert (resumed.status, resumed.period_start) == ("active", seconds(START) + 24 * DAY)
    assert list(sim.invoices.values())[-1].amount_paid == 2900
    with pytest.raises(ApiError, match="active, not paused"):
        sim.resume_paused(subscription)


async def test_resumed_subscription_whose_payment_fails_is_past_due() -> None:
    sim = a_simulator()
    subscription = await paused_trial(sim)
    sim.card_declines("cus_acme")
    assert sim.resume_paused(subscription).status == "past_due"


async def test_trial_with_a_payment_method_is_not_paused() -> None:
    sim = a_simulator()
    subscription = subscribed(sim, trial_days=14, missing_payment_method="pause")
    await sim.advance(days=14)
    assert present(sim, subscription).status == "active"


async def test_paused_subscription_ends_at_its_moment_of_cancellation() -> None:
    sim = a_simulator()
    await paused_trial(sim, cancel_at=seconds(START) + 20 * DAY)
    assert await passed(sim, days=6) == [DELETED]


@cases(
    ("behavior", "event_types", "status"),
    [
        ("void", ["invoice.finalized", "invoice.voided"], "void"),
        ("keep_as_draft", [], "draft"),
        (
            "mark_uncollectible",
            ["invoice.finalized", "invoice.marked_uncollectible"],
            "uncollectible",
        ),
    ],
)
async def test_invoices_are_not_collected_while_collection_is_paused(
    behavior: PauseBehavior, event_types: list[str], status: str
) -> None:
    sim = a_simulator()
    subscription = sim.pause_collection(subscribed(sim), behavior)
    assert subscription.status == "active"
    assert previous(sim) == {"pause_collection": None}
    assert await passed(sim, days=31) == [UPDATED, "invoice.created", *event_types]
    assert present(sim, subscription).status == "active"
    invoice = list(sim.invoices.values())[-1]
    assert (invoice.status, invoice.auto_advance) == (status, False)


async def test_collection_resumes_on_request() -> None:
    sim = a_simulator()
    subscription = sim.resume_collection(sim.pause_collection(subscribed(sim)))
    assert subscription.pause_collection is None
    assert previous(sim) == {"pause_collection": {"behavior": "void", "resumes_at": None}}
    assert (await passed(sim, days=31))[-1] == "invoice.payment_succeeded"


async def test_invoice_from_before_a_pause_is_still_retried() -> None:
    sim = a_simulator()
    subscription = await failed_renewal(sim)
    sim.pause_collection(subscription)
    await sim.advance(days=1)
    sim.card_works("cus_acme")
    assert await passed(sim, days=2) == ["invoice.paid", "invoice.payment_succeeded", UPDATED]


async def test_new_plan_counts_now_and_is_billed_from_the_next_period() -> None:
    sim = a_simulator()
    subscription = subscribed(sim)
    await sim.advance(days=10)
    changed = sim.change_plan(subscription, "price_business")
    assert changed.price == "price_business"
    assert changed.period_end == subscription.period_end
    assert previous(sim)["items"]["data"][0]["price"]["id"] == "price_pro"
    await sim.advance(days=31)
    assert list(sim.invoices.values())[-1].amount_due == 9900


async def test_a_plan_of_another_interval_begins_a_new_period() -> None:
    sim = a_simulator()
    yearly = sim.price("price_yearly", 29_000, interval="year")
    subscription = subscribed(sim)
    await sim.advance(days=10)
    changed = sim.change_plan(subscription, yearly)
    assert changed.period_end == seconds(datetime(2027, 1, 11, 12, tzinfo=UTC))
    assert list(sim.invoices.values())[-1].amount_due == 29_000


def previous_items(sim: Simulator) -> list[tuple[str, int]]:
    """The prices and quantities that the newest update replaced."""
    return [(item["price"]["id"], item["quantity"]) for item in previous(sim)["items"]["data"]]


def with_add_on(sim: Simulator) -> Subscription:
    """A subscription of a base plan and three seats."""
    sim.price("price_seat", 500)
    return sim.subscribe(sim.customer("cus_acme"), [("price_pro", 1), ("price_seat", 3)])


def test_subscription_has_several_items_with_quantities() -> None:
    sim = a_simulator()
    subscription = with_add_on(sim)
    assert [(item.price.id, item.quantity) for item in subscription.items] == [
        ("price_pro", 1),
        ("price_seat", 3),
    ]
    assert sim.invoices[subscription.latest_invoice or ""].amount_due == 2900 + 3 * 500


async def test_quantity_of_one_item_is_changed() -> None:
    sim = a_simulator()
    subscription = with_add_on(sim)
    sim.update_subscription(subscription, items=[ItemChange(subscription.items[1].id, quantity=5)])
    assert previous_items(sim) == [("price_pro", 1), ("price_seat", 3)]
    assert set(previous(sim)) == {"items"}
    await sim.advance(days=31)
    assert list(sim.invoices.values())[-1].amount_due == 2900 + 5 * 500


def test_items_are_added_and_removed() -> None:
    sim = a_simulator()
    subscription = with_add_on(sim)
    added = sim.update_subscription(
        subscription, items=[ItemChange(price="price_business", quantity=2)]
    )
    assert [item.price.id for item in added.items] == ["price_pro", "price_seat", "price_business"]
    assert previous(sim)["items"]["total_count"] == 2
    removed = sim.update_subscription(added, items=[ItemChange(added.items[0].id, deleted=True)])
    assert removed.price == "price_seat"
    assert previous_items(sim) == [("price_pro", 1), ("price_seat", 3), ("price_business", 2)]
    with pytest.raises(ApiError, match="at least one active item"):
        sim.update_subscription(
            removed, items=[ItemChange(item.id, deleted=True) for item in removed.items]
        )


def test_update_to_one_item_has_plan_and_quantity_again() -> None:
    sim = a_simulator()
    subscription = with_add_on(sim)
    sim.update_subscription(
        subscription, items=[ItemChange(subscription.items[0].id, deleted=True)]
    )
    assert (previous(sim)["plan"], previous(sim)["quantity"]) == (None, None)


async def test_subscriptions_of_one_customer_do_not_affect_each_other() -> None:
    sim = a_simulator()
    base = subscribed(sim)
    await sim.advance(days=10)
    add_on, trial = (
        sim.subscribe("cus_acme", "price_business"),
        sim.subscribe("cus_acme", "price_pro", trial_days=40),
    )
    sim.cancel(base)
    sim.card_declines("cus_acme")
    await sim.advance(days=31)
    statuses = [sim.subscriptions[each.id].status for each in (base, add_on, trial)]
    assert statuses == ["canceled", "past_due", "trialing"]
    assert {subscription.customer for subscription in sim.subscriptions.values()} == {"cus_acme"}


async def test_a_cancellation_at_the_periods_end_takes_effect_then() -> None:
    sim = a_simulator()
    subscription = subscribed(sim)
    await sim.advance(days=10)
    canceled = sim.cancel(subscription, at_period_end=True)
    assert (canceled.status, canceled.cancel_at_period_end) == ("active", True)
    assert previous(sim) == {"cancel_at_period_end": False, "cancel_at": None, "canceled_at": None}
    assert await passed(sim, days=20) == []
    assert await passed(sim, days=1) == [DELETED]
    assert present(sim, subscription).ended_at == subscription.period_end


async def test_cancellation_together_with_a_new_period_takes_effect_at_the_end_of_that() -> None:
    sim = a_simulator()
    yearly = sim.price("price_yearly", 29_000, interval="year")
    subscription = subscribed(sim)
    [item] = subscription.items
    changes = [ItemChange(item.id, yearly.id)]
    changed = sim.update_subscription(subscription, items=changes, cancel_at_period_end=True)
    assert changed.cancel_at == changed.period_end == seconds(datetime(2027, 1, 1, 12, tzinfo=UTC))


async def test_cancellation_at_the_period_end_can_be_revoked() -> None:
    sim = a_simulator()
    subscription = subscribed(sim)
    sim.resume(sim.cancel(subscription, at_period_end=True))
    assert previous(sim)["cancel_at_period_end"] is True
    await sim.advance(days=31)
    assert present(sim, subscription).status == "active"


async def test_cancellation_at_a_moment_takes_effect_then() -> None:
    sim = a_simulator()
    moment = seconds(START) + 40 * DAY
    subscription = sim.update_subscription(subscribed(sim), cancel_at=moment)
    assert (subscription.status, subscription.cancel_at_period_end) == ("active", False)
    assert previous(sim) == {"cancel_at": None, "canceled_at": None}
    await sim.advance(days=39)
    assert present(sim, subscription).status == "active"
    assert await passed(sim, days=1) == [DELETED]
    assert present(sim, subscription).ended_at == moment


def test_subscription_may_begin_with_the_moment_of_its_end() -> None:
    sim = a_simulator()
    subscription = subscribed(sim, cancel_at=seconds(START) + DAY)
    assert (subscription.cancel_at, subscription.canceled_at) == (
        seconds(START) + DAY,
        seconds(START),
    )


async def test_cancellation_at_a_moment_can_be_moved_and_revoked() -> None:
    sim = a_simulator()
    subscription = subscribed(sim, cancel_at=seconds(START) + 5 * DAY)
    sim.update_subscription(subscription, cancel_at=seconds(START) + 10 * DAY)
    assert await passed(sim, days=6) == []
    sim.resume(subscription)
    assert previous(sim) == {"cancel_at": seconds(START) + 10 * DAY, "canceled_at": seconds(START)}
    assert await passed(sim, days=6) == []


def test_cancellation_cannot_be_in_the_past() -> None:
    sim = a_simulator()
    with pytest.raises(ApiError, match="in the future"):
        sim.update_subscription(subscribed(sim), cancel_at=seconds(START))


def test_cancellation_at_a_moment_replaces_one_at_the_period_end() -> None:
    sim = a_simulator()
    subscription = sim.cancel(subscribed(sim), at_period_end=True)
    sim.update_subscription(subscription, cancel_at=seconds(START) + DAY)
    assert previous(sim) == {"cancel_at_period_end": True, "cancel_at": subscription.period_end}


async def test_portal_cancels_a_flexible_subscription_with_cancel_at_only() -> None:
    sim = a_simulator(rules=Rules(billing_mode="flexible"))
    subscription = sim.cancel_in_portal(subscribed(sim))
    assert (subscription.cancel_at_period_end, subscription.cancel_at) == (
        False,
        subscription.period_end,
    )
    assert await passed(sim, days=31) == [DELETED]


async def test_portal_cancels_a_classic_subscription_with_both_fields() -> None:
    sim = a_simulator()
    subscription = sim.cancel_in_portal(subscribed(sim))
    assert (subscription.cancel_at_period_end, subscription.cancel_at) == (
        True,
        subscription.period_end,
    )
    assert await passed(sim, days=31) == [DELETED]


async def test_a_cancellation_now_ends_everything() -> None:
    sim = a_simulator()
    subscription = subscribed(sim)
    sim.card_declines("cus_acme")
    await sim.advance(days=31)
    sim.cancel(subscription)
    assert await passed(sim, days=60) == []
    with pytest.raises(ApiError, match="No such subscription"):
        sim.cancel(subscription)


def test_unchanged_object_causes_no_event() -> None:
    sim = a_simulator()
    subscription = subscribed(sim)
    count = len(sim.events())
    sim.resume(subscription)
    sim.change_plan(subscription, "price_pro")
    sim.set_metadata(subscription, {"orgId": "acme"})
    assert len(sim.events()) == count


def test_previous_attributes_have_changed_metadata() -> None:
    sim = a_simulator()
    sim.set_metadata(subscribed(sim), {"orgId": "beta", "seats": "5"})
    assert previous(sim) == {"metadata": {"orgId": "acme", "seats": None}}


def test_a_deleted_customers_subscriptions_end() -> None:
    sim = a_simulator()
    subscription = subscribed(sim)
    sim.delete_customer("cus_acme")
    assert types(sim.events())[-2:] == [DELETED, "customer.deleted"]
    assert present(sim, subscription).status == "canceled"


def test_a_checkout_makes_customer_and_subscription() -> None:
    sim = a_simulator()
    session = sim.checkout(
        "price_pro", metadata={"orgId": "acme"}, customer_email="owner@acme.example"
    )
    done = sim.complete(session)
    assert types(sim.events())[-8:] == [
        "customer.created",
        CREATED,
        "invoice.created",
        "invoice.finalized",
        "invoice.paid",
        "invoice.payment_succeeded",
        UPDATED,
        "checkout.session.completed",
    ]
    subscription = sim.subscriptions[done.subscription or ""]
    assert subscription.metadata == {"orgId": "acme"}
    assert sim.customers[done.customer or ""].email == "owner@acme.example"
    assert (done.status, done.payment_status) == ("complete", "paid")


def test_checkout_without_a_card_may_begin_a_trial() -> None:
    sim = a_simulator()
    session = sim.checkout("price_pro", trial_days=14, missing_payment_method="pause")
    done = sim.complete(session, Card.MISSING)
    assert done.payment_status == "no_payment_required"
    subscription = sim.subscriptions[done.subscription or ""]
    assert (subscription.status, subscription.missing_payment_method) == ("trialing", "pause")
    with pytest.raises(ApiError, match="declined"):
        sim.complete(sim.checkout("price_pro"), Card.MISSING)


def bank_debit(sim: Simulator) -> CheckoutSession:
    """A completed checkout whose payment is pending."""
    return sim.complete(sim.checkout("price_pro", metadata={"orgId": "acme"}), async_payment=True)


def test_checkout_with_a_pending_payment_is_complete_and_unpaid() -> None:
    sim = a_simulator()
    done = bank_debit(sim)
    assert types(sim.events())[-5:] == [
        CREATED,
        "invoice.created",
        "invoice.finalized",
        UPDATED,
        "checkout.session.completed",
    ]
    assert (done.status, done.payment_status) == ("complete", "unpaid")
    assert sim.subscriptions[done.subscription or ""].status == "active"
    assert sim.invoices[done.invoice or ""].status == "open"


def test_pending_payment_may_succeed() -> None:
    sim = a_simulator()
    done = sim.async_payment_succeeds(bank_debit(sim))
    assert types(sim.events())[-3:] == [
        "invoice.paid",
        "invoice.payment_succeeded",
        "checkout.session.async_payment_succeeded",
    ]
    assert done.payment_status == "paid"
    assert sim.subscriptions[done.subscription or ""].status == "active"
    with pytest.raises(ApiError, match="no pending payment"):
        sim.async_payment_fails(done)


@pytest.mark.parametrize(
    ("retry_days", "event_type", "status"), [((3,), UPDATED, "past_due"), ((), DELETED, "canceled")]
)
async def test_pending_payment_may_fail(
    retry_days: tuple[int, ...], event_type: str, status: str
) -> None:
    sim = a_simulator(rules=Rules(retry_days=retry_days))
    session = bank_debit(sim)
    await sim.advance(days=5)
    done = sim.async_payment_fails(session)
    assert types(sim.events())[-3:] == [
        "invoice.payment_failed",
        event_type,
        "checkout.session.async_payment_failed",
    ]
    assert done.payment_status == "unpaid"
    assert sim.subscriptions[done.subscription or ""].status == status


def test_pending_payment_of_an_ended_subscription_changes_only_the_session() -> None:
    sim = a_simulator()
    session = bank_debit(sim)
    sim.cancel(session.subscription or "")
    count = len(sim.events())
    sim.async_payment_fails(session)
    assert types(sim.events()[count:]) == ["checkout.session.async_payment_failed"]


async def test_a_checkout_expires_after_a_day() -> None:
    sim = a_simulator()
    session = sim.checkout("price_pro")
    assert await passed(sim, days=1) == ["checkout.session.expired"]
    with pytest.raises(ApiError, match="expired"):
        sim.complete(session)


async def test_the_same_seed_gives_the_same_events() -> None:
    async def history(seed: int) -> list[dict[str, Any]]:
        sim = a_simulator(seed=seed)
        subscribed(sim)
        await sim.advance(days=40)
        return [render_event(event, NEW_VERSION) for event in sim.events()]

    assert await history(1) == await history(1)
    assert await history(1) != await history(2)


async def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="back"):
        await a_simulator().advance(timedelta(seconds=-DAY))
