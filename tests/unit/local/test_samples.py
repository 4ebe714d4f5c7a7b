"""Simulated events: each handled type, as tenantry reads them."""

from typing import Any, Final

import msgspec

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import KNOWN_TYPES, REQUIRED_TYPES, BillingEvent
from tenantry.integrations.stripe.decode import decode_event
from tenantry_devkit.local.samples import (
    TYPES,
    EventSubject,
    catalog_prices,
    customer_of,
    interval_of,
    plan_prices,
    sample_event,
)
from tests.support.cases import cases
from tests.support.catalogs import CATALOG_WITH_ADDON

ACME: Final = EventSubject("acme", "cus_acme", "price_pro")
MARCH: Final = 1_774_958_400
"""2026-03-31 12:00 UTC: the month before it is shorter."""
DAY: Final = 86_400
DAYS_LEFT: Final = {ev.TRIAL_WILL_END: 3, ev.SUBSCRIPTION_PAUSED: 0}
STATUSES: Final = {
    ev.SUBSCRIPTION_DELETED: "canceled",
    ev.SUBSCRIPTION_PAUSED: "paused",
    ev.TRIAL_WILL_END: "trialing",
    ev.PAYMENT_FAILED: "open",
    ev.INVOICE_VOIDED: "void",
    ev.INVOICE_UNCOLLECTIBLE: "uncollectible",
}
PAYMENTS: Final = {ev.ASYNC_PAYMENT_FAILED: "unpaid"}


def decoded(event: dict[str, Any]) -> BillingEvent:
    return decode_event(msgspec.json.encode(event), arrived=0, make_up_id=lambda: "none")


@cases("event_type", sorted(KNOWN_TYPES))
async def test_event_of_each_type_is_complete(event_type: str) -> None:
    event = sample_event(event_type, ACME, created=MARCH)
    facts = decoded(event)
    assert (facts.type, facts.created, facts.problem) == (event_type, MARCH, None)
    assert facts.customer_id == "cus_acme"
    prefix = "None" if event_type == ev.CUSTOMER_DELETED else "sub_"
    assert str(facts.subscription_id).startswith(prefix)
    is_by_customer = event_type in ev.INVOICE_TYPES | {ev.CUSTOMER_DELETED}
    assert facts.org_id == (None if is_by_customer else "acme")
    if event_type in ev.SUBSCRIPTION_TYPES:
        assert facts.price_id == "price_pro"
        assert facts.current_period_end is not None
        assert DAYS_LEFT.get(event_type, 28) <= (facts.current_period_end - MARCH) / DAY <= 31
        assert facts.status == STATUSES.get(event_type, "active")
    if event_type in ev.INVOICE_TYPES:
        assert (facts.amount_due, facts.currency) == (2900, "eur")
        assert facts.invoice_url is not None
        assert facts.invoice_url.endswith(str(facts.invoice_id))
        assert facts.status == STATUSES.get(event_type, "paid")
    if event_type in ev.CHECKOUT_TYPES:
        assert facts.checkout_mode == "subscription"
        assert event["data"]["object"]["payment_status"] == PAYMENTS.get(event_type, "paid")


@cases("status", ["active", "trialing", "past_due", "canceled", "incomplete", "paused"])
async def test_update_has_the_chosen_status(status: str) -> None:
    facts = decoded(sample_event(ev.SUBSCRIPTION_UPDATED, ACME, created=MARCH, status=status))
    assert facts.status == status


async def test_tenant_keeps_its_subscription_and_gets_new_events_and_invoices() -> None:
    types = (ev.PAYMENT_FAILED, ev.PAYMENT_FAILED, ev.SUBSCRIPTION_UPDATED, ev.SUBSCRIPTION_DELETED)
    made = [decoded(sample_event(event_type, ACME, created=MARCH)) for event_type in types]
    assert len({event.subscription_id for event in made}) == 1
    assert len({event.id for event in made}) == 4
    assert made[0].invoice_id != made[1].invoice_id


def test_every_handled_type_is_explained() -> None:
    assert TYPES.keys() == KNOWN_TYPES
    assert set(list(TYPES)[:5]) == REQUIRED_TYPES


def test_id_of_a_price_says_that_it_is_yearly() -> None:
    assert list(map(interval_of, ["price_pro", "price_pro_yearly"])) == ["month", "year"]


def test_catalog_prices_include_addons() -> None:
    prices = plan_prices(CATALOG_WITH_ADDON).keys()
    assert prices == {"price_free", "price_pro", "price_pro_yearly", "price_business"}
    assert catalog_prices(CATALOG_WITH_ADDON).keys() == prices | {"price_projects"}


def test_unlinked_tenant_always_gets_the_same_customer() -> None:
    assert customer_of("acme") == customer_of("acme")
    assert customer_of("acme") != customer_of("acme2")
    assert customer_of("acme").startswith("cus_")
