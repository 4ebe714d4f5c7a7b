"""What the simulated provider refuses of a checkout and a subscription, as the provider does."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from tenantry_devkit.simulator import ApiError, ItemChange, Simulator
from tests.support.simulator import a_simulator


def _checkout(*items: tuple[str, int | None], **more: Any) -> Callable[[Simulator], object]:
    return lambda sim: sim.checkout(items, **more)


def _subscribe(*items: tuple[str, int | None], **more: Any) -> Callable[[Simulator], object]:
    return lambda sim: sim.subscribe("cus_1", items, **more)


def _change(**change: Any) -> Callable[[Simulator], object]:
    def act(sim: Simulator) -> object:
        made = sim.subscribe("cus_1", [("price_metered", None)])
        return sim.update_subscription(made, items=[ItemChange(made.items[0].id, **change)])

    return act


def _in_other_currency(sim: Simulator) -> object:
    sim.subscribe("cus_1", "price_pro")
    return sim.checkout("price_usd", customer="cus_1")


REFUSED: Final = [
    ("Remove quantity from `line_items[0]`", _checkout(("price_metered", 1))),
    ("Add `quantity` to `line_items[1]`", _checkout(("price_pro", 1), ("price_business", None))),
    ("greater than or equal to 1", _checkout(("price_pro", 0))),
    ("different billing intervals", _checkout(("price_pro", 1), ("price_yearly", 1))),
    ("expected currency: `eur`", _checkout(("price_pro", 1), ("price_usd", 1))),
    ("You cannot combine currencies on a single customer", _in_other_currency),
    ("at most 20 recurring prices", _checkout(*[("price_pro", 1)] * 21)),
    ("730 (2 years)", _checkout(("price_pro", 1), trial_days=731)),
    ("cannot set the quantity for metered plans", _subscribe(("price_metered", 2))),
    ("items with the same plan", _subscribe(("price_pro", 1), ("price_pro", 1))),
    ("cannot set the quantity for metered plans", _change(quantity=3)),
    ("greater than or equal to 0", _change(price="price_pro", quantity=-1)),
]


def test_what_the_provider_refuses() -> None:
    for message, act in REFUSED:
        sim = a_simulator()
        sim.customer("cus_1")
        sim.price("price_metered", 1, usage_type="metered")
        sim.price("price_yearly", interval="year")
        sim.price("price_usd", currency="usd")
        with pytest.raises(ApiError) as refused:
            act(sim)
        assert refused.value.status == 400, message
        assert message in refused.value.error["message"]


def test_an_item_of_another_price_has_the_quantity_that_the_price_allows() -> None:
    sim = a_simulator()
    sim.price("price_metered", 1, usage_type="metered")
    made = sim.subscribe(sim.customer(), [("price_pro", 4)])
    sim.change_plan(made, "price_metered")
    assert sim.subscriptions[made.id].items[0].quantity is None
    sim.change_plan(made, "price_pro")
    assert sim.subscriptions[made.id].items[0].quantity == 1
