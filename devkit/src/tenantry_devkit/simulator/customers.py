"""Customers of the simulated provider, and their checkouts."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenantry_devkit.simulator.account import Account
from tenantry_devkit.simulator.api_requests import ApiError, check_url, missing
from tenantry_devkit.simulator.objects import Card, CheckoutSession, Customer, Price
from tenantry_devkit.simulator.subscriptions import DAY, FirstPayment, Subscriptions, declined

_PREFIX_LENGTH = 8


class Customers:
    """Makes, changes and deletes customers."""

    def __init__(self, account: Account, subscriptions: Subscriptions) -> None:
        self._account = account
        self._subscriptions = subscriptions

    def create(
        self,
        *,
        customer_id: str | None = None,
        email: str | None = None,
        name: str | None = None,
        description: str | None = None,
        metadata: Mapping[str, str] | None = None,
        card: Card = Card.WORKS,
    ) -> Customer:
        """A new customer, whose card answers as ``card`` says."""
        account = self._account
        fresh = account.ids.new("cus")
        customer = Customer(
            id=customer_id or fresh,
            created=account.now,
            payment_method=account.ids.new("pm"),
            invoice_prefix=fresh[-_PREFIX_LENGTH:].upper(),
            email=email,
            name=name,
            description=description,
            metadata=dict(metadata or {}),
            card=card,
        )
        account.add(customer, "customer.created")
        return customer

    def living(self, customer_id: str, *, param: str = "id") -> Customer:
        """The customer; raises `ApiError` if there is none, or it is deleted."""
        customer = self._account.customers.get(customer_id)
        if customer is None or customer.deleted:
            raise missing("customer", customer_id, param=param)
        return customer

    def update(self, customer_id: str, metadata: Mapping[str, str], **fields: object) -> Customer:
        """Change what is given; an empty metadata value takes its key away."""
        before = self.living(customer_id)
        merged = {key: value for key, value in {**before.metadata, **metadata}.items() if value}
        return self._account.change(before, "customer.updated", metadata=merged, **fields)

    def use_card(self, customer_id: str, card: Card) -> Customer:
        """From now on the customer's card answers so; nobody is told."""
        return self._account.change(self.living(customer_id), card=card)

    def delete(self, customer_id: str) -> Customer:
        """Delete a customer; the subscriptions end at once."""
        account = self._account
        customer = self.living(customer_id)
        for subscription in list(account.subscriptions.values()):
            if subscription.customer == customer_id and not subscription.has_ended:
                self._subscriptions.cancel(subscription.id)
        account.emit("customer.deleted", customer)
        return account.change(customer, deleted=True)


MODES: Final = ("subscription", "payment")


class Checkouts:
    """Makes sessions; a completed one makes the customer, if it has none yet, and in subscription mode the rest."""

    def __init__(self, account: Account, customers: Customers, subscriptions: Subscriptions) -> None:
        self._account = account
        self._customers = customers
        self._subscriptions = subscriptions
        account.agenda.register(expire_checkout=self._expire_if_open)

    def create(
        self,
        prices: Sequence[tuple[Price, int]],
        *,
        mode: str = "subscription",
        customer: str | None = None,
        customer_email: str | None = None,
        client_reference_id: str | None = None,
        metadata: Mapping[str, str],
        subscription_metadata: Mapping[str, str],
        trial_days: int = 0,
        success_url: str | None = None,
        cancel_url: str | None = None,
    ) -> CheckoutSession:
        """Begin a session; it is open for a day. Raises `ApiError` for an address that a browser cannot be sent to."""
        account = self._account
        check_url(success_url, "success_url")
        check_url(cancel_url, "cancel_url")
        session_id = account.ids.new("cs_test")
        session = CheckoutSession(
            id=session_id,
            created=account.now,
            expires_at=account.now + DAY,
            mode=mode,
            url=f"{account.url}/c/pay/{session_id}",
            prices=tuple(prices),
            success_url=success_url and success_url.replace("{CHECKOUT_SESSION_ID}", session_id),
            cancel_url=cancel_url,
            customer=customer,
            customer_email=customer_email,
            client_reference_id=client_reference_id,
            metadata=dict(metadata),
            subscription_metadata=dict(subscription_metadata),
            trial_days=trial_days,
        )
        account.add(session)
        account.agenda.add(session.expires_at, "expire_checkout", session_id)
        return session

    def complete(self, session_id: str, card: Card = Card.WORKS) -> CheckoutSession:
        """The buyer pays with this card. Raises `ApiError` when it declines (the session stays open) or it is over."""
        account, session = self._account, self._open(session_id)
        if card is Card.DECLINES:
            raise declined()
        fields: dict[str, Any] = {"status": "complete", "url": None, "payment_status": "paid"}
        customer = session.customer or self._customers.create(email=session.customer_email).id
        self._customers.use_card(customer, card)
        if session.mode == "subscription":
            subscription = self._subscriptions.create(
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

    def expire(self, session_id: str) -> CheckoutSession:
        """End an open session; raises `ApiError` if it is over."""
        return self._account.change(
            self._open(session_id), "checkout.session.expired", status="expired", url=None
        )  # fmt: skip

    def _open(self, session_id: str) -> CheckoutSession:
        session = self._account.checkout_sessions[session_id]
        if session.status != "open":
            raise ApiError(400, f"This Checkout Session is {session.status} and cannot be used any more.")
        return session

    def _expire_if_open(self, session_id: str) -> None:
        if self._account.checkout_sessions[session_id].status == "open":
            self.expire(session_id)
