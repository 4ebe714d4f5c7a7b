"""A dashboard whose plans are sold by the simulated provider, and subscriptions there."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from tenantry_devkit.simulator import SECRET_KEY, Simulator, Subscription
from tests.support.catalogs import catalog_file
from tests.support.dashboard import AT_ACME, CUSTOMER, OLIVIA, Dashboard, Person
from tests.support.events import updated
from tests.support.serving import LOOPBACK, serving, url_of

BILLING: Final = f"{AT_ACME}/billing"
CATALOG: Final = """
[[features]]
id = "sso"
type = "boolean"
[[features]]
id = "calls"
type = "metered"

[[plans]]
id = "free"
name = "Free"
[plans.limits]
projects = 3

[[plans]]
id = "pro"
name = "Pro"
stripe_price_id = ["price_pro", "price_pro_yearly"]
[plans.limits]
projects = 100
[plans.features]
sso = true
calls = 10000

[[plans]]
id = "business"
name = "Business"
stripe_price_id = ["price_business", "price_business_yearly"]

[[plans]]
id = "team"
name = "Team"
stripe_price_id = "price_team"
seats = "members"
"""


def selling_settings(sim: Simulator) -> dict[str, str]:
    """The settings for the catalog and the simulated provider."""
    return {
        "PROVIDER_SECRET_KEY": SECRET_KEY,
        "PROVIDER_API_BASE": sim.url,
        "TENANTRY_PLANS": catalog_file(CATALOG),
    }


@asynccontextmanager
async def simulated_provider() -> AsyncIterator[Simulator]:
    """The simulated provider with the prices of the catalog, listening during the block."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        sim = Simulator(url=url_of(listener))
        sim.customer(CUSTOMER)
        sim.price("price_pro_yearly", 29000, interval="year")
        sim.price("price_business_yearly", 99000, interval="year")
        sim.price("price_team", 900)
        async with serving(sim, listener):
            yield sim


async def until_prices_are_shown(owner: Person) -> None:
    """Wait until the service has read the prices, which it does in the background."""
    while "29.00 EUR" not in (await owner.open(BILLING)).text:
        pass


async def subscribed(
    dashboard: Dashboard, sim: Simulator, price: str = "price_pro", quantity: int = 1, **more: Any
) -> Subscription:
    """A subscription of acme, which is a customer that no other test has."""
    customer = sim.customer(**more)
    await link(dashboard, customer.id)
    subscription = sim.subscribe(customer, [(price, quantity)])
    event = updated(customer=customer.id, subscription_id=subscription.id, price=price)
    await dashboard.deliver(event)
    return subscription


async def link(dashboard: Dashboard, customer_id: str) -> None:
    fields = {
        "name": "Acme",
        "ownerEmail": OLIVIA.email,
        "ownerId": OLIVIA.sub,
        "stripeCustomerId": customer_id,
    }
    await dashboard.operate("PUT", "/tenants/acme", fields)
