"""Signed provider events about the tenants of tests, in both shapes of the provider's API."""

import secrets
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import httpx2
import msgspec
from msgspec.structs import replace

from tenantry.domain.billing.events import (
    CHECKOUT_COMPLETED,
    PAYMENT_FAILED,
    PAYMENT_SUCCEEDED,
    SUBSCRIPTION_DELETED,
    SUBSCRIPTION_UPDATED,
)
from tenantry.integrations.stripe.signature import sign
from tenantry_devkit.simulator import NEW_VERSION, CheckoutSession, Event, Invoice, Price, Subscription
from tenantry_devkit.simulator.delivery import event_body
from tenantry_devkit.simulator.objects import BillingObject, Item, Line
from tenantry_devkit.testing.errors import RefusedError
from tenantry_devkit.testing.provider import Provider
from tenantry_devkit.testing.tenants import Tenant

WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
_MONTH: Final = timedelta(days=30)
_AMOUNT: Final = 2900


class SentEvent(NamedTuple):
    """An event that the service has taken; ``created`` is in seconds since the Unix epoch."""

    id: str
    type: str
    created: int
    body: bytes


class Events:
    """Makes events and sends them to the service, which has handled them when a method returns.

    Each event is a second later than all before it, of the simulated provider's clock, unless ``created`` says when it
    was: a moment in the past makes a late event, or a stale one. ``api_version`` is the provider's, which decides the
    shape (`OLD_VERSION` or `NEW_VERSION` of `tenantry_devkit.simulator`). The methods named after events raise
    `RefusedError` when the service does not answer 200.
    """

    def __init__(
        self, http: httpx2.Client, secret: str, provider: Provider, price_of: Callable[[str], str | None]
    ) -> None:
        self._http = http
        self._secret = secret
        self._provider = provider
        self._price_of = price_of

    def subscription_updated(
        self,
        tenant: Tenant,
        plan: str | None = None,
        *,
        status: str = "active",
        period_end: datetime | None = None,
        cancel_at_period_end: bool = False,
        created: datetime | int | None = None,
        api_version: str = NEW_VERSION,
    ) -> SentEvent:
        """A ``customer.subscription.updated``: the tenant's subscription is to this plan now (as before, without one).

        ``period_end`` is in 30 days by default.
        """
        moment = self._moment(created)
        subscription = replace(
            self._subscription(tenant, plan or tenant.plan, moment),
            status=status,
            period_end=int(period_end.timestamp()) if period_end else moment + int(_MONTH.total_seconds()),
            cancel_at_period_end=cancel_at_period_end,
        )
        return self._tell(SUBSCRIPTION_UPDATED, subscription, moment, api_version, passes=created is None)

    def subscription_deleted(
        self, tenant: Tenant, *, created: datetime | int | None = None, api_version: str = NEW_VERSION
    ) -> SentEvent:
        """A ``customer.subscription.deleted``: it has ended, the tenant is on ``free`` and canceled."""
        moment = self._moment(created)
        subscription = replace(
            self._subscription(tenant, tenant.plan, moment), status="canceled", canceled_at=moment, ended_at=moment
        )
        return self._tell(SUBSCRIPTION_DELETED, subscription, moment, api_version, passes=created is None)

    def payment_failed(
        self,
        tenant: Tenant,
        *,
        amount: int = _AMOUNT,
        invoice_url: str | None = "https://invoice.example/i/unpaid",
        created: datetime | int | None = None,
        api_version: str = NEW_VERSION,
    ) -> SentEvent:
        """An ``invoice.payment_failed``: the tenant is past due, and its owner gets a mail that leads to the invoice.

        ``amount`` is in cents.
        """
        moment = self._moment(created)
        invoice = self._invoice(tenant, amount, moment, status="open", hosted_invoice_url=invoice_url)
        return self._tell(PAYMENT_FAILED, invoice, moment, api_version, passes=created is None)

    def payment_succeeded(
        self,
        tenant: Tenant,
        *,
        amount: int = _AMOUNT,
        created: datetime | int | None = None,
        api_version: str = NEW_VERSION,
    ) -> SentEvent:
        """An ``invoice.payment_succeeded``: a tenant that was past due is so no longer."""
        moment = self._moment(created)
        invoice = self._invoice(tenant, amount, moment, status="paid", amount_paid=amount, paid_at=moment)
        return self._tell(PAYMENT_SUCCEEDED, invoice, moment, api_version, passes=created is None)

    def checkout_completed(
        self,
        tenant: Tenant,
        plan: str = "pro",
        *,
        created: datetime | int | None = None,
        api_version: str = NEW_VERSION,
    ) -> SentEvent:
        """A ``checkout.session.completed``: the tenant's customer is linked to it."""
        moment = self._moment(created)
        subscription = self._subscription(tenant, plan, moment)
        session = CheckoutSession(
            id=_new("cs_test"),
            created=moment,
            expires_at=moment + int(timedelta(days=1).total_seconds()),
            mode="subscription",
            url=None,
            prices=((subscription.items[0].price, 1),),
            customer=tenant.customer,
            customer_email=tenant.owner_email,
            metadata={"orgId": tenant.id},
            status="complete",
            payment_status="paid",
            subscription=subscription.id,
        )
        return self._tell(CHECKOUT_COMPLETED, session, moment, api_version, passes=created is None)

    def send(self, event: SentEvent | Mapping[str, Any] | bytes, *, signature: str | None = None) -> httpx2.Response:
        """Send anything, once more or for the first time, and return the service's answer, whatever it is.

        It is signed as by `sign`, unless another ``signature`` is given; an empty one is left out.
        """
        body = _body(event)
        headers = {"Content-Type": "application/json; charset=utf-8"}
        header = self.sign(body) if signature is None else signature
        if header:
            headers["Provider-Signature"] = header
        return self._http.post(WEBHOOK, content=body, headers=headers)

    def sign(self, body: bytes, *, at: datetime | None = None, secret: str | None = None) -> str:
        """The signature header of a body, made now or ``at`` another time, with the service's secret or another."""
        return sign(body, secret or self._secret, int(at.timestamp() if at else time.time()))

    def _moment(self, created: datetime | int | None) -> int:
        """The second in which an event happens."""
        if created is None:
            self._provider.advance(seconds=1)
            return int(self._provider.now.timestamp())
        return created if isinstance(created, int) else int(created.timestamp())

    def _tell(self, event_type: str, thing: BillingObject, moment: int, api_version: str, *, passes: bool) -> SentEvent:
        event = Event(id=_new("evt"), type=event_type, created=moment, object=thing, pending_webhooks=1)
        sent = SentEvent(event.id, event_type, moment, event_body(event, api_version))
        response = self.send(sent)
        if not response.is_success:
            raise RefusedError(response)
        if passes:
            self._provider.advance(seconds=1)  # what the provider does next is later than what was made up
        return sent

    def _subscription(self, tenant: Tenant, plan: str, moment: int) -> Subscription:
        """The tenant's subscription as the simulated provider has it, or one that it might have, to this plan."""
        known = [each for each in self._provider.subscriptions.values() if each.customer == tenant.customer]
        price = Price(
            id=self._price_of(plan) or "price_unknown", created=moment, product=f"prod_{plan}", unit_amount=_AMOUNT
        )
        if known:
            first = replace(known[-1].items[0], price=price)
            return replace(known[-1], items=(first, *known[-1].items[1:]))
        return Subscription(
            id=tenant.subscription_id,
            created=moment,
            customer=tenant.customer,
            status="active",
            items=(Item(id=f"si_{tenant.subscription_id}", created=moment, price=price),),
            anchor=moment,
            period_start=moment,
            period_end=moment + int(_MONTH.total_seconds()),
            metadata={"orgId": tenant.id},
        )

    def _invoice(self, tenant: Tenant, amount: int, moment: int, **fields: Any) -> Invoice:  # noqa: ANN401
        subscription = self._subscription(tenant, tenant.plan, moment)
        invoice_id = _new("in")
        line = Line(
            id=_new("il"),
            item=subscription.items[0],
            amount=amount,
            period_start=subscription.period_start,
            period_end=subscription.period_end,
        )
        invoice = Invoice(
            id=invoice_id,
            created=moment,
            customer=tenant.customer,
            customer_email=tenant.owner_email,
            customer_name=tenant.name,
            subscription=subscription.id,
            subscription_metadata=subscription.metadata,
            status="open",
            billing_reason="subscription_cycle",
            currency="eur",
            amount_due=amount,
            lines=(line,),
            period_start=subscription.period_start,
            period_end=subscription.period_end,
            attempt_count=1,
            finalized_at=moment,
            hosted_invoice_url=f"https://invoice.example/i/{invoice_id}",
        )
        return replace(invoice, **fields)


def _new(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _body(event: SentEvent | Mapping[str, Any] | bytes) -> bytes:
    if isinstance(event, SentEvent):
        return event.body
    return event if isinstance(event, bytes) else msgspec.json.encode(event)
