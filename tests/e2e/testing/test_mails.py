"""The mails that tests wait for."""

import pytest

from tenantry.db.connection import Connection
from tenantry_devkit.testing import MailError, SuiteTenantry
from tests.support.outbox import add_notification


def test_the_owner_of_a_tenant_gets_a_mail_when_a_payment_fails(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant("Acme & Söhne", plan="pro")
    tenantry.events.payment_failed(tenant, amount=1250, invoice_url="https://pay.example/i/1")
    [mail] = tenant.mails()
    assert mail.to == tenant.owner_email
    assert "https://pay.example/i/1" in mail.text
    assert "12.50 EUR" in mail.text
    assert "Acme & Söhne" in mail.text


def test_no_mail_without_a_request(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant(plan="pro")
    tenantry.events.payment_succeeded(tenant)
    assert tenant.mails(within=0) == []


def test_mails_of_one_tenant_of_an_address_and_of_all(tenantry: SuiteTenantry) -> None:
    one, other = tenantry.tenant("One"), tenantry.tenant("Other")
    for tenant in (one, other, one):
        tenantry.events.payment_failed(tenant)
    assert [mail.to for mail in tenantry.mails(one)] == [one.owner_email, one.owner_email]
    assert [mail.to for mail in tenantry.mails(other.owner_email)] == [other.owner_email]
    assert [mail.to for mail in tenantry.mails()] == [
        one.owner_email,
        other.owner_email,
        one.owner_email,
    ]
    assert tenantry.mails("missing@acme.example") == []


async def test_missing_mail_is_reported_with_its_status(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant()
    async with await Connection.connect(tenantry.environment["DATABASE_URL"]) as connection:
        # without the job that would deliver it
        notification = await add_notification(connection, tenant.id)
    with pytest.raises(
        MailError, match=rf"1 of 1 mails have not arrived within 0 s: {notification} is queued"
    ):
        tenant.mails(within=0)
