"""Prices and subscriptions: trials, renewals, changes, cancellation."""

from collections.abc import Mapping, Sequence
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
from tenantry_devkit.simulator.invoices import (
    DAY,
    SUBSCRIPTION_UPDATED,
    InvoiceBilling,
    Rules,
)
from tenantry_devkit.simulator.objects import (
    BillingMode,
    Customer,
    Invoice,
    Item,
    MetadataChanges,
    MissingPaymentMethod,
    PauseBehavior,
    PauseCollection,
    Price,
    Subscription,
    Terms,
    UsageType,
    id_of,
    merged,
)
from tenantry_devkit.simulator.refusals import (
    check_customer_currency,
    check_items,
    check_new_prices,
    check_quantity,
    check_trial,
)

STANDARD_TERMS: Final = Terms()
_TRIAL_WARNING: Final = 3 * DAY
_FIRST_PAYMENT_TIME: Final = 23 * 3600


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


PricedItems = Sequence[tuple[Price | str, int | None]]
"""Prices with quantities; a metered one has none."""


class SubscriptionBilling(InvoiceBilling):
    """Creates and changes prices and subscriptions. It schedules their future on the account's
    agenda.
    """

    def __init__(self, account: Account, rules: Rules, url: str) -> None:
        super().__init__(account, rules, url)
        self._actions |= {
            "warn_of_trial_end": self._warn_of_trial_end,
            "end_period": self._end_period,
            "cancel": self._cancel_when_due,
        }

    def price(
        self,
        price_id: str | None = None,
        amount: int = 2900,
        *,
        currency: str = "eur",
        currency_options: Mapping[str, int] | None = None,
        interval: str = "month",
        interval_count: int = 1,
        usage_type: UsageType = "licensed",
    ) -> Price:
        """Create a price, or replace the one with this id for new subscriptions.

        It is ``amount`` of the currency's smallest unit per so many days, weeks, months or years; a
        metered one has no quantity, and no usage is simulated. ``currency_options`` has the amounts
        in other currencies.
        """
        price = Price(
            id=price_id or self.account.ids.new("price"),
            created=self.account.now,
            product=self.account.ids.new("prod"),
            unit_amount=amount,
            currency=currency,
            currency_options=currency_options or {},
            interval=interval,
            interval_count=interval_count,
            usage_type=usage_type,
        )
        self.account.add(price)
        self.account.emit("price.created", price)
        return price

    def subscribe(
        self,
        customer: Customer | str,
        price: Price | str | PricedItems,
        *,
        metadata: MetadataChanges | None = None,
        trial_days: int = 0,
        missing_payment_method: MissingPaymentMethod = "create_invoice",
        cancel_at_period_end: bool = False,
        cancel_at: int | None = None,
        billing_mode: BillingMode | None = None,
        first_payment: FirstPayment = FirstPayment.CHECKOUT,
        terms: Terms = STANDARD_TERMS,
    ) -> Subscription:
        """Subscribe a customer to a price, or to several with quantities. Raises `ApiError`.

        It is like a checkout: ``created`` is incomplete or trialing, then comes ``updated``. With
        ``FirstPayment.ALLOW_INCOMPLETE`` it is like a plain API call: only ``created``, already
        active.
        """
        account, now = self.account, self.account.now
        payer = account.find_customer(id_of(customer), param="customer")
        prices = self._with_quantities(price)
        check_items(prices, params=[f"items[{number}]" for number in range(len(prices))])
        check_new_prices((each for each, _ in prices), "items")
        check_customer_currency(self._currency_of(payer.id), prices)
        check_trial(trial_days, "trial_period_days")
        trial_end = now + trial_days * DAY if trial_days else None
        subscription_id = account.ids.new("sub")
        items = tuple(self._new_item(price=each, quantity=quantity) for each, quantity in prices)
        end = trial_end or period_end(now, *_interval(items), now)
        subscription = Subscription(
            id=subscription_id,
            created=now,
            customer=payer.id,
            status="incomplete",
            items=items,
            anchor=now,
            period_start=now,
            period_end=end,
            metadata=merged({}, metadata),
            missing_payment_method=missing_payment_method,
            billing_mode=billing_mode or self._rules.billing_mode,
            terms=terms,
        )
        if trial_end:
            trial = {"status": "trialing", "anchor": end, "trial_start": now, "trial_end": end}
            subscription = replace(subscription, **trial)
        ends = _cancellation(
            subscription,
            now,
            at_period_end=cancel_at_period_end,
            moment=cancel_at or UNSET,
        )
        return self._begin(replace(subscription, **ends), first_payment)

    def _begin(self, subscription: Subscription, first_payment: FirstPayment) -> Subscription:
        """Add a new subscription, charge its first invoice, and plan its future."""
        account = self.account
        invoice = self._draft(subscription, "subscription_create")
        is_pending = first_payment is FirstPayment.PENDING and invoice.amount_due > 0
        can_pay = is_pending or self._can_pay(invoice)
        status = "active" if can_pay and not subscription.trial_end else subscription.status
        payer = self.customers[subscription.customer]
        method = payer.default_payment_method
        # which of these the subscription has already in its `created` event
        if first_payment is FirstPayment.ALLOW_INCOMPLETE:
            created_with = {"status": status, "default_payment_method": method}
        else:
            created_with = {} if invoice.amount_due else {"status": status}
        if payer.currency is None:
            account.add(replace(payer, currency=invoice.currency))
        subscription = account.add(replace(subscription, latest_invoice=invoice.id, **created_with))
        account.emit("customer.subscription.created", subscription)
        account.emit("invoice.created", invoice)
        invoice = self._finalize(invoice)
        if not can_pay:
            self._mark_failed(invoice)
        elif not is_pending:
            self._mark_paid(invoice)
        subscription = account.change(
            subscription, SUBSCRIPTION_UPDATED, status=status, default_payment_method=method
        )
        self._plan_first_period(subscription)
        return subscription

    def _plan_first_period(self, subscription: Subscription) -> None:
        """Plan what happens to a new subscription without an act of the customer."""
        account, now = self.account, self.account.now
        if subscription.status == "incomplete":
            account.plan(now + _FIRST_PAYMENT_TIME, "expire_incomplete", subscription.id)
        if subscription.trial_end:
            warning = max(now, subscription.trial_end - _TRIAL_WARNING)
            account.plan(warning, "warn_of_trial_end", subscription.id)
        self._plan_period_end(subscription)
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
    ) -> Subscription:
        """Stop the collection of payments; the status stays as it is."""
        return self.update_subscription(subscription, pause_collection=PauseCollection(behavior))

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
        self._begin_period_now(before)
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
            "missing_payment_method": missing_payment_method or before.missing_payment_method,
            **_cancellation(
                before,
                account.now,
                at_period_end=cancel_at_period_end,
                moment=cancel_at,
            ),
        }
        if pause_collection is not UNSET:
            fields["pause_collection"] = pause_collection
        ends_trial = before.status == "trialing" and trial_end == "now"
        if ends_trial:
            fields["trial_end"] = account.now
        if ends_trial or _is_billed_anew(before, fields["items"]):
            self._begin_period_now(before, **fields)
        else:
            account.change(before, SUBSCRIPTION_UPDATED, **fields)
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

    def _with_quantities(self, price: Price | str | PricedItems) -> list[tuple[Price, int | None]]:
        """Return prices with quantities; a single one has the quantity 1, unless it is metered."""
        find = partial(self.account.find, Price, param="price")
        if isinstance(price, Price | str):
            single = find(price) if isinstance(price, str) else price
            return [(single, None if single.is_metered else 1)]
        return [
            (find(each) if isinstance(each, str) else each, quantity) for each, quantity in price
        ]

    def _currency_of(self, customer_id: str) -> str | None:
        """Return the currency in which a customer pays for a subscription; None without one."""
        return next(
            (
                each.items[0].price.charged_currency
                for each in self.subscriptions.values()
                if each.customer == customer_id and not each.has_ended
            ),
            None,
        )

    def _new_item(self, **fields: Any) -> Item:  # noqa: ANN401  # those of an item
        return Item(id=self.account.ids.new("si"), created=self.account.now, **fields)

    def _changed_items(
        self, subscription: Subscription, changes: Sequence[ItemChange]
    ) -> tuple[Item, ...]:
        items = {item.id: item for item in subscription.items}
        currency = subscription.items[0].price.charged_currency
        for number, change in enumerate(changes):
            fields = self._fields_paid_in(currency, change, f"items[{number}][price]")
            self._check_change(items.get(change.id or ""), fields, change, f"items[{number}]")
            if change.id is None:
                item = self._new_item(**fields)
                items[item.id] = item
            elif change.id not in items:
                raise missing(Item, change.id, param=f"items[{number}][id]")
            elif change.deleted:
                del items[change.id]
            else:
                items[change.id] = _changed_item(items[change.id], fields)
        if not items:
            raise ApiError(400, "A subscription must have at least one active item.")
        changed = tuple(items.values())
        check_items(
            [(item.price, item.quantity) for item in changed],
            params=[f"items[{number}]" for number in range(len(changed))],
        )
        return changed

    def _fields_paid_in(self, currency: str, change: ItemChange, place: str) -> dict[str, Any]:
        """Return the fields of an item; a price that has this currency too is charged in it."""
        fields = self._item_fields(change, place)
        if "price" in fields and currency in fields["price"].currency_options:
            fields["price"] = replace(fields["price"], paid_in=currency)
        return fields

    def _check_change(
        self, item: Item | None, fields: dict[str, Any], change: ItemChange, place: str
    ) -> None:
        """Raise `ApiError` for a price that cannot be sold, and a quantity that it cannot have."""
        price = fields.get("price", item.price if item else None)
        if price is not None:
            check_quantity(price, change.quantity, f"{place}[quantity]")
        if "price" in fields:
            check_new_prices([fields["price"]], f"{place}[price]")

    def _item_fields(self, change: ItemChange, param: str) -> dict[str, Any]:
        """Return the new values of an item; ``param`` is the parameter of its price."""
        fields: dict[str, Any] = {} if change.quantity is None else {"quantity": change.quantity}
        if change.price is not None:
            fields["price"] = self.account.find(Price, change.price, param=param)
        elif change.id is None:
            raise missing_parameter(param)
        return fields

    def _end_period(self, subscription_id: str, end: int) -> None:
        subscription = self.subscriptions[subscription_id]
        has_paid = not subscription.has_ended and subscription.status != "incomplete"
        if not has_paid or subscription.period_end != end:
            return
        if subscription.cancel_at == end:
            self._end(subscription, "cancellation_requested")
        else:
            self._begin_period(subscription, end, "subscription_cycle")

    def _plan_period_end(self, subscription: Subscription) -> None:
        end = subscription.period_end
        self.account.plan(end, "end_period", subscription.id, end)

    def _plan_cancellation(self, subscription: Subscription) -> None:
        moment = subscription.cancel_at
        if moment is not None:
            self.account.plan(moment, "cancel", subscription.id, moment)

    def _cancel_when_due(self, subscription_id: str, moment: int) -> None:
        subscription = self.subscriptions[subscription_id]
        if subscription.cancel_at == moment and not subscription.has_ended:
            self._end(subscription, "cancellation_requested")

    def _begin_period_now(self, before: Subscription, **fields: Any) -> None:  # noqa: ANN401
        """Begin a period before the current one has ended, with changed fields."""
        now = self.account.now
        self._begin_period(before, now, "subscription_update", anchor=now, **fields)

    def _begin_period(self, before: Subscription, start: int, reason: str, **fields: Any) -> None:  # noqa: ANN401
        """Begin and bill the next period, with changed fields; an unpaid subscription is not
        billed.

        A trial without a payment method may end in a pause instead.
        """
        account = self.account
        if self._ends_in_pause(before):
            events = [SUBSCRIPTION_UPDATED, "customer.subscription.paused"]
            account.change(before, *events, **fields, status="paused")
            return
        after = replace(before, **fields, period_start=start)
        end = period_end(after.anchor, *_interval(after.items), start)
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
        account.change(before, SUBSCRIPTION_UPDATED, *resumed, **asdict(after))
        self._plan_period_end(after)
        if invoice is not None:
            self._bill_period(after, invoice)

    def _ends_in_pause(self, subscription: Subscription) -> bool:
        """Whether the end of this trial pauses the subscription."""
        return (
            subscription.status == "trialing"
            and subscription.missing_payment_method == "pause"
            and self.customers[subscription.customer].default_payment_method is None
        )

    def _bill_period(self, subscription: Subscription, invoice: Invoice) -> None:
        """Send the invoice of a period, and collect or withhold its payment."""
        self.account.emit("invoice.created", invoice)
        if subscription.pause_collection is not None:
            self._withhold(invoice, subscription.pause_collection)
        else:
            self._charge(self._finalize(invoice))

    def _withhold(self, invoice: Invoice, pause: PauseCollection) -> None:
        """Do with a draft what a pause of collection says; the subscription's status stays as it
        is.
        """
        if pause.behavior == "void":
            self._void(self._finalize(invoice))
        elif pause.behavior == "mark_uncollectible":
            self._write_off(self._finalize(invoice))

    def _warn_of_trial_end(self, subscription_id: str) -> None:
        subscription = self.subscriptions[subscription_id]
        if subscription.status == "trialing":
            self.account.emit("customer.subscription.trial_will_end", subscription)


def _changed_item(item: Item, fields: dict[str, Any]) -> Item:
    """Return an item with new values; only one with a metered price has no quantity."""
    price = fields.get("price", item.price)
    quantity = None if price.is_metered else fields.get("quantity", item.quantity or 1)
    return replace(item, price=price, quantity=quantity)


def _check_future(moment: int, now: int, param: str) -> None:
    """Raise `ApiError` unless the moment is yet to come."""
    if moment <= now:
        raise ApiError(400, "The timestamp must be in the future.", param=param)


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


def _is_billed_anew(before: Subscription, items: Sequence[Item]) -> bool:
    """Whether changed items begin a new period: their interval is different."""
    is_in_paid_period = before.status not in {"trialing", "paused"}
    return is_in_paid_period and _interval(items) != _interval(before.items)
