"""The simulated payment provider that the plugin attaches to the service."""

from datetime import timedelta
from typing import Any

import pytest

from tenantry_devkit.simulator import ApiError, FirstPayment, Simulator, State
from tenantry_devkit.testing import Provider, SuiteTenantry

SIMULATOR_ONLY = {
    "run",  # its clock stands still
    "catch_up",
    "serving",  # it is served already
    "store_endpoint",  # `add_endpoint` is enough
    "state",  # a test's account ends with it
    "restore",
}


def test_provider_has_the_simulators_methods() -> None:
    def offered(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert offered(Simulator) - offered(Provider) == SIMULATOR_ONLY


def test_months_pass_a_card_declines_and_the_subscription_ends(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant(plan="pro")
    begin = tenantry.provider.now
    tenantry.provider.advance(days=40)
    assert (tenant.plan, tenant.subscription_status) == ("pro", "active")
    tenantry.provider.card_declines(tenant.customer)
    tenantry.provider.advance(days=25)
    assert (tenant.plan, tenant.subscription_status) == ("pro", "past_due")
    tenantry.provider.advance(days=20)
    assert (tenant.plan, tenant.subscription_status) == ("free", "canceled")
    assert tenantry.provider.now - begin == timedelta(days=85)


def test_delivery_faults_do_not_change_the_result(tenantry: SuiteTenantry) -> None:
    tenantry.provider.misbehave(duplicates=2, reorder=True)
    tenant = tenantry.tenant(plan="pro")
    tenantry.provider.advance(days=100)
    assert (tenant.plan, tenant.subscription_status) == ("pro", "active")
    assert {delivery.state for delivery in tenantry.provider.deliveries()} == {State.DELIVERED}


def test_further_types_arrive_once_enabled(tenantry: SuiteTenantry) -> None:
    def begin_trial_by_api() -> tuple[str, str]:
        tenant = tenantry.tenant()
        tenantry.provider.subscribe(
            tenant.customer,
            "price_pro",
            metadata={"orgId": tenant.id},
            trial_days=14,
            first_payment=FirstPayment.ALLOW_INCOMPLETE,
        )
        tenantry.provider.deliver()
        return tenant.plan, tenant.subscription_status

    assert begin_trial_by_api() == ("free", "none")
    tenantry.provider.enable("customer.subscription.created")
    assert begin_trial_by_api() == ("pro", "trialing")


def test_a_checkout_through_the_service_is_paid_at_the_provider(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant()
    asked = tenantry.client(tenant.key()).post(
        "/api/v1/billing/checkout-sessions", json={"plan": "business"}
    )
    assert asked.status_code == 201, asked.text
    [session] = tenantry.provider.checkout_sessions.values()
    assert asked.json()["url"] == session.url
    assert str(session.url).startswith(tenantry.provider.url)
    tenantry.provider.complete(session)
    tenantry.provider.deliver()
    assert (tenant.plan, tenant.subscription_status) == ("business", "active")


def test_a_tenant_subscribes_later(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant(linked=False)
    subscription = tenantry.subscribe(tenant, "pro", trial_days=7)
    assert (tenant.plan, tenant.subscription_status) == ("pro", "trialing")
    tenantry.provider.cancel(subscription)
    tenantry.provider.deliver()
    assert (tenant.plan, tenant.subscription_status) == ("free", "canceled")


def test_each_test_has_its_own_clock_and_customers(tenantry: SuiteTenantry) -> None:
    tenantry.tenant()
    with SuiteTenantry(tenantry.service) as other:
        assert other.provider.customers == {}
        other.provider.advance(days=100)
    assert other.provider.now - tenantry.provider.now > timedelta(days=99)


def test_rejected_provider_call_raises(tenantry: SuiteTenantry) -> None:
    with pytest.raises(ApiError):
        tenantry.provider.subscribe("cus_nobody", "price_pro")


@pytest.mark.parametrize(
    "name", ["prices", "customers", "subscriptions", "invoices", "checkout_sessions"]
)
def test_objects_are_snapshots(tenantry: SuiteTenantry, name: str) -> None:
    tenant = tenantry.tenant(plan="pro")
    tenantry.provider.checkout("price_pro", customer=tenant.customer)
    found: dict[str, Any] = getattr(tenantry.provider, name)
    assert found
    found.clear()
    assert getattr(tenantry.provider, name)
