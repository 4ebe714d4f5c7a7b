"""The payment provider (Stripe's formats) in memory, with a clock: for tests and for development."""

from tenantry.simulator.delivery import Attempt, Delivery, State
from tenantry.simulator.errors import ApiError
from tenantry.simulator.misbehaviour import Misbehaviour
from tenantry.simulator.objects import (
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
from tenantry.simulator.rendering import render_event
from tenantry.simulator.shapes import NEW_VERSION, OLD_VERSION
from tenantry.simulator.simulator import PRICES, SECRET_KEY, Simulator
from tenantry.simulator.state import AccountState
from tenantry.simulator.subscriptions import FirstPayment, Rules

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
