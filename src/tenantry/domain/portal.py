"""Links into the provider's portal that are for one action."""

from typing import Literal

import msgspec

from tenantry.domain.billing.customer_account import CustomerAccount
from tenantry.domain.errors import ValidationError
from tenantry.domain.plans import Catalog

ActionKind = Literal["payment_method", "cancel", "change"]
_NOT_CHANGEABLE = (
    "the subscription cannot be changed by this link: open the customer portal instead"
)


class PortalAction(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a customer does behind a link: add a payment method, cancel, or confirm the change of a
    subscription's item to a price and a quantity.
    """

    kind: ActionKind
    subscription_id: str | None = None
    item_id: str | None = None
    price_id: str | None = None
    quantity: int | None = None


NEW_PAYMENT_METHOD = PortalAction("payment_method")


def cancellation(account: CustomerAccount) -> PortalAction:
    """Return the cancellation of the customer's only subscription. Raises `ValidationError`."""
    if len(account.subscriptions) != 1:
        raise ValidationError(("action", _NOT_CHANGEABLE))
    return PortalAction("cancel", account.subscriptions[0].id)


def change_of(
    account: CustomerAccount, price_id: str, quantity: int | None, catalog: Catalog
) -> PortalAction:
    """Return the change of the customer's only item; without a ``quantity`` that stays. Raises
    `ValidationError`.

    The provider changes no subscription with several items in this way.
    """
    only = account.only_item
    if only is None:
        raise ValidationError(("action", _NOT_CHANGEABLE))
    plan = catalog.plan(catalog.plan_of_price(price_id) or "")
    if plan is None:
        raise ValidationError(("price", "is not a price of the plan catalog"))
    if quantity is not None and plan.seats_follow_members:
        raise ValidationError(("quantity", "follows the active members"))
    subscription, item = only
    return PortalAction(
        "change",
        subscription.id,
        item.id,
        price_id,
        item.quantity if quantity is None else quantity,
    )
