"""A payment provider's account that was in use for months before tenantry: customers of every kind.

Each kind says what happened at the provider, which of its customers the vendor's own table has, and
what its tenants have once they are migrated.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tenantry_devkit.simulator import Card, Simulator, Subscription
from tests.support.truth import World

SWITCH: Final = 78
"""The day on which tenantry's endpoint is added to the account."""
LEGACY: Final = "price_legacy"
"""A price that no plan of the catalog has."""


class Result(NamedTuple):
    """What a tenant has in the end: plan, subscription status, access, and the plan of its
    limits.
    """

    plan: str
    status: str
    access: str
    limits: str


PRO: Final = Result("pro", "active", "full", "pro")
BUSINESS: Final = Result("business", "active", "full", "business")
OVER: Final = Result("free", "canceled", "none", "free")
NOTHING: Final = Result("free", "none", "none", "free")


def nothing(_simulator: Simulator, _tenant: str) -> None:
    """Let nothing happen."""


class Kind(NamedTuple):
    """Customers that have the same history.

    On the day ``day`` of the account ``begins`` makes the customer of a tenant, and returns those
    that the vendor's own table has for the tenant. ``meanwhile`` happens after the endpoint was
    added, and before the tenant exists. ``first`` is what `reconcile` says of it at first;
    ``each`` the result with ``SUBSCRIPTIONS=each``, if it is another one.
    """

    name: str
    day: int
    begins: Callable[[Simulator, str], Sequence[str]]
    result: Result
    each: Result | None = None
    first: str = "compared"
    later: Callable[[Simulator, str], object] = nothing
    meanwhile: Callable[[Simulator, str], object] = nothing
    is_tenant: bool = True


def subscribed(
    simulator: Simulator,
    customer: str,
    price: str = "price_pro",
    *,
    names: str | None = None,
    card: Card = Card.WORKS,
    **options: Any,
) -> Subscription:
    """A customer, new if there is none of this name, takes a subscription, whose metadata may name
    a tenant.
    """
    if customer not in simulator.customers:
        simulator.customer(customer, card=card)
    metadata = {} if names is None else {"orgId": names}
    return simulator.subscribe(customer, price, metadata=metadata, **options)


def newest(simulator: Simulator, customer: str) -> Subscription:
    return [each for each in simulator.subscriptions.values() if each.customer == customer][-1]


def by_table(simulator: Simulator, tenant: str) -> Sequence[str]:
    return [subscribed(simulator, f"cus_{tenant}").customer]


def by_metadata(simulator: Simulator, tenant: str) -> Sequence[str]:
    subscribed(simulator, f"cus_{tenant}", names=tenant)
    return []


def by_session(simulator: Simulator, tenant: str) -> Sequence[str]:
    simulator.complete(
        simulator.checkout("price_pro", metadata={"orgId": tenant}, subscription_metadata={})
    )
    return []


def by_nothing(simulator: Simulator, tenant: str) -> Sequence[str]:
    subscribed(simulator, f"cus_{tenant}")
    return []


def by_former_id(simulator: Simulator, tenant: str) -> Sequence[str]:
    return [subscribed(simulator, f"cus_{tenant}", names=f"former-{tenant}").customer]


def without_subscription(simulator: Simulator, tenant: str) -> Sequence[str]:
    return [simulator.customer(f"cus_{tenant}").id]


def in_trial(simulator: Simulator, tenant: str) -> Sequence[str]:
    return [subscribed(simulator, f"cus_{tenant}", trial_days=14).customer]


def paused_after_trial(simulator: Simulator, tenant: str) -> Sequence[str]:
    trial: dict[str, Any] = {"trial_days": 7, "missing_payment_method": "pause"}
    return [subscribed(simulator, f"cus_{tenant}", card=Card.MISSING, **trial).customer]


def declining(simulator: Simulator, tenant: str) -> Sequence[str]:
    customers = by_table(simulator, tenant)
    simulator.card_declines(customers[0])
    return customers


def never_paid(simulator: Simulator, tenant: str) -> Sequence[str]:
    return [subscribed(simulator, f"cus_{tenant}", card=Card.DECLINES).customer]


def canceled(simulator: Simulator, tenant: str) -> Sequence[str]:
    customers = by_table(simulator, tenant)
    simulator.cancel(newest(simulator, customers[0]))
    return customers


def canceling(simulator: Simulator, tenant: str) -> Sequence[str]:
    customers = by_table(simulator, tenant)
    simulator.cancel(newest(simulator, customers[0]), at_period_end=True)
    return customers


def pausing(simulator: Simulator, tenant: str) -> Sequence[str]:
    customers = by_table(simulator, tenant)
    simulator.pause_collection(newest(simulator, customers[0]))
    return customers


def deleted(simulator: Simulator, tenant: str) -> Sequence[str]:
    customers = by_table(simulator, tenant)
    simulator.delete_customer(customers[0])
    return customers


def of_other_mode(_: Simulator, tenant: str) -> Sequence[str]:
    return [f"cus_{tenant}"]


def of_old_price(simulator: Simulator, tenant: str) -> Sequence[str]:
    return [subscribed(simulator, f"cus_{tenant}", LEGACY).customer]


def two_customers(simulator: Simulator, tenant: str) -> Sequence[str]:
    former = subscribed(simulator, f"cus_{tenant}-former")
    simulator.cancel(former)
    return [former.customer, subscribed(simulator, f"cus_{tenant}", "price_business").customer]


def two_paying_customers(simulator: Simulator, tenant: str) -> Sequence[str]:
    first = subscribed(simulator, f"cus_{tenant}-first", "price_business")
    return [first.customer, simulator.customer(f"cus_{tenant}").id]


def two_subscriptions(simulator: Simulator, tenant: str) -> Sequence[str]:
    return [subscribed(simulator, f"cus_{tenant}", "price_business").customer]


def second_subscription(simulator: Simulator, tenant: str) -> object:
    return subscribed(simulator, f"cus_{tenant}")


def first_of_customer(simulator: Simulator, tenant: str) -> Sequence[str]:
    return [subscribed(simulator, f"cus_{tenant}", names=tenant).customer]


def second_of_customer(simulator: Simulator, tenant: str) -> Sequence[str]:
    shared = f"cus_{tenant.replace('second', 'first')}"
    return [subscribed(simulator, shared, "price_business", names=tenant).customer]


def upgraded(simulator: Simulator, tenant: str) -> object:
    return simulator.change_plan(newest(simulator, f"cus_{tenant}"), "price_business")


def ended(simulator: Simulator, tenant: str) -> object:
    return simulator.cancel(newest(simulator, f"cus_{tenant}"))


PAST_DUE: Final = Result("pro", "past_due", "grace", "pro")
UNPAID: Final = Result("pro", "unpaid", "none", "free")
TRIAL: Final = Result("pro", "trialing", "full", "pro")
PAUSED: Final = Result("pro", "paused", "none", "free")
KINDS: Final = (
    Kind("in the table, no metadata", 0, by_table, PRO),
    Kind("metadata, not in the table", 0, by_metadata, PRO),
    Kind("metadata of the checkout session alone", 0, by_session, PRO),
    Kind("neither table nor metadata", 0, by_nothing, PRO, first="not placed"),
    Kind("metadata name a former id", 0, by_former_id, PRO, first="not placed"),
    Kind("no subscription", 0, without_subscription, NOTHING),
    Kind("trial", SWITCH, in_trial, TRIAL),
    Kind("trial paused without a card", 45, paused_after_trial, PAUSED),
    Kind("past due", 45, declining, PAST_DUE),
    Kind("unpaid after all retries", 0, declining, UNPAID),
    Kind("incomplete", SWITCH, never_paid, NOTHING),
    Kind("expired before the first payment", 45, never_paid, NOTHING),
    Kind("canceled", 0, canceled, OVER, each=NOTHING),
    Kind("cancels at the end of the period", SWITCH, canceling, PRO),
    Kind("collection paused", SWITCH, pausing, PRO),
    Kind("customer deleted", 45, deleted, OVER, each=NOTHING),
    Kind("customer of the other mode", 0, of_other_mode, NOTHING, first="not compared"),
    Kind("price in no plan", 0, of_old_price, PRO),
    Kind("two customers, one canceled", 0, two_customers, BUSINESS),
    Kind(
        "two paying customers",
        0,
        two_paying_customers,
        PRO,
        each=BUSINESS,
        later=second_subscription,
    ),
    Kind(
        "two subscriptions of a customer",
        0,
        two_subscriptions,
        PRO,
        each=BUSINESS,
        later=second_subscription,
    ),
    Kind("first tenant of a shared customer", 0, first_of_customer, PRO),
    Kind("second tenant of a shared customer", 45, second_of_customer, BUSINESS),
    Kind("upgraded during the migration", 45, by_table, BUSINESS, meanwhile=upgraded),
    Kind("ended during the migration", 45, by_table, OVER, meanwhile=ended),
    Kind("no tenant's customer", 0, by_nothing, NOTHING, first="not placed", is_tenant=False),
)


class Company(NamedTuple):
    """A customer of the vendor: the id of its tenant, and its customers in the vendor's table."""

    kind: Kind
    id: str
    customers: Sequence[str]


async def account_in_use(world: World, of_each_kind: int) -> list[Company]:
    """So many companies of each kind, whose history never reached the service."""
    companies, today = list[Company](), 0
    world.simulator.price(LEGACY, 1900)
    async with world.losing_deliveries():
        for kind in sorted(KINDS, key=lambda kind: kind.day):
            await world.passes(days=kind.day - today)
            today = kind.day
            companies += [_company(world, kind, number) for number in range(of_each_kind)]
        for company in companies:
            company.kind.later(world.simulator, company.id)
        await world.passes(hours=1)
    return companies


def _company(world: World, kind: Kind, number: int) -> Company:
    tenant = "-".join([*re.findall("[a-z]+", kind.name), str(number)])
    return Company(kind, tenant, kind.begins(world.simulator, tenant))
