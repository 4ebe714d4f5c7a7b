"""Customers, checkouts and portal sessions."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenantry_devkit.simulator.account import Account
from tenantry_devkit.simulator.billing import DAY, FirstPayment, SubscriptionBilling, declined
from tenantry_devkit.simulator.objects import Card, CheckoutSession, Customer, PortalSession, Price
from tenantry_devkit.simulator.requests import ApiError, check_url, found, missing

CHECKOUT_MODES: Final = ("subscription", "payment")
_PREFIX_LENGTH: Final = 8


class Storefront:
    """Creates customers and sessions. A completed checkout creates its customer, if it has none, and subscription."""

    def __init__(self, account: Account, billing: SubscriptionBilling) -> None:
        self._account = account
        self._billing = billing
        account.agenda.register(expire_checkout=self._expire_if_open)

    def create_customer(
        self,
        *,
        customer_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        card: Card = Card.WORKS,
        email: str | None = None,
        name: str | None = None,
        description: str | None = None,
    ) -> Customer:
        account = self._account
        fresh = account.ids.new("cus")
        customer = Customer(
            id=customer_id or fresh,
            created=account.now,
            payment_method=account.ids.new("pm"),
            invoice_prefix=fresh[-_PREFIX_LENGTH:].upper(),
            metadata=dict(metadata or {}),
            card=card,
            email=email,
            name=name,
            description=description,
        )
        return account.add(customer, "customer.created")

    def customer(self, customer_id: str, *, param: str = "id") -> Customer:
        """Return a customer; raises `ApiError` if it does not exist or is deleted."""
        customer = self._account.customers.get(customer_id)
        if customer is None or customer.deleted:
            raise missing("customer", customer_id, param=param)
        return customer

    def update_customer(self, customer_id: str, metadata: Mapping[str, str], **fields: object) -> Customer:
        """Change the given fields; an empty metadata value removes its key."""
        before = self.customer(customer_id)
        merged = {key: value for key, value in {**before.metadata, **metadata}.items() if value}
        return self._account.change(before, "customer.updated", metadata=merged, **fields)

    def set_card(self, customer_id: str, card: Card) -> Customer:
        """Set whether future charges succeed; this emits no event."""
        return self._account.change(self.customer(customer_id), card=card)

    def delete_customer(self, customer_id: str) -> Customer:
        """Delete a customer and end the subscriptions at once."""
        account = self._account
        customer = self.customer(customer_id)
        for subscription in list(account.subscriptions.values()):
            if subscription.customer == customer_id and not subscription.has_ended:
                self._billing.cancel_subscription(subscription.id)
        account.emit("customer.deleted", customer)
        return account.change(customer, deleted=True)

    def create_checkout(
        self,
        prices: Sequence[tuple[Price, int]],
        *,
        success_url: str | None,
        cancel_url: str | None,
        **fields: Any,  # noqa: ANN401  # those of CheckoutSession
    ) -> CheckoutSession:
        """Create a session, open for a day; raises `ApiError` for a malformed URL."""
        account = self._account
        check_url(success_url, "success_url")
        check_url(cancel_url, "cancel_url")
        session_id = account.ids.new("cs_test")
        session = CheckoutSession(
            id=session_id,
            created=account.now,
            expires_at=account.now + DAY,
            url=f"{account.url}/c/pay/{session_id}",
            prices=tuple(prices),
            success_url=success_url and success_url.replace("{CHECKOUT_SESSION_ID}", session_id),
            cancel_url=cancel_url,
            **fields,
        )
        account.agenda.add(session.expires_at, "expire_checkout", session_id)
        return account.add(session)

    def complete_checkout(self, session_id: str, card: Card = Card.WORKS) -> CheckoutSession:
        """Pay with this card. Raises `ApiError` if it declines (the session stays open) or the session is not open."""
        account, session = self._account, self._open_session(session_id)
        if card is Card.DECLINES:
            raise declined()
        fields: dict[str, Any] = {"status": "complete", "url": None, "payment_status": "paid"}
        customer = session.customer or self.create_customer(email=session.customer_email).id
        self.set_card(customer, card)
        if session.mode == "subscription":
            subscription = self._billing.subscribe(
                customer,
                session.prices,
                metadata=session.subscription_metadata,
                trial_end=account.now + session.trial_days * DAY if session.trial_days else None,
                first_payment=FirstPayment.CHECKOUT,
            )
            fields |= {"subscription": subscription.id, "invoice": subscription.latest_invoice}
            if session.trial_days or not session.amount:
                fields["payment_status"] = "no_payment_required"
        return account.change(session, "checkout.session.completed", customer=customer, **fields)

    def expire_checkout(self, session_id: str) -> CheckoutSession:
        """End an open session; raises `ApiError` if it is not open."""
        session = self._open_session(session_id)
        return self._account.change(session, "checkout.session.expired", status="expired", url=None)

    def open_portal(self, customer_id: str, return_url: str | None) -> PortalSession:
        """Create a portal session; raises `ApiError` for an unknown customer or a bad URL."""
        account = self._account
        check_url(return_url, "return_url")
        customer, session_id = self.customer(customer_id, param="customer").id, account.ids.new("bps")
        url = f"{account.url}/p/session/{session_id}"
        session = PortalSession(id=session_id, created=account.now, customer=customer, url=url, return_url=return_url)
        account.portal_sessions[session_id] = session
        return session

    def _open_session(self, session_id: str) -> CheckoutSession:
        session = found(self._account.checkout_sessions, "checkout.session", session_id)
        if session.status != "open":
            raise ApiError(400, f"This Checkout Session is {session.status} and cannot be used any more.")
        return session

    def _expire_if_open(self, session_id: str) -> None:
        if self._account.checkout_sessions[session_id].status == "open":
            self.expire_checkout(session_id)
