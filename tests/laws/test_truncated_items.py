"""Events with only the first items of a subscription: what was known of the others stays, in every
order of delivery.
"""

from collections.abc import Sequence
from itertools import permutations, zip_longest
from typing import Any, Final

import pytest

from tenantry.domain.billing.events import BillingEvent, SubscriptionDetails, SubscriptionItem
from tenantry.domain.billing.state import BillingPolicy, SubscriptionRule
from tenantry.domain.plans import parse_catalog
from tests.support.catalogs import PLANS
from tests.support.facts import observed, updated
from tests.support.ledger import ledger_of

CATALOG: Final = parse_catalog(
    PLANS
    + "".join(
        f'[[addons]]\nid = "{name}"\nstripe_price_id = "price_{name}"\n'
        for name in ("storage", "archive", "support")
    )
)


def items(*prices: str, ids: Sequence[str] = (), is_truncated: bool = False) -> dict[str, Any]:
    """The facts of a subscription with these items, and more if it ``is_truncated``."""
    listed = tuple(
        SubscriptionItem(price, number, id=item_id)
        for number, (price, item_id) in enumerate(zip_longest(prices, ids), start=1)
    )
    details = SubscriptionDetails(listed, is_truncated=is_truncated)
    return {"price_id": prices[0], "details": details}


def in_every_order(
    history: list[BillingEvent], rule: SubscriptionRule
) -> set[tuple[str, tuple[tuple[str, int], ...]]]:
    """Return the plans and add-ons in which the orders of delivery end."""
    ends = set()
    for order in permutations(history):
        [phase, *_] = ledger_of(BillingPolicy(CATALOG, rule), order).account.record.access
        ends.add((phase.plan, phase.addons))
    return ends


def test_in_any_the_addons_that_an_event_leaves_out_stay() -> None:
    history = [
        updated(100, "evt_1", **items("price_pro", "price_storage", "price_support")),
        updated(200, "evt_2", **items("price_pro", "price_storage", is_truncated=True)),
        updated(300, "evt_3", **items("price_pro", is_truncated=True)),
        updated(400, "evt_4", **items("price_pro", "price_storage", is_truncated=True)),
    ]
    addons = ("storage", 2), ("support", 3)
    assert in_every_order(history, SubscriptionRule.ANY) == {("pro", addons)}


def test_in_each_the_plan_that_an_event_leaves_out_stays() -> None:
    history = [
        updated(100, "evt_1", **items("price_storage", "price_support", "price_pro")),
        updated(200, "evt_2", **items("price_storage", "price_support", is_truncated=True)),
        updated(300, "evt_3", **items("price_storage", is_truncated=True)),
    ]
    addons = ("storage", 1), ("support", 2)
    assert in_every_order(history, SubscriptionRule.EACH) == {("pro", addons)}


@pytest.mark.parametrize("rule", SubscriptionRule)
def test_an_item_with_another_price_replaces_the_known_one(rule: SubscriptionRule) -> None:
    known = items("price_business", "price_storage", "price_support", ids=("si_1", "si_2", "si_3"))
    cut = items("price_pro", "price_archive", ids=("si_1", "si_2"), is_truncated=True)
    history = [updated(100, "evt_1", **known), updated(200, "evt_2", **cut)]
    addons = ("archive", 2), ("support", 3)
    assert in_every_order(history, rule) == {("pro", addons)}


@pytest.mark.parametrize("rule", SubscriptionRule)
def test_a_known_price_counts_once_with_another_item(rule: SubscriptionRule) -> None:
    known = items("price_pro", "price_storage", "price_support", ids=("si_1", "si_2", "si_3"))
    history = [updated(100, "evt_1", **known)]
    for second, ids in enumerate([("si_4", "si_5"), ()], start=200):
        cut = items("price_pro", "price_storage", ids=ids, is_truncated=True)
        history.append(updated(second, f"evt_{second}", **cut))
    addons = ("storage", 2), ("support", 3)
    assert in_every_order(history, rule) == {("pro", addons)}


@pytest.mark.parametrize("rule", SubscriptionRule)
def test_what_the_provider_answers_is_whole(rule: SubscriptionRule) -> None:
    history = [
        updated(100, "evt_1", **items("price_pro", "price_storage", "price_support")),
        updated(200, "evt_2", **items("price_pro", is_truncated=True)),
        observed(300, **items("price_pro", "price_support")),
    ]
    assert in_every_order(history, rule) == {("pro", (("support", 2),))}
