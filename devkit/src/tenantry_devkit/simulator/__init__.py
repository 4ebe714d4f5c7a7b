"""The payment provider (Stripe's formats) in memory, with a clock: for tests and for development."""

from tenantry_devkit.simulator.api_requests import ApiError
from tenantry_devkit.simulator.delivery import Attempt, Delivery, Misbehaviour, State
from tenantry_devkit.simulator.engine import AccountState
from tenantry_devkit.simulator.objects import (
    Card,
    CheckoutSession,
    Customer,
    Event,
    Invoice,
    PortalSession,
    Price,
    Subscription,
    WebhookEndpoint,
)
from tenantry_devkit.simulator.shapes import NEW_VERSION, OLD_VERSION, render_event
from tenantry_devkit.simulator.simulator import PRICES, SECRET_KEY, Simulator
from tenantry_devkit.simulator.subscriptions import FirstPayment, Rules

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
    "Event",
    "FirstPayment",
    "Invoice",
    "Misbehaviour",
    "PortalSession",
    "Price",
    "Rules",
    "Simulator",
    "State",
    "Subscription",
    "WebhookEndpoint",
    "render_event",
]
