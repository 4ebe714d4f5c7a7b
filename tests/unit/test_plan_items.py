"""The item that gives a subscription its plan, of several (`SUBSCRIPTIONS=each`)."""

from datetime import UTC, datetime

import pytest

from tenantry.domain.billing.anomalies import anomalies
from tenantry.domain.billing.events import Anomaly, SubscriptionDetails, SubscriptionItem
from tenantry.domain.billing.ledger import ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy, PlanItem, SubscriptionRule, plan_item
from tests.support.facts import updated
from tests.support.subscription_histories import CATALOG

EACH = BillingPolicy(CATALOG, SubscriptionRule.EACH)
ANY = BillingPolicy(CATALOG, SubscriptionRule.ANY)


def decided(*prices: str) -> PlanItem:
    """The plan item of these prices; the first has quantity 1, the second 2, and so on."""
    items = tuple(SubscriptionItem(price, number) for number, price in enumerate(prices, start=1))
    return plan_item(updated(price_id=prices[0], details=SubscriptionDetails(items=items)), EACH)


@pytest.mark.parametrize(
    ("prices", "plan", "seats"),
    [
        (("price_pro", "price_new"), "pro", 1),
        (("price_new", "price_pro"), "pro", 2),
        (("price_new", "price_projects"), "free", None),
    ],
)
def test_an_unknown_price_is_reported_and_leaves_the_plan(
    prices: tuple[str, ...], plan: str, seats: int | None
) -> None:
    item = decided(*prices)
    assert (item.plan, item.seats, item.unknown) == (plan, seats, ("price_new",))


@pytest.mark.parametrize(
    ("prices", "plan", "seats"),
    [
        (("price_projects", "price_pro"), "pro", 2),
        (("price_pro", "price_business"), "business", 2),
        (("price_business", "price_pro"), "business", 1),
        (("price_pro", "price_pro_yearly"), "pro", 1),
    ],
)
def test_the_item_of_the_highest_plan_counts_wherever_it_stands(
    prices: tuple[str, ...], plan: str, seats: int
) -> None:
    item = decided(*prices)
    assert (item.plan, item.seats, item.unknown) == (plan, seats, ())
    assert item.is_one_of_several == ("price_projects" not in prices)


@pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])
def test_the_price_of_an_addon_is_not_unknown(policy: BillingPolicy) -> None:
    addon = updated(price_id="price_projects")
    item = plan_item(addon, policy)
    assert (item.plan, item.seats, item.unknown) == ("free", None, ())
    assert item.reason == "price price_projects is of add-on extra_projects, which means plan free"
    assert anomalies(ReceivedEvent(addon, datetime.now(UTC)), policy) == ()
    unknown = updated(price_id="price_new")
    assert anomalies(ReceivedEvent(unknown, datetime.now(UTC)), policy) == (Anomaly.UNKNOWN_PRICE,)


def test_an_item_of_quantity_0_is_no_plan_item() -> None:
    items = SubscriptionItem("price_business", 0), SubscriptionItem("price_pro", 2)
    item = plan_item(
        updated(price_id="price_business", details=SubscriptionDetails(items=items)), EACH
    )
    assert (item.plan, item.seats, item.is_one_of_several) == ("pro", 2, False)
    item = plan_item(
        updated(price_id="price_business", details=SubscriptionDetails(items=items[:1])), EACH
    )
    assert (item.plan, item.seats) == ("free", None)
    assert item.reason == "the quantity of price price_business is 0, which means plan free"
