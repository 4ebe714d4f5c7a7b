"""Invoices: payment, retries, and their effect on the subscription's status."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from msgspec.structs import replace

from tenantry_devkit.simulator.account import Account, ApiError
from tenantry_devkit.simulator.objects import (
    BillingMode,
    Card,
    Customer,
    Invoice,
    Line,
    Price,
    Subscription,
    id_of,
)

DAY: Final = 86_400
SUBSCRIPTION_UPDATED: Final = "customer.subscription.updated"


@dataclass(frozen=True)
class Rules:
    """The account's billing settings.

    A failed payment is retried after each of ``retry_days``. After the last failure the
    subscription is canceled, becomes ``unpaid``, or stays ``past_due``. New subscriptions have
    ``billing_mode``, unless they are given another.
    """

    retry_days: tuple[int, ...] = (3, 5, 7)
    when_retries_end: Literal["cancel", "unpaid", "past_due"] = "cancel"
    billing_mode: BillingMode = "classic"


class InvoiceBilling:
    """Creates and collects the invoices of subscriptions. It schedules retries on the account's
    agenda.
    """

    def __init__(self, account: Account, rules: Rules, url: str) -> None:
        self.account = account
        self.url = url
        """The address where it is served, without a slash at the end; those of hosted pages begin
        with it.
        """
        self.prices: Mapping[str, Price] = account.table(Price)
        self.customers: Mapping[str, Customer] = account.table(Customer)
        self.subscriptions: Mapping[str, Subscription] = account.table(Subscription)
        """All subscriptions by id, oldest first, including ended ones."""
        self.invoices: Mapping[str, Invoice] = account.table(Invoice)
        self._rules = rules
        self._actions: dict[str, Callable[..., None]] = {
            "expire_incomplete": self._expire_incomplete,
            "retry": self._retry,
        }

    def pay(self, invoice: Invoice | str) -> Invoice:
        """Charge the customer for an open invoice now; raises `ApiError` if it is not open or the
        card declines.
        """
        invoice = self.account.find(Invoice, id_of(invoice))
        if invoice.status == "draft":
            invoice = self._finalize(invoice)
        if invoice.status == "paid":
            raise ApiError(400, "Invoice is already paid", code="invoice_already_paid")
        _check_status(invoice, {"open", "uncollectible"}, "paid")
        if not self._can_pay(invoice):
            # only automatic attempts count
            self.account.emit("invoice.payment_failed", invoice)
            raise declined()
        return self._settle(invoice)

    def void_invoice(self, invoice: Invoice | str) -> Invoice:
        """Void an open or uncollectible invoice; raises `ApiError` for others.

        Void invoices do not count for the subscription's status. An incomplete subscription expires
        with its invoice.
        """
        found = self.account.find(Invoice, id_of(invoice))
        _check_status(found, {"open", "uncollectible"}, "voided")
        if self.subscriptions[found.subscription].status == "incomplete":
            self._expire_incomplete(found.subscription)
        else:
            self._void(found)
            self._recover(found.subscription)
        return self.invoices[found.id]

    def mark_uncollectible(self, invoice: Invoice | str) -> Invoice:
        """Write off an open invoice; raises `ApiError` for others. Its subscription counts as
        paid.
        """
        found = self.account.find(Invoice, id_of(invoice))
        _check_status(found, {"open"}, "marked uncollectible")
        marked = self._write_off(found)
        self._recover(marked.subscription)
        return marked

    def _draft(self, subscription: Subscription, reason: str) -> Invoice:
        """Draft an invoice for the current period, which costs nothing in a trial. The caller emits
        its event.
        """
        invoice = self._billed(
            subscription, reason, self.account.now, is_free=subscription.status == "trialing"
        )
        return self.account.add(
            replace(invoice, auto_advance=subscription.pause_collection is None)
        )

    def preview(self, subscription: Subscription | str) -> Invoice:
        """Return the invoice of the next period, which is not kept; raises `ApiError` if there
        will be none.
        """
        current = self.account.find(Subscription, id_of(subscription), param="subscription")
        if current.has_ended or current.cancel_at == current.period_end:
            message = f"No upcoming invoices for customer: {current.customer}"
            raise ApiError(404, message, code="invoice_upcoming_none")
        invoice = self._billed(current, "upcoming", current.period_end)
        return replace(
            invoice, id=f"upcoming_{current.id}", next_payment_attempt=current.period_end
        )

    def _billed(
        self, subscription: Subscription, reason: str, created: int, *, is_free: bool = False
    ) -> Invoice:
        """Return what a period of a subscription costs, as a draft that is not kept."""
        account, customer = self.account, self.customers[subscription.customer]
        lines = tuple(
            Line(
                id=account.ids.new("il"),
                item=item,
                amount=0 if is_free else item.price.cost(item.quantity),
            )
            for item in subscription.items
        )
        charge = subscription.terms.charge(sum(line.amount for line in lines))
        return Invoice(
            id=account.ids.new("in"),
            created=created,
            customer=customer.id,
            customer_email=customer.email,
            customer_name=customer.name,
            subscription=subscription.id,
            subscription_metadata=subscription.metadata,
            status="draft",
            billing_reason=reason,
            currency=subscription.items[0].price.charged_currency,
            amount_due=charge.total,
            discount=charge.discount,
            tax=charge.tax,
            lines=lines,
            period_start=subscription.period_start,
            period_end=subscription.period_end,
        )

    def _finalize(self, invoice: Invoice) -> Invoice:
        """Open a draft for payment."""
        own = [
            each
            for each in self.invoices.values()
            if each.customer == invoice.customer and each.number
        ]
        prefix = self.customers[invoice.customer].invoice_prefix
        return self.account.change(
            invoice,
            "invoice.finalized",
            status="open",
            number=f"{prefix}-{len(own) + 1:04}",
            hosted_invoice_url=f"{self.url}/i/{invoice.id}",
            finalized_at=self.account.now,
        )

    def _can_pay(self, invoice: Invoice) -> bool:
        return not invoice.amount_due or self.customers[invoice.customer].card is Card.WORKS

    def _mark_paid(self, invoice: Invoice) -> Invoice:
        return self.account.change(
            invoice,
            "invoice.paid",
            "invoice.payment_succeeded",
            status="paid",
            amount_paid=invoice.amount_due,
            attempt_count=invoice.attempt_count + bool(invoice.amount_due),
            auto_advance=False,
            next_payment_attempt=None,
            paid_at=self.account.now,
        )

    def _mark_failed(self, invoice: Invoice, next_attempt: int | None = None) -> None:
        self.account.change(
            invoice,
            "invoice.payment_failed",
            attempt_count=invoice.attempt_count + 1,
            auto_advance=next_attempt is not None,
            next_payment_attempt=next_attempt,
        )

    def _void(self, invoice: Invoice) -> Invoice:
        return self._close(invoice, "void", "voided")

    def _write_off(self, invoice: Invoice) -> Invoice:
        return self._close(invoice, "uncollectible", "marked_uncollectible")

    def _close(self, invoice: Invoice, status: str, change: str) -> Invoice:
        """Stop collecting an invoice; ``change`` names the event and the field of its time."""
        return self.account.change(
            invoice,
            f"invoice.{change}",
            status=status,
            auto_advance=False,
            next_payment_attempt=None,
            **{f"{change}_at": self.account.now},
        )

    def _retry(self, invoice_id: str, moment: int) -> None:
        invoice = self.invoices[invoice_id]
        has_ended = self.subscriptions[invoice.subscription].has_ended
        if invoice.status == "open" and invoice.next_payment_attempt == moment and not has_ended:
            self._charge(invoice)

    def _charge(self, invoice: Invoice) -> None:
        """Charge an open invoice."""
        if self._can_pay(invoice):
            self._settle(invoice)
        else:
            self._fail(invoice)

    def _fail(self, invoice: Invoice) -> None:
        """Record a failed payment; schedule a retry or apply the rules."""
        account, retry_days = self.account, self._rules.retry_days[invoice.attempt_count :]
        moment = account.now + retry_days[0] * DAY if retry_days else None
        self._mark_failed(invoice, moment)
        status: str = self._rules.when_retries_end
        if moment is not None:
            account.plan(moment, "retry", invoice.id, moment)
            status = "past_due"
        subscription = self.subscriptions[invoice.subscription]
        if status == "cancel":
            self._end(subscription, "payment_failed")
        elif subscription.status != "unpaid":
            account.change(subscription, SUBSCRIPTION_UPDATED, status=status)

    def _settle(self, invoice: Invoice) -> Invoice:
        """Mark an invoice as paid; if it is the newest, its subscription becomes active again."""
        paid = self._mark_paid(invoice)
        self._recover(invoice.subscription)
        return paid

    def _recover(self, subscription_id: str) -> None:
        """Make a subscription active again if its newest invoice that is not void is paid or
        written off.
        """
        statuses = [
            each.status for each in self.invoices.values() if each.subscription == subscription_id
        ]
        newest = next((status for status in reversed(statuses) if status != "void"), "paid")
        subscription = self.subscriptions[subscription_id]
        is_unpaid = subscription.status in {"incomplete", "past_due", "unpaid"}
        if is_unpaid and newest in {"paid", "uncollectible"}:
            self.account.change(subscription, SUBSCRIPTION_UPDATED, status="active")

    def _expire_incomplete(self, subscription_id: str) -> None:
        account, subscription = self.account, self.subscriptions[subscription_id]
        if subscription.status == "incomplete":
            account.change(
                subscription,
                SUBSCRIPTION_UPDATED,
                status="incomplete_expired",
                ended_at=account.now,
            )
            self._void(self.invoices[subscription.latest_invoice or ""])

    def _end(self, before: Subscription, reason: str) -> Subscription:
        """Cancel a subscription now, and stop collecting its invoice."""
        account, now = self.account, self.account.now
        after = account.change(
            before,
            "customer.subscription.deleted",
            status="canceled",
            canceled_at=before.canceled_at or now,
            ended_at=now,
            cancellation_reason=reason,
        )
        invoice = self.invoices[after.latest_invoice or ""]
        if invoice.status in {"draft", "open"}:
            account.change(invoice, auto_advance=False, next_payment_attempt=None)
        return after


def declined() -> ApiError:
    return ApiError(
        402,
        "Your card was declined.",
        type="card_error",
        code="card_declined",
        decline_code="generic_decline",
    )


def _check_status(invoice: Invoice, allowed: Collection[str], aim: str) -> None:
    """Raise `ApiError` unless the invoice has an allowed status."""
    if invoice.status not in allowed:
        raise ApiError(
            400,
            f"The invoice is {invoice.status} and cannot be {aim}.",
            code="invoice_not_editable",
        )
