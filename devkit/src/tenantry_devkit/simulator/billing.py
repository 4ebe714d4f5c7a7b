"""Prices, subscriptions and invoices: trials, renewals, failed payments, cancellation."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

from msgspec.structs import replace

from tenantry_devkit.simulator.account import Account, ApiError, missing, period_end
from tenantry_devkit.simulator.objects import Card, Invoice, Item, Line, Price, Subscription, merged

DAY: Final = 86_400
_TRIAL_WARNING: Final = 3 * DAY
_FIRST_PAYMENT_TIME: Final = 23 * 3600
_UPDATED: Final = "customer.subscription.updated"


@dataclass(frozen=True)
class Rules:
    """The account's billing settings.

    A failed payment is retried after each of ``retry_days``. After the last failure the subscription is canceled,
    becomes ``unpaid``, or stays ``past_due``. A renewal's invoice is a draft for ``draft_seconds``.
    """

    retry_days: tuple[int, ...] = (3, 5, 7)
    when_retries_end: Literal["cancel", "unpaid", "past_due"] = "cancel"
    draft_seconds: int = 0


class FirstPayment(StrEnum):
    """How a new subscription's first invoice is paid (the provider's ``payment_behavior``)."""

    ALLOW_INCOMPLETE = "allow_incomplete"
    """Charged before the first event; the subscription is ``incomplete`` if that fails."""
    ERROR_IF_INCOMPLETE = "error_if_incomplete"
    """The same, but nothing is created if that fails."""
    DEFAULT_INCOMPLETE = "default_incomplete"
    """Not charged: the subscription is ``incomplete`` until it is paid."""
    CHECKOUT = "checkout"
    """As in a checkout: first ``incomplete``, then charged."""


class ItemChange(NamedTuple):
    """A change to the item ``id``, or a new item without one."""

    id: str | None = None
    price: Price | None = None
    quantity: int | None = None
    deleted: bool = False


class SubscriptionBilling:
    """Creates prices and subscriptions. It schedules their future on the account's agenda."""

    def __init__(self, account: Account, rules: Rules) -> None:
        self._account = account
        self._rules = rules
        self.invoice_counts: Counter[str] = Counter()
        """The number of invoices of each customer."""
        account.agenda.register(
            expire_incomplete=self._expire_incomplete,
            warn_of_trial_end=self._warn_of_trial_end,
            end_period=self._end_period,
            collect=self._collect,
            retry=self._retry,
        )

    def add_price(self, unit_amount: int, *, price_id: str | None = None, **fields: Any) -> Price:  # noqa: ANN401
        """Create a price, or replace the one with this id for new subscriptions; ``fields`` are those of `Price`."""
        account = self._account
        price_id = price_id or account.ids.new("price")
        product = fields.pop("product", None) or account.ids.new("prod")
        price = Price(id=price_id, created=account.now, product=product, unit_amount=unit_amount, **fields)
        return account.add(price, "price.created")

    def subscribe(
        self,
        customer: str,
        prices: Sequence[tuple[Price, int]],
        *,
        metadata: Mapping[str, str],
        trial_end: int | None = None,
        cancel_at_period_end: bool = False,
        first_payment: FirstPayment = FirstPayment.ALLOW_INCOMPLETE,
    ) -> Subscription:
        """Subscribe a customer to prices with quantities; raises `ApiError` if a payment fails that must succeed."""
        account, now = self._account, self._account.now
        first = prices[0][0]
        end = trial_end or period_end(now, first.interval, first.interval_count, now)
        cost = 0 if trial_end else sum(price.unit_amount * quantity for price, quantity in prices)
        if first_payment is FirstPayment.ERROR_IF_INCOMPLETE and cost and self._declines(customer):
            raise declined()
        subscription = Subscription(
            id=account.ids.new("sub"),
            created=now,
            customer=customer,
            status="trialing" if trial_end else "incomplete",
            items=tuple(
                Item(id=account.ids.new("si"), created=now, price=price, quantity=quantity)
                for price, quantity in prices
            ),
            anchor=end if trial_end else now,
            period_start=now,
            period_end=end,
            metadata=dict(metadata),
            trial_start=now if trial_end else None,
            trial_end=trial_end,
            **_cancellation(end, now) if cancel_at_period_end else {},
        )
        invoice = self._draft(subscription, "subscription_create")
        at_once = first_payment in {FirstPayment.ALLOW_INCOMPLETE, FirstPayment.ERROR_IF_INCOMPLETE}
        fields: dict[str, Any] = {"latest_invoice": invoice.id}
        if not trial_end and self._can_pay(invoice) and (at_once or not cost):
            fields["status"] = "active"
        if at_once:
            fields["default_payment_method"] = account.customers[customer].payment_method
        account.add(subscription)
        subscription = account.change(subscription, **fields)
        account.emit("customer.subscription.created", subscription)
        account.emit("invoice.created", invoice)
        invoice = self._finalize(invoice)
        if at_once or not invoice.amount_due:
            self._charge_first(invoice)
        if first_payment is FirstPayment.CHECKOUT:
            self._complete(subscription, invoice)
        subscription = account.subscriptions[subscription.id]
        if subscription.status == "incomplete":
            account.agenda.add(now + _FIRST_PAYMENT_TIME, "expire_incomplete", subscription.id)
        if trial_end:
            warning = max(now, trial_end - _TRIAL_WARNING)
            account.agenda.add(warning, "warn_of_trial_end", subscription.id, trial_end)
        self._schedule_period_end(subscription)
        return account.subscriptions[subscription.id]

    def update_subscription(
        self,
        subscription_id: str,
        *,
        items: Sequence[ItemChange] = (),
        metadata: Mapping[str, str | None] | None = None,
        cancel_at_period_end: bool | None = None,
        end_trial: bool = False,
    ) -> Subscription:
        """Change the given fields; raises `ApiError` for an ended subscription.

        There are no prorations: a new price counts from the next invoice, unless its interval is different. Then a new
        period begins, and is charged, at once. An empty metadata value removes its key.
        """
        account = self._account
        before = self.active_subscription(subscription_id)
        fields: dict[str, Any] = {}
        if items:
            fields["items"] = self._changed_items(before, items)
        if metadata is not None:
            fields["metadata"] = merged(before.metadata, metadata)
        if cancel_at_period_end is not None and cancel_at_period_end != before.cancel_at_period_end:
            ends = _cancellation(before.period_end, account.now)
            fields |= ends if cancel_at_period_end else dict.fromkeys(ends)
            fields["cancel_at_period_end"] = cancel_at_period_end
        begins_period = False
        if items and before.status != "trialing":
            begins_period = _interval(fields["items"]) != _interval(before.items)
        if end_trial and before.status == "trialing":
            fields |= {"trial_end": account.now}
            begins_period = True
        if not begins_period:
            return account.change(before, _UPDATED, **fields)
        self._begin_period(before, account.now, anchor=account.now, reason="subscription_update", fields=fields)
        return account.subscriptions[subscription_id]

    def cancel_subscription(self, subscription_id: str, reason: str = "cancellation_requested") -> Subscription:
        """End it now, and stop collecting its invoice. Raises `ApiError` for an ended subscription."""
        account, now = self._account, self._account.now
        before = self.active_subscription(subscription_id)
        after = account.change(
            before,
            "customer.subscription.deleted",
            status="canceled",
            canceled_at=before.canceled_at or now,
            ended_at=now,
            cancellation_reason=reason,
        )
        invoice = account.invoices[after.latest_invoice or ""]
        if invoice.status in {"draft", "open"}:
            account.change(invoice, auto_advance=False, next_payment_attempt=None)
        return after

    def active_subscription(self, subscription_id: str) -> Subscription:
        """Return a subscription; raises `ApiError` if it does not exist or has ended."""
        subscription = self._account.find(Subscription, subscription_id)
        if subscription.has_ended:
            raise missing(Subscription, subscription_id)
        return subscription

    def pay(self, invoice_id: str) -> Invoice:
        """Charge the customer for an open invoice; raises `ApiError` if it is not open or the card declines."""
        invoice = self._account.find(Invoice, invoice_id)
        if invoice.status == "draft":
            invoice = self._finalize(invoice)
        if invoice.status == "paid":
            raise ApiError(400, "Invoice is already paid", code="invoice_already_paid")
        if invoice.status != "open":
            raise ApiError(400, f"The invoice is {invoice.status} and cannot be paid.", code="invoice_not_editable")
        if not self._can_pay(invoice):
            # only automatic attempts count
            self._account.emit("invoice.payment_failed", invoice)
            raise declined()
        return self._settle(invoice)

    def _declines(self, customer: str) -> bool:
        return self._account.customers[customer].card is Card.DECLINES

    def _draft(self, subscription: Subscription, reason: str) -> Invoice:
        """Draft an invoice for the current period, which costs nothing in a trial. The caller emits its event."""
        account = self._account
        customer = account.customers[subscription.customer]
        is_trial = subscription.status == "trialing"
        period: dict[str, Any] = {"period_start": subscription.period_start, "period_end": subscription.period_end}
        lines = tuple(
            Line(
                id=account.ids.new("il"),
                item=item,
                amount=0 if is_trial else item.price.unit_amount * item.quantity,
                **period,
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
            **period,
        )
        return account.add(invoice)

    def _finalize(self, invoice: Invoice) -> Invoice:
        """Open a draft for payment."""
        account = self._account
        self.invoice_counts[invoice.customer] += 1
        prefix = account.customers[invoice.customer].invoice_prefix
        return account.change(
            invoice,
            "invoice.finalized",
            status="open",
            number=f"{prefix}-{self.invoice_counts[invoice.customer]:04}",
            hosted_invoice_url=f"{account.url}/i/{invoice.id}",
            finalized_at=account.now,
        )

    def _can_pay(self, invoice: Invoice) -> bool:
        return not invoice.amount_due or not self._declines(invoice.customer)

    def _mark_paid(self, invoice: Invoice) -> Invoice:
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

    def _mark_failed(self, invoice: Invoice, next_attempt: int | None) -> None:
        self._account.change(
            invoice,
            "invoice.payment_failed",
            attempt_count=invoice.attempt_count + 1,
            auto_advance=next_attempt is not None,
            next_payment_attempt=next_attempt,
        )

    def _charge_first(self, invoice: Invoice) -> None:
        if self._can_pay(invoice):
            self._mark_paid(invoice)
        else:
            self._mark_failed(invoice, None)

    def _complete(self, subscription: Subscription, invoice: Invoice) -> None:
        """Set the payment method and charge it, as at the end of a checkout."""
        account = self._account
        if invoice.amount_due:
            self._charge_first(invoice)
        fields = {"default_payment_method": account.customers[subscription.customer].payment_method}
        if account.invoices[invoice.id].status == "paid" and subscription.status == "incomplete":
            fields["status"] = "active"
        account.change(subscription, _UPDATED, **fields)

    def _changed_items(self, subscription: Subscription, changes: Sequence[ItemChange]) -> tuple[Item, ...]:
        account = self._account
        items = {item.id: item for item in subscription.items}
        for change in changes:
            old = items.get(change.id or "")
            if change.id is not None and old is None:
                raise missing(Item, change.id, param="items[0][id]")
            if change.deleted and change.id is not None:
                del items[change.id]
                continue
            price = change.price or (old.price if old else None)
            if price is None:
                raise ApiError(400, "Missing required param: items[0][price].", code="parameter_missing")
            item_id = change.id or account.ids.new("si")
            created, quantity = (old.created, old.quantity) if old else (account.now, 1)
            if change.quantity is not None:
                quantity = change.quantity
            items[item_id] = Item(id=item_id, created=created, price=price, quantity=quantity)
        if not items:
            raise ApiError(400, "A subscription must have at least one active item.")
        return tuple(items.values())

    def _schedule_period_end(self, subscription: Subscription) -> None:
        end = subscription.period_end
        self._account.agenda.add(end, "end_period", subscription.id, end)

    def _end_period(self, subscription_id: str, end: int) -> None:
        subscription = self._account.subscriptions[subscription_id]
        if subscription.has_ended or subscription.period_end != end or subscription.status == "incomplete":
            return
        if subscription.cancel_at_period_end:
            self.cancel_subscription(subscription_id)
        else:
            self._begin_period(subscription, end, anchor=subscription.anchor, reason="subscription_cycle", fields={})

    def _begin_period(
        self, before: Subscription, start: int, *, anchor: int, reason: str, fields: dict[str, Any]
    ) -> None:
        """Begin and bill the next period; an unpaid subscription is not billed."""
        account = self._account
        items: tuple[Item, ...] = fields.get("items", before.items)
        price = items[0].price
        fields = {
            **fields,
            "anchor": anchor,
            "period_start": start,
            "period_end": period_end(anchor, price.interval, price.interval_count, start),
        }
        if before.status == "trialing":
            fields["status"] = "active"
        if before.cancel_at_period_end and fields.get("cancel_at_period_end") is not False:
            fields["cancel_at"] = fields["period_end"]
        invoice = None
        if before.status != "unpaid":
            invoice = self._draft(replace(before, **fields), reason)
            fields["latest_invoice"] = invoice.id
        after = account.change(before, _UPDATED, **fields)
        self._schedule_period_end(after)
        if invoice is not None:
            account.emit("invoice.created", invoice)
            if self._rules.draft_seconds and reason == "subscription_cycle":
                account.agenda.add(account.now + self._rules.draft_seconds, "collect", invoice.id)
            else:
                self._collect(invoice.id)

    def _collect(self, invoice_id: str) -> None:
        invoice = self._account.invoices[invoice_id]
        if invoice.status == "draft" and not self._account.subscriptions[invoice.subscription].has_ended:
            self._try(self._finalize(invoice))

    def _retry(self, invoice_id: str, moment: int) -> None:
        invoice = self._account.invoices[invoice_id]
        has_ended = self._account.subscriptions[invoice.subscription].has_ended
        if invoice.status == "open" and invoice.next_payment_attempt == moment and not has_ended:
            self._try(invoice)

    def _try(self, invoice: Invoice) -> None:
        """Charge an open invoice; after a failure, schedule a retry or apply the rules."""
        account, tries = self._account, self._rules.retry_days
        if self._can_pay(invoice):
            self._settle(invoice)
            return
        is_last = invoice.attempt_count >= len(tries)
        moment = None if is_last else account.now + tries[invoice.attempt_count] * DAY
        self._mark_failed(invoice, moment)
        subscription = account.subscriptions[invoice.subscription]
        if moment is not None:
            account.agenda.add(moment, "retry", invoice.id, moment)
        elif self._rules.when_retries_end == "cancel":
            self.cancel_subscription(subscription.id, "payment_failed")
            return
        status = "unpaid" if is_last and self._rules.when_retries_end == "unpaid" else "past_due"
        if subscription.status != "unpaid":
            account.change(subscription, _UPDATED, status=status)

    def _settle(self, invoice: Invoice) -> Invoice:
        """Mark an invoice as paid; if it is the newest, its subscription becomes active again."""
        account = self._account
        paid = self._mark_paid(invoice)
        subscription = account.subscriptions[invoice.subscription]
        if subscription.latest_invoice == invoice.id and subscription.status in {"incomplete", "past_due", "unpaid"}:
            account.change(subscription, _UPDATED, status="active")
        return paid

    def _expire_incomplete(self, subscription_id: str) -> None:
        subscription = self._account.subscriptions[subscription_id]
        if subscription.status == "incomplete":
            self._account.change(
                subscription, _UPDATED, status="incomplete_expired", ended_at=self._account.now
            )  # fmt: skip
            invoice = self._account.invoices[subscription.latest_invoice or ""]
            self._account.change(
                invoice, "invoice.voided", status="void", auto_advance=False, next_payment_attempt=None,
                voided_at=self._account.now,
            )  # fmt: skip

    def _warn_of_trial_end(self, subscription_id: str, trial_end: int) -> None:
        subscription = self._account.subscriptions[subscription_id]
        if subscription.status == "trialing" and subscription.trial_end == trial_end:
            self._account.emit("customer.subscription.trial_will_end", subscription)


def declined() -> ApiError:
    return ApiError(
        402, "Your card was declined.", type="card_error", code="card_declined", decline_code="generic_decline"
    )


def _cancellation(end: int, now: int) -> dict[str, Any]:
    return {"cancel_at_period_end": True, "cancel_at": end, "canceled_at": now}


def _interval(items: Sequence[Item]) -> tuple[str, int]:
    return items[0].price.interval, items[0].price.interval_count
