"""Tenants of the plugin: how they are made, and what can be done to them."""

import pytest

from tenantry_devkit.testing import SuiteTenantry
from tests.support.service import refusal

WHOAMI = "/api/v1/auth/whoami"


def test_a_new_tenant_is_on_free_and_has_never_subscribed(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant("Acme")
    assert (tenant.plan, tenant.subscription_status) == ("free", "none")
    assert tenant.record["name"] == "Acme"
    assert tenant.record["stripeCustomerId"] == tenant.customer


def test_each_tenant_is_another(tenantry: SuiteTenantry) -> None:
    one, other = tenantry.tenant(), tenantry.tenant()
    assert one.id != other.id
    tenantry.events.subscription_updated(one, "pro")
    assert (one.plan, other.plan) == ("pro", "free")


def test_a_tenant_on_a_plan_has_subscribed_at_the_provider(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant(plan="pro")
    assert (tenant.plan, tenant.subscription_status) == ("pro", "active")
    [subscription] = tenantry.provider.subscriptions.values()
    assert (subscription.customer, subscription.metadata) == (tenant.customer, {"orgId": tenant.id})


def test_a_tenant_in_its_trial(tenantry: SuiteTenantry) -> None:
    assert tenantry.tenant(plan="business", trial_days=14).subscription_status == "trialing"


def test_an_id_that_is_given_is_used(tenantry: SuiteTenantry) -> None:
    assert tenantry.tenant(tenant_id="acme-of-this-test").record["id"] == "acme-of-this-test"


def test_a_plan_that_is_not_in_the_catalog_is_named_and_makes_nothing(
    tenantry: SuiteTenantry,
) -> None:
    with pytest.raises(
        ValueError, match="no plan 'gold' with a price: the catalog has free, pro, business"
    ):
        tenantry.tenant(tenant_id="never-made", plan="gold")
    assert "never-made" not in str(tenantry.provider.customers)


def test_a_tenant_without_a_link_is_found_by_its_invoices_once_it_has_bought(
    tenantry: SuiteTenantry,
) -> None:
    tenant = tenantry.tenant(linked=False)
    tenantry.events.payment_failed(tenant)
    assert tenant.subscription_status == "none"
    tenantry.events.checkout_completed(tenant)
    assert tenant.record["stripeCustomerId"] == tenant.customer
    assert tenant.subscription_status == "past_due"


def test_a_suspended_tenant_is_refused_until_it_is_reinstated(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant()
    client = tenantry.client(tenant.key())
    tenant.suspend()
    assert refusal(client.get(WHOAMI)) == (403, "org_suspended")
    tenant.reinstate()
    assert client.get(WHOAMI).status_code == 200


def test_the_keys_of_an_ended_tenant_are_rejected(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant()
    client = tenantry.client(tenant.key())
    tenant.end()
    assert client.get(WHOAMI).status_code == 401
