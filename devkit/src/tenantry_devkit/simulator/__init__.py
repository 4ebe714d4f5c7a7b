"""A simulated Stripe-compatible payment provider, in memory, with a clock that tests move."""

import warnings
from typing import TYPE_CHECKING

from tenantry_devkit.simulator.billing import FirstPayment, Rules
from tenantry_devkit.simulator.delivery import Attempt, Delivery, DeliveryRule, State
from tenantry_devkit.simulator.engine import PRICES, SECRET_KEY, AccountState
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
from tenantry_devkit.simulator.requests import ApiError
from tenantry_devkit.simulator.shapes import NEW_VERSION, OLD_VERSION, render_event
from tenantry_devkit.simulator.simulator import Simulator

__all__ = [
    "NEW_VERSION", "OLD_VERSION", "PRICES", "SECRET_KEY", "AccountState", "ApiError", "Attempt", "Card",
    "CheckoutSession", "Customer", "Delivery", "DeliveryRule", "Event", "FirstPayment", "Invoice", "PortalSession",
    "Price", "Rules", "Simulator", "State", "Subscription", "WebhookEndpoint", "render_event",
]  # fmt: skip

if not TYPE_CHECKING:  # otherwise type checkers accept any name

    def __getattr__(name: str) -> type[DeliveryRule]:
        """Return the class of a former name, with a deprecation warning (PEP 562)."""
        if name != "Misbehaviour":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warnings.warn("Misbehaviour is now DeliveryRule", DeprecationWarning, stacklevel=2)
        return DeliveryRule
