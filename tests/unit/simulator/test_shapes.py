"""Both API shapes, and what tenantry reads from them."""

from itertools import pairwise, permutations
from typing import Any

import pytest

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent
from tenantry.integrations.stripe.decode import decode_event
from tenantry_devkit.simulator import (
    NEW_VERSION,
    OLD_VERSION,
    Invoice,
    ProviderEvent,
    Simulator,
    Subscription,
    render_event,
)
from tenantry_devkit.simulator.delivery import event_body
from tenantry_devkit.simulator.objects import Shape, previous_attributes
from tests.support.cases import cases
from tests.support.simulator import a_simulator

VERSIONS = pytest.mark.parametrize("version", [OLD_VERSION, NEW_VERSION])


@pytest.fixture
async def sim() -> Simulator:
    """A tenant's history with all five types that tenantry handles."""
    sim = a_simulator()
    sim.complete(sim.checkout("price_pro", metadata={"orgId": "acme"}, client_reference_id="acme"))
    (subscription,) = sim.subscriptions
    await sim.advance(days=5)
    sim.change_plan(subscription, "price_business")
    sim.card_declines(sim.subscriptions[subscription].customer)
    await sim.advance(days=28)
    sim.cancel(subscription, at_period_end=True)
    sim.cancel(subscription)
    return sim


def shown(event: ProviderEvent, version: str) -> dict[str, Any]:
    thing: dict[str, Any] = render_event(event, version)["data"]["object"]
    return thing


def decoded(event: ProviderEvent, version: str) -> BillingEvent:
    return decode_event(event_body(event, version), arrived=0, make_up_id=str)


@cases(
    ("version", "shape"),
    [
        ("2020-08-27", Shape.OLD),
        ("2025-02-24.acacia", Shape.OLD),
        ("2025-03-31.basil", Shape.NEW),
        ("2026-10-28.endive", Shape.NEW),
    ],
)
def test_the_version_decides_the_shape(version: str, shape: Shape) -> None:
    assert Shape.of(version) is shape


def test_the_period_moved_to_the_items(sim: Simulator) -> None:
    event = sim.events(ev.SUBSCRIPTION_UPDATED)[0]
    assert isinstance(event.object, Subscription)
    old, new = shown(event, OLD_VERSION), shown(event, NEW_VERSION)
    assert old["current_period_end"] == event.object.period_end
    assert "current_period_end" not in old["items"]["data"][0]
    assert new["items"]["data"][0]["current_period_end"] == event.object.period_end
    assert "current_period_end" not in new


def test_an_invoices_subscription_moved_to_its_parent(sim: Simulator) -> None:
    event = sim.events(ev.PAYMENT_FAILED)[0]
    assert isinstance(event.object, Invoice)
    old, new = shown(event, OLD_VERSION), shown(event, NEW_VERSION)
    assert (
        old["subscription"]
        == new["parent"]["subscription_details"]["subscription"]
        == event.object.subscription
    )
    assert "parent" not in old
    assert "subscription" not in new


@VERSIONS
def test_a_subscription_update_is_decoded(sim: Simulator, version: str) -> None:
    renewal = sim.events(ev.SUBSCRIPTION_UPDATED)[-3]
    assert isinstance(renewal.object, Subscription)
    assert isinstance(renewal.before, Subscription)
    facts = decoded(renewal, version)
    assert facts.problem is None
    assert (facts.id, facts.type, facts.created) == (
        renewal.id,
        ev.SUBSCRIPTION_UPDATED,
        renewal.created,
    )
    assert (facts.livemode, facts.api_version) == (False, version)
    assert facts.org_id == "acme"
    assert facts.customer_id == renewal.object.customer
    assert facts.subscription_id == renewal.object.id
    assert facts.subscription_created == renewal.object.created
    assert facts.status == "active"
    assert facts.price_id == "price_business"
    assert facts.current_period_end == renewal.object.period_end
    assert facts.cancel_at_period_end is False
    assert facts.previous is not None
    assert facts.previous["current_period_end"] == renewal.before.period_end


@VERSIONS
def test_a_subscription_deletion_is_decoded(sim: Simulator, version: str) -> None:
    (deletion,) = sim.events(ev.SUBSCRIPTION_DELETED)
    facts = decoded(deletion, version)
    assert (facts.problem, facts.org_id, facts.status) == (None, "acme", "canceled")
    assert facts.previous is None


@VERSIONS
@pytest.mark.parametrize("event_type", [ev.PAYMENT_FAILED, ev.PAYMENT_SUCCEEDED])
def test_an_invoice_is_decoded(sim: Simulator, version: str, event_type: str) -> None:
    event = sim.events(event_type)[0]
    assert isinstance(event.object, Invoice)
    facts = decoded(event, version)
    assert facts.problem is None
    assert facts.customer_id == event.object.customer
    assert facts.subscription_id == event.object.subscription
    assert facts.invoice_id == event.object.id
    assert facts.invoice_url == f"{sim.url}/i/{event.object.id}"
    assert (facts.amount_due, facts.currency) == (event.object.amount_due, "eur")


@VERSIONS
def test_a_completed_checkout_is_decoded(sim: Simulator, version: str) -> None:
    (completed,) = sim.events(ev.CHECKOUT_COMPLETED)
    (subscription,) = sim.subscriptions.values()
    facts = decoded(completed, version)
    assert (facts.problem, facts.org_id, facts.checkout_mode) == (None, "acme", "subscription")
    assert (facts.customer_id, facts.subscription_id) == (subscription.customer, subscription.id)


@VERSIONS
def test_updates_of_one_second_prove_their_order(version: str) -> None:
    sim = a_simulator()
    subscription = sim.subscribe(sim.customer(), "price_pro", metadata={"orgId": "acme"})
    sim.change_plan(subscription, "price_business")
    sim.cancel(subscription, at_period_end=True)
    updates = [decoded(event, version) for event in sim.events(ev.SUBSCRIPTION_UPDATED)]
    assert len({update.created for update in updates}) == 1
    assert [order for order in permutations(updates) if _is_chain(order)] == [tuple(updates)]


def _is_chain(updates: tuple[BillingEvent, ...]) -> bool:
    """Whether each update replaced what the one before it had set, and left the rest."""
    facts = ("status", "price_id", "current_period_end", "cancel_at_period_end")
    return all(
        (later.previous or {}).get(fact, getattr(later, fact)) == getattr(earlier, fact)
        for earlier, later in pairwise(updates)
        for fact in facts
    )


def test_only_updates_have_previous_attributes(sim: Simulator) -> None:
    for event in sim.events():
        has_previous = "previous_attributes" in render_event(event, NEW_VERSION)["data"]
        assert has_previous == event.type.endswith(".updated")


@cases(
    ("before", "after", "previous"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, {"a": {"c": 2}}),
        ({"a": {}}, {"a": {"b": 1}}, {"a": {"b": None}}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": 1}}),
        ({"a": [1, 2]}, {"a": [1, 3]}, {"a": [1, 2]}),
        ({"a": None}, {"a": {"b": 1}}, {"a": None}),
        ({"a": {"id": "x", "b": 1}}, {"a": {"id": "y", "b": 1}}, {"a": {"id": "x", "b": 1}}),
        ({"a": 1}, {"a": 1}, {}),
    ],
)
def test_previous_attributes(
    before: dict[str, Any], after: dict[str, Any], previous: dict[str, Any]
) -> None:
    assert previous_attributes(before, after) == previous
