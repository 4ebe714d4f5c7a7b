"""Prices, subscriptions and invoices: trials, renewals, failed payments, cancellation."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict, replace

from tenantry_devkit.simulator.account import (
    Account,
    ApiError,
    missing,
    missing_parameter,
    period_end,
)
from tenantry_devkit.simulator.objects import (
    BillingMode,
    Card,
    Customer,
    Invoice,
    Item,
    Line,
    MetadataChanges,
    MissingPaymentMethod,
    PauseBehavior,
    PauseCollection,
    Price,
    Subscription,
    id_of,
    merged,
)

DAY: Final = 86_400
_TRIAL_WARNING: Final = 3 * DAY
_FIRST_PAYMENT_TIME: Final = 23 * 3600
_UPDATED: Final = "customer.subscription.updated"


@dataclass(frozen=True)
class Rules:
    """The account's billing settings.

    A failed payment is retried after each of ``retry_days``. After the last failure the
    subscription is canceled, becomes ``unpaid``, or stays ``past_due``. A renewal's invoice is a
    draft for ``draft_seconds``. New subscriptions have ``billing_mode``, unless they are given
    another.
    """

    retry_days: tuple[int, ...] = (3, 5, 7)
    when_retries_end: Literal["cancel", "unpaid", "past_due"] = "cancel"
    draft_seconds: int = 0
    billing_mode: BillingMode = "classic"


class FirstPayment(StrEnum):
    """How a new subscription's first invoice is paid (the provider's ``payment_behavior``)."""

    ALLOW_INCOMPLETE = "allow_incomplete"
    """Charged before the first event; the subscription is ``incomplete`` if that fails."""
    CHECKOUT = "checkout"
    """As in a checkout: first ``incomplete``, then charged."""
    PENDING = "pending"
    """As in a checkout with a bank debit: ``active`` before it is known whether the payment
    succeeds.
    """


class ItemChange(Struct, frozen=True):
    """A change to the item ``id``, or a new item without one. ``price`` is an id."""

    id: str | None = None
    price: str | None = None
    quantity: int | None = None
    deleted: bool = False


class SubscriptionBilling:
    """Creates and changes prices and subscriptions. It schedules their future on the account's
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
            "warn_of_trial_end": self._warn_of_trial_end,
            "end_period": self._end_period,
            "cancel": self._cancel_when_due,
            "resume_collection": self._resume_collection_when_due,
            "collect": self._collect,
            "retry": self._retry,
        }

    def price(
        self,
        price_id: str | None = None,
        amount: int = 2900,
        *,
        currency: str = "eur",
        interval: str = "month",
        interval_count: int = 1,
        product: str | None = None,
        nickname: str | None = None,
        lookup_key: str | None = None,
        metadata: MetadataChanges | None = None,
    ) -> Price:
        """Create a price, or replace the one with this id for new subscriptions.

        It is ``amount`` of the currency's smallest unit per so many days, weeks, months or years.
        """
        price = Price(
            id=price_id or self.account.ids.new("price"),
            created=self.account.now,
            product=product or self.account.ids.new("prod"),
            unit_amount=amount,
            currency=currency,
            interval=interval,
            interval_count=interval_count,
            nickname=nickname,
            lookup_key=lookup_key,
            metadata=merged({}, metadata),
        )
        self.account.add(price)
        self.account.emit("price.created", price)
        return price

    def subscribe(
        self,
        customer: Customer | str,
        price: Price | str | Sequence[tuple[Price | str, int]],
        *,
        metadata: MetadataChanges | None = None,
        trial_days: int = 0,
        trial_end: int | None = None,
        missing_payment_method: MissingPaymentMethod = "create_invoice",
        cancel_at_period_end: bool = False,
        cancel_at: int | None = None,
        billing_mode: BillingMode | None = None,
        first_payment: FirstPayment = FirstPayment.CHECKOUT,
    ) -> Subscription:
        """Subscribe a customer to a price, or to several with quantities. Raises `ApiError`.

        It is like a checkout: ``created`` is incomplete or trialing, then comes ``updated``. With
        ``FirstPayment.ALLOW_INCOMPLETE`` it is like a plain API call: only ``created``, already
        active.
        """
        account, now = self.account, self.account.now
        payer = account.find_customer(id_of(customer), param="customer")
        prices = self._with_quantities(price)
        if trial_days:
            trial_end = now + trial_days * DAY
        end = trial_end or period_end(
            now,
            prices[0][0].interval,
            prices[0][0].interval_count,
            now,
        )
        subscription = Subscription(
            id=account.ids.new("sub"),
            created=now,
            customer=payer.id,
            status="trialing" if trial_end else "incomplete",
            items=tuple(
                Item(
                    id=account.ids.new("si"),
                    created=now,
                    price=price,
                    quantity=quantity,
                )
                for price, quantity in prices
            ),
            anchor=end if trial_end else now,
            period_start=now,
            period_end=end,
            metadata=merged({}, metadata),
            trial_start=now if trial_end else None,
            trial_end=trial_end,
            missing_payment_method=missing_payment_method,
            billing_mode=billing_mode or self._rules.billing_mode,
        )
        ends = _cancellation(
            subscription,
            now,
            at_period_end=cancel_at_period_end,
            moment=cancel_at or UNSET,
        )
        subscription = replace(subscription, **ends)
        invoice = self._draft(subscription, "subscription_create")
        is_pending = first_payment is FirstPayment.PENDING and invoice.amount_due > 0
        can_pay = is_pending or self._can_pay(invoice)
        active = {"status": "active"} if can_pay and not trial_end else {}
        paid = {**active, "default_payment_method": payer.default_payment_method}
        # what the subscription has already in its `created` event
        created_with: dict[str, Any] = {}
        if first_payment is FirstPayment.ALLOW_INCOMPLETE:
            created_with = paid
        elif not invoice.amount_due:
            created_with = active
        subscription = account.add(replace(subscription, latest_invoice=invoice.id, **created_with))
        account.emit("customer.subscription.created", subscription)
        account.emit("invoice.created", invoice)
        invoice = self._finalize(invoice)
        if not can_pay:
            self._mark_failed(invoice, None)
        elif not is_pending:
            self._mark_paid(invoice)
        subscription = account.change(subscription, _UPDATED, **paid)
        self._plan_first_period(subscription)
        return subscription

    def _plan_first_period(self, subscription: Subscription) -> None:
        """Plan what happens to a new subscription without an act of the customer."""
        account, now, end = self.account, self.account.now, subscription.period_end
        if subscription.status == "incomplete":
            account.plan(
                now + _FIRST_PAYMENT_TIME,
                "expire_incomplete",
                subscription.id,
            )
        if subscription.trial_end:
            warning = max(now, subscription.trial_end - _TRIAL_WARNING)
            account.plan(
                warning,
                "warn_of_trial_end",
                subscription.id,
                subscription.trial_end,
            )
        account.plan(
            end,
            "end_period",
            subscription.id,
            end,
        )
        self._plan_cancellation(subscription)

    def change_plan(self, subscription: Subscription | str, price: Price | str) -> Subscription:
        """Replace the first item's price."""
        first = self.account.find(Subscription, id_of(subscription)).items[0]
        return self.update_subscription(subscription, items=[ItemChange(first.id, id_of(price))])

    def set_metadata(
        self, subscription: Subscription | str, metadata: MetadataChanges
    ) -> Subscription:
        """Set these metadata values; an empty one removes its key."""
        return self.update_subscription(subscription, metadata=metadata)

    def end_trial(self, subscription: Subscription | str) -> Subscription:
        """End the trial and begin the first paid period now."""
        return self.update_subscription(subscription, trial_end="now")

    def cancel(
        self, subscription: Subscription | str, *, at_period_end: bool = False
    ) -> Subscription:
        """Cancel now, or at the end of the period."""
        if at_period_end:
            return self.update_subscription(subscription, cancel_at_period_end=True)
        return self._end(self._active_subscription(subscription), "cancellation_requested")

    def cancel_in_portal(self, subscription: Subscription | str) -> Subscription:
        """Cancel at the end of the period as the customer portal does.

        In flexible billing mode it sets only ``cancel_at`` (stripe/stripe-node#2470).
        """
        current = self._active_subscription(subscription)
        if current.billing_mode == "flexible":
            return self.update_subscription(current, cancel_at=current.period_end)
        return self.cancel(current, at_period_end=True)

    def resume(self, subscription: Subscription | str) -> Subscription:
        """Revoke a cancellation that has not taken effect."""
        return self.update_subscription(subscription, cancel_at=None)

    def pause_collection(
        self,
        subscription: Subscription | str,
        behavior: PauseBehavior = "void",
        *,
        resumes_at: int | None = None,
    ) -> Subscription:
        """Stop the collection of payments; the status stays as it is."""
        return self.update_subscription(
            subscription, pause_collection=PauseCollection(behavior, resumes_at)
        )

    def resume_collection(self, subscription: Subscription | str) -> Subscription:
        """Collect payments of future invoices again."""
        return self.update_subscription(subscription, pause_collection=None)

    def resume_paused(self, subscription: Subscription | str) -> Subscription:
        """Begin and charge a new period of a subscription whose status is ``paused``.

        Raises `ApiError` for another status, and if the customer has no payment method.
        """
        before = self._active_subscription(subscription)
        if before.status != "paused":
            raise ApiError(400, f"The subscription is {before.status}, not paused.")
        if self.customers[before.customer].default_payment_method is None:
            message = "This customer has no attached payment source or default payment method."
            raise ApiError(400, message, code="resource_missing")
        self._begin_period(
            before,
            self.account.now,
            "subscription_update",
            anchor=self.account.now,
        )
        return self.subscriptions[before.id]

    def update_subscription(
        self,
        subscription: Subscription | str,
        *,
        items: Sequence[ItemChange] = (),
        metadata: MetadataChanges | None = None,
        cancel_at_period_end: bool | None = None,
        cancel_at: int | UnsetType | None = UNSET,
        pause_collection: PauseCollection | UnsetType | None = UNSET,
        trial_end: int | Literal["now"] | None = None,
        missing_payment_method: MissingPaymentMethod | None = None,
    ) -> Subscription:
        """Change the given fields; raises `ApiError` for an ended subscription.

        ``cancel_at`` is in seconds since the Unix epoch; None revokes a cancellation. None for
        ``pause_collection`` ends a pause.

        There are no prorations: a new price counts from the next invoice, unless its interval is
        different. Then a new period begins, and is charged, at once. An empty metadata value
        removes its key. ``trial_end`` ends only now.
        """
        account = self.account
        before = self._active_subscription(subscription)
        fields: dict[str, Any] = {
            "items": self._changed_items(before, items),
            "metadata": merged(before.metadata, metadata),
            **_cancellation(
                before,
                account.now,
                at_period_end=cancel_at_period_end,
                moment=cancel_at,
            ),
            "pause_collection": before.pause_collection
            if pause_collection is UNSET
            else pause_collection,
            "missing_payment_method": missing_payment_method or before.missing_payment_method,
        }
        if pause_collection and pause_collection.resumes_at is not None:
            _check_future(pause_collection.resumes_at, account.now, "pause_collection[resumes_at]")
            account.plan(
                pause_collection.resumes_at,
                "resume_collection",
                before.id,
                pause_collection.resumes_at,
            )
        if before.status == "trialing":
            begins_period = trial_end == "now"
            fields["trial_end"] = account.now if begins_period else before.trial_end
        else:
            begins_period = before.status != "paused" and _interval(fields["items"]) != _interval(
                before.items
            )
        if begins_period:
            self._begin_period(
                before,
                account.now,
                "subscription_update",
                anchor=account.now,
                **fields,
            )
        else:
            account.change(before, _UPDATED, **fields)
        after = self.subscriptions[before.id]
        if after.cancel_at != before.cancel_at:
            self._plan_cancellation(after)
        return after

    def _active_subscription(self, subscription: Subscription | str) -> Subscription:
        """Return a subscription; raises `ApiError` if it does not exist or has ended."""
        current = self.account.find(Subscription, id_of(subscription))
        if current.has_ended:
            raise missing(Subscription, current.id)
        return current

    def _end(self, before: Subscription, reason: str) -> Subscription:
        """Cancel it now, and stop collecting its invoice."""
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
        account, customer = self.account, self.customers[subscription.customer]
        is_trial = subscription.status == "trialing"
        lines = tuple(
            Line(
                id=account.ids.new("il"),
                item=item,
                amount=0 if is_trial else item.price.unit_amount * item.quantity,
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
            auto_advance=subscription.pause_collection is None,
            period_start=subscription.period_start,
            period_end=subscription.period_end,
        )
        return account.add(invoice)

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

    def _mark_failed(self, invoice: Invoice, next_attempt: int | None) -> None:
        self.account.change(
            invoice,
            "invoice.payment_failed",
            attempt_count=invoice.attempt_count + 1,
            auto_advance=next_attempt is not None,
            next_payment_attempt=next_attempt,
        )

    def _void(self, invoice: Invoice) -> Invoice:
        over = {"status": "void", "auto_advance": False, "next_payment_attempt": None}
        return self.account.change(
            invoice,
            "invoice.voided",
            **over,
            voided_at=self.account.now,
        )

    def _write_off(self, invoice: Invoice) -> Invoice:
        over = {"status": "uncollectible", "auto_advance": False, "next_payment_attempt": None}
        return self.account.change(
            invoice,
            "invoice.marked_uncollectible",
            **over,
            marked_uncollectible_at=self.account.now,
        )

    def _with_quantities(
        self, price: Price | str | Sequence[tuple[Price | str, int]]
    ) -> list[tuple[Price, int]]:
        given = [(price, 1)] if isinstance(price, Price | str) else price
        find = partial(self.account.find, Price, param="price")
        return [
            (find(each) if isinstance(each, str) else each, quantity) for each, quantity in given
        ]

    def _changed_items(
        self, subscription: Subscription, changes: Sequence[ItemChange]
    ) -> tuple[Item, ...]:
        account = self.account
        items = {item.id: item for item in subscription.items}
        for number, change in enumerate(changes):
            fields: dict[str, Any] = (
                {} if change.quantity is None else {"quantity": change.quantity}
            )
            if change.price is not None:
                fields["price"] = account.find(
                    Price,
                    change.price,
                    param=f"items[{number}][price]",
                )
            if change.id is None and change.price is None:
                raise missing_parameter(f"items[{number}][price]")
            if change.id is None:
                item = Item(
                    id=account.ids.new("si"),
                    created=account.now,
                    **fields,
                )
                items[item.id] = item
            elif change.id not in items:
                raise missing(
                    Item,
                    change.id,
                    param=f"items[{number}][id]",
                )
            elif change.deleted:
                del items[change.id]
            else:
                items[change.id] = replace(items[change.id], **fields)
        if not items:
            raise ApiError(400, "A subscription must have at least one active item.")
        return tuple(items.values())

    def _end_period(self, subscription_id: str, end: int) -> None:
        subscription = self.subscriptions[subscription_id]
        if (
            subscription.has_ended
            or subscription.period_end != end
            or subscription.status == "incomplete"
        ):
            return
        if subscription.cancel_at == end:
            self._end(subscription, "cancellation_requested")
        else:
            self._begin_period(subscription, end, "subscription_cycle")

    def _plan_cancellation(self, subscription: Subscription) -> None:
        if subscription.cancel_at is not None:
            self.account.plan(
                subscription.cancel_at,
                "cancel",
                subscription.id,
                subscription.cancel_at,
            )

    def _cancel_when_due(self, subscription_id: str, moment: int) -> None:
        subscription = self.subscriptions[subscription_id]
        if subscription.cancel_at == moment and not subscription.has_ended:
            self._end(subscription, "cancellation_requested")

    def _begin_period(self, before: Subscription, start: int, reason: str, **fields: Any) -> None:  # noqa: ANN401
        """Begin and bill the next period, with changed fields; an unpaid subscription is not
        billed.

        A trial without a payment method may end in a pause instead.
        """
        account = self.account
        has_payment_method = self.customers[before.customer].default_payment_method is not None
        if (
            before.status == "trialing"
            and before.missing_payment_method == "pause"
            and not has_payment_method
        ):
            account.change(
                before,
                _UPDATED,
                "customer.subscription.paused",
                **fields,
                status="paused",
            )
            return
        after = replace(before, **fields, period_start=start)
        end = period_end(
            after.anchor,
            *_interval(after.items),
            start,
        )
        after = replace(
            after,
            period_end=end,
            status="active" if before.status in {"trialing", "paused"} else before.status,
            cancel_at=end if after.cancel_at_period_end else after.cancel_at,
        )
        invoice = None
        if before.status != "unpaid":
            invoice = self._draft(after, reason)
            after = replace(after, latest_invoice=invoice.id)
        resumed = ["customer.subscription.resumed"] if before.status == "paused" else []
        account.change(
            before,
            _UPDATED,
            *resumed,
            **asdict(after),
        )
        account.plan(
            after.period_end,
            "end_period",
            after.id,
            after.period_end,
        )
        if invoice is not None:
            self._bill_period(after, invoice, reason)

    def _bill_period(self, subscription: Subscription, invoice: Invoice, reason: str) -> None:
        """Send the invoice of a period, and collect, plan or withhold its payment."""
        account = self.account
        account.emit("invoice.created", invoice)
        if subscription.pause_collection is not None:
            self._withhold(invoice, subscription.pause_collection)
        elif self._rules.draft_seconds and reason == "subscription_cycle":
            account.plan(
                account.now + self._rules.draft_seconds,
                "collect",
                invoice.id,
            )
        else:
            self._collect(invoice.id)

    def _withhold(self, invoice: Invoice, pause: PauseCollection) -> None:
        """Do with a draft what a pause of collection says; the subscription's status stays as it
        is.
        """
        if pause.behavior == "void":
            self._void(self._finalize(invoice))
        elif pause.behavior == "mark_uncollectible":
            self._write_off(self._finalize(invoice))

    def _resume_collection_when_due(self, subscription_id: str, moment: int) -> None:
        subscription = self.subscriptions[subscription_id]
        pause = subscription.pause_collection
        if pause is not None and pause.resumes_at == moment and not subscription.has_ended:
            self.resume_collection(subscription)

    def _collect(self, invoice_id: str) -> None:
        invoice = self.invoices[invoice_id]
        if invoice.status == "draft" and not self.subscriptions[invoice.subscription].has_ended:
            self._try(self._finalize(invoice))

    def _retry(self, invoice_id: str, moment: int) -> None:
        invoice = self.invoices[invoice_id]
        has_ended = self.subscriptions[invoice.subscription].has_ended
        if invoice.status == "open" and invoice.next_payment_attempt == moment and not has_ended:
            self._try(invoice)

    def _try(self, invoice: Invoice) -> None:
        """Charge an open invoice."""
        if self._can_pay(invoice):
            self._settle(invoice)
        else:
            self._fail(invoice)

    def _fail(self, invoice: Invoice) -> None:
        """Record a failed payment; schedule a retry or apply the rules."""
        account, tries = self.account, self._rules.retry_days
        is_last = invoice.attempt_count >= len(tries)
        moment = None if is_last else account.now + tries[invoice.attempt_count] * DAY
        self._mark_failed(invoice, moment)
        subscription = self.subscriptions[invoice.subscription]
        if moment is not None:
            account.plan(
                moment,
                "retry",
                invoice.id,
                moment,
            )
        elif self._rules.when_retries_end == "cancel":
            self._end(subscription, "payment_failed")
            return
        status = "unpaid" if is_last and self._rules.when_retries_end == "unpaid" else "past_due"
        if subscription.status != "unpaid":
            account.change(subscription, _UPDATED, status=status)

    def _settle(self, invoice: Invoice) -> Invoice:
        """Mark an invoice as paid; if it is the newest, its subscription becomes active again."""
        paid = self._mark_paid(invoice)
        self._recover(invoice.subscription)
        return paid

    def _recover(self, subscription_id: str) -> None:
        """Make a subscription active again if its newest invoice that is not void is paid or
        written off.
        """
        subscription = self.subscriptions[subscription_id]
        statuses = [
            each.status for each in self.invoices.values() if each.subscription == subscription_id
        ]
        newest = next((status for status in reversed(statuses) if status != "void"), "paid")
        if newest in {"paid", "uncollectible"} and subscription.status in {
            "incomplete",
            "past_due",
            "unpaid",
        }:
            self.account.change(subscription, _UPDATED, status="active")

    def _expire_incomplete(self, subscription_id: str) -> None:
        account, now = self.account, self.account.now
        subscription = self.subscriptions[subscription_id]
        if subscription.status == "incomplete":
            account.change(
                subscription,
                _UPDATED,
                status="incomplete_expired",
                ended_at=now,
            )
            self._void(self.invoices[subscription.latest_invoice or ""])

    def _warn_of_trial_end(self, subscription_id: str, trial_end: int) -> None:
        subscription = self.subscriptions[subscription_id]
        if subscription.status == "trialing" and subscription.trial_end == trial_end:
            self.account.emit("customer.subscription.trial_will_end", subscription)


def declined() -> ApiError:
    return ApiError(
        402,
        "Your card was declined.",
        type="card_error",
        code="card_declined",
        decline_code="generic_decline",
    )


def _check_future(moment: int, now: int, param: str) -> None:
    """Raise `ApiError` unless the moment is yet to come."""
    if moment <= now:
        raise ApiError(400, "The timestamp must be in the future.", param=param)


def _check_status(invoice: Invoice, allowed: Collection[str], aim: str) -> None:
    """Raise `ApiError` unless the invoice has an allowed status."""
    if invoice.status not in allowed:
        raise ApiError(
            400,
            f"The invoice is {invoice.status} and cannot be {aim}.",
            code="invoice_not_editable",
        )


def _cancellation(
    before: Subscription, now: int, *, at_period_end: bool | None, moment: int | UnsetType | None
) -> dict[str, Any]:
    """Return the changes that schedule or revoke a cancellation; raises `ApiError` for a moment in
    the past.
    """
    if at_period_end is None or at_period_end == before.cancel_at_period_end:
        if moment is UNSET or moment == before.cancel_at:
            return {}
        at_period_end = False
    else:
        moment = before.period_end if at_period_end else None
    if moment is not None:
        _check_future(moment, now, "cancel_at")
    canceled_at = None if moment is None else now
    return {"cancel_at_period_end": at_period_end, "cancel_at": moment, "canceled_at": canceled_at}


def _interval(items: Sequence[Item]) -> tuple[str, int]:
    return items[0].price.interval, items[0].price.interval_count
