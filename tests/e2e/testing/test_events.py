"""Signed events of the plugin."""

from datetime import UTC, datetime, timedelta

import pytest

from tenantry_devkit.simulator import NEW_VERSION, OLD_VERSION
from tenantry_devkit.testing import RefusedError, SuiteTenantry


def state(tenantry_tenant: object) -> tuple[str, str]:
    record = tenantry_tenant.record  # type: ignore[attr-defined]
    return record["plan"], record["subscriptionStatus"]


def test_a_subscription_is_updated(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant()
    tenantry.events.subscription_updated(
        tenant, "business", status="trialing", cancel_at_period_end=True
    )
    assert state(tenant) == ("business", "trialing")
    assert tenant.record["cancelAtPeriodEnd"] is True


@pytest.mark.parametrize("api_version", [OLD_VERSION, NEW_VERSION])
def test_period_end_in_both_shapes(tenantry: SuiteTenantry, api_version: str) -> None:
    tenant = tenantry.tenant()
    end = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    sent = tenantry.events.subscription_updated(
        tenant, "pro", period_end=end, api_version=api_version
    )
    assert tenant.record["currentPeriodEnd"] == "2031-05-06T07:08:09Z"
    assert api_version.encode() in sent.body


def test_an_update_keeps_the_plan_unless_it_names_one(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant(plan="pro")
    tenantry.events.subscription_updated(tenant, status="unpaid")
    assert state(tenant) == ("pro", "unpaid")


def test_a_subscription_is_deleted(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant(plan="pro")
    tenantry.events.subscription_deleted(tenant)
    assert state(tenant) == ("free", "canceled")


def test_a_payment_fails_and_then_succeeds(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant(plan="pro")
    tenantry.events.payment_failed(tenant)
    assert state(tenant) == ("pro", "past_due")
    tenantry.events.payment_succeeded(tenant)
    assert state(tenant) == ("pro", "active")


def test_late_event_changes_nothing(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant(plan="pro")
    yesterday = tenantry.provider.now - timedelta(days=1)
    tenantry.events.subscription_updated(tenant, "business", created=yesterday)
    assert state(tenant) == ("pro", "active")


def test_provider_events_follow_created_events(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant(plan="pro")
    tenantry.events.payment_failed(tenant)
    [subscription] = tenantry.provider.subscriptions.values()
    tenantry.provider.change_plan(subscription, "price_business")
    tenantry.provider.deliver()
    assert state(tenant) == ("business", "active")


def test_duplicate_event_changes_nothing(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant(plan="pro")
    failed = tenantry.events.payment_failed(tenant)
    tenantry.events.payment_succeeded(tenant)
    answer = tenantry.events.send(failed)
    assert (answer.status_code, answer.text) == (200, "OK")
    assert state(tenant) == ("pro", "active")
    assert len(tenant.mails()) == 1


def test_anything_can_be_sent(tenantry: SuiteTenantry) -> None:
    assert tenantry.events.send({"type": "something.else", "data": {"object": {}}}).text == "OK"
    assert tenantry.events.send(b"no event at all").text == "Invalid payload"


def test_a_signature_of_any_kind_can_be_sent(tenantry: SuiteTenantry) -> None:
    events, body = tenantry.events, b"{}"
    long_ago = tenantry.provider.now - timedelta(hours=1)
    assert events.send(body, signature="").text == "Missing Provider-Signature header"
    for signature in (
        events.sign(body, secret="whsec_of_somebody_else"),
        events.sign(body, at=long_ago),
        "t=1,v1=0",
    ):
        assert events.send(body, signature=signature).text == "Invalid signature"


def test_rejected_event_raises(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant()
    with pytest.raises(RefusedError, match="400 Invalid payload"):
        tenantry.events.payment_failed(tenant, created=-1)
