"""A simulated Stripe-compatible payment provider, in memory, with a clock that tests move."""

from tenantry_devkit.simulator.account import ApiError
from tenantry_devkit.simulator.delivery import Attempt, Delivery, DeliveryRule, State
from tenantry_devkit.simulator.engine import PRICES, SECRET_KEY, AccountState
from tenantry_devkit.simulator.invoices import Rules
from tenantry_devkit.simulator.objects import (
    NEW_VERSION,
    OLD_VERSION,
    Card,
    CheckoutSession,
    Customer,
    Invoice,
    PauseCollection,
    PortalFlow,
    PortalSession,
    Price,
    ProviderEvent,
    Subscription,
    WebhookEndpoint,
    render_event,
)
from tenantry_devkit.simulator.simulator import Simulator
from tenantry_devkit.simulator.subscriptions import FirstPayment, ItemChange

__all__ = [
    "NEW_VERSION",
    "OLD_VERSION",
    "PRICES",
    "SECRET_KEY",
    "AccountState",
    "ApiError",
    "Attempt",
    "Card",
    "CheckoutSession",
    "Customer",
    "Delivery",
    "DeliveryRule",
    "FirstPayment",
    "Invoice",
    "ItemChange",
    "PauseCollection",
    "PortalFlow",
    "PortalSession",
    "Price",
    "ProviderEvent",
    "Rules",
    "Simulator",
    "State",
    "Subscription",
    "WebhookEndpoint",
    "render_event",
]
