"""Customers and their cards."""

from collections.abc import Mapping

from tenantry_devkit.simulator.account import Account
from tenantry_devkit.simulator.errors import missing
from tenantry_devkit.simulator.objects import Card, Customer
from tenantry_devkit.simulator.subscriptions import Subscriptions

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
