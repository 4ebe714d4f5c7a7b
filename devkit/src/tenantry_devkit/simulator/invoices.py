"""Invoices: made for a period, finalized, paid or not."""

from collections import Counter

from tenantry_devkit.simulator.account import Account
from tenantry_devkit.simulator.objects import Card, Invoice, Line, Subscription


class Invoicing:
    """Makes invoices and charges cards; what that means for the subscription is not its business."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.numbers: Counter[str] = Counter()
        """How many invoices each customer has had."""

    def draft(self, subscription: Subscription, reason: str) -> Invoice:
        """A draft for the subscription's present period, which costs nothing in a trial; nobody is told yet."""
        account = self._account
        customer = account.customers[subscription.customer]
        is_trial = subscription.status == "trialing"
        lines = tuple(
            Line(
                id=account.ids.new("il"),
                item=item,
                amount=0 if is_trial else item.price.unit_amount * item.quantity,
                period_start=subscription.period_start,
                period_end=subscription.period_end,
            )
            for item in subscription.items
        )
        invoice = Invoice(
            id=account.ids.new("in"),
            created=account.now,
            customer=customer.id,
            customer_email=customer.email,
            customer_name=customer.name,
            subscription=subscription.id,
            subscription_metadata=subscription.metadata,
            status="draft",
            billing_reason=reason,
            currency=subscription.items[0].price.currency,
            amount_due=sum(line.amount for line in lines),
            lines=lines,
            period_start=subscription.period_start,
            period_end=subscription.period_end,
        )
        account.add(invoice)
        return invoice

    def finalize(self, invoice: Invoice) -> Invoice:
        """Open a draft for payment."""
        account = self._account
        self.numbers[invoice.customer] += 1
        prefix = account.customers[invoice.customer].invoice_prefix
        return account.change(
            invoice,
            "invoice.finalized",
            status="open",
            number=f"{prefix}-{self.numbers[invoice.customer]:04}",
            hosted_invoice_url=f"{account.url}/i/{invoice.id}",
            finalized_at=account.now,
        )

    def can_pay(self, invoice: Invoice) -> bool:
        """Whether a charge would succeed."""
        return not invoice.amount_due or self._account.customers[invoice.customer].card is Card.WORKS

    def paid(self, invoice: Invoice) -> Invoice:
        """The money came in."""
        return self._account.change(
            invoice,
            "invoice.paid",
            "invoice.payment_succeeded",
            status="paid",
            amount_paid=invoice.amount_due,
            attempt_count=invoice.attempt_count + bool(invoice.amount_due),
            auto_advance=False,
            next_payment_attempt=None,
            paid_at=self._account.now,
        )

    def failed(self, invoice: Invoice, next_attempt: int | None) -> Invoice:
        """A charge was declined; the next one is at ``next_attempt``."""
        return self._account.change(
            invoice,
            "invoice.payment_failed",
            attempt_count=invoice.attempt_count + 1,
            auto_advance=next_attempt is not None,
            next_payment_attempt=next_attempt,
        )

    def void(self, invoice: Invoice) -> Invoice:
        """Nobody is to pay it any more."""
        return self._account.change(
            invoice,
            "invoice.voided",
            status="void",
            auto_advance=False,
            next_payment_attempt=None,
            voided_at=self._account.now,
        )
