"""Laws of grants: every order of delivery of a history with grants and subscriptions leads to one
state, that of an independent oracle.
"""

import random
from itertools import islice, permutations
from typing import Final

import pytest
from hypothesis import settings

from tenantry.domain.billing.state import SubscriptionRule
from tenantry.domain.billing.tenant_record import BillingRecord
from tests.support import figures
from tests.support.facts import grant_ended, granted
from tests.support.ledger import Ledger, ledger_of
from tests.support.random_grants import with_grants
from tests.support.random_subscription_histories import random_history
from tests.support.subscription_histories import CATALOG, HOUR, START, Script
from tests.support.subscription_oracle import Expected, Rules
from tests.support.subscription_orders import (
    access_in,
    batched,
    moments,
    one_at_a_time,
    policy_of,
    random_orders,
    record_in,
)

SEEDS: Final = 3 * settings().max_examples
RULES: Final = Rules(CATALOG)
END: Final = START + 40 * 86_400


def contract_beside_a_checkout() -> Script:
    """A grant, an abandoned checkout of a higher plan, more terms, and the end of the grant."""
    script = Script()
    script.events.append(granted(script.now, "g1", plan="pro", until=END))
    script.later(HOUR)
    script.appears("sub_1", "incomplete", price="price_business")
    script.later(HOUR)
    script.events.append(granted(script.now, "g2", "more", limits=(("projects", 7),)))
    script.later(HOUR)
    script.changes("sub_1", status="active")
    script.later(HOUR)
    script.ends("sub_1")
    script.later(HOUR)
    script.events.append(grant_ended(script.now, "g3", "more"))
    return script


def test_every_order_with_grants_goes_and_ends_as_the_oracle_says(
    record_property: figures.RecordProperty,
) -> None:
    happened = contract_beside_a_checkout().events
    ends = one_at_a_time(happened, RULES)
    ran = {"orders": ends.orders, "comparisons": ends.parts}
    figures.record(record_property, "Every order with grants", ran, {"tenantry": len(ends.wrong)})
    assert (ends.orders, ends.states, ends.wrong) == (720, 1, {})


def test_random_histories_with_grants_end_as_the_oracle_says(
    record_property: figures.RecordProperty,
) -> None:
    delivered, wrong = 0, dict[int, object]()
    for seed in range(SEEDS):
        history, rng = random_history(seed), random.Random(seed)  # noqa: S311  # repeatable
        happened = with_grants(history.events, rng, rng.randint(1, 6))
        orders = [[[event] for event in happened], *random_orders(happened, rng, 8)]
        ends = batched(happened, history.rules, orders, history.customers)
        delivered += ends.orders
        if ends.states != 1 or ends.wrong:
            wrong[seed] = (ends.states, ends.wrong)
    ran = {"histories": SEEDS, "orders": delivered}
    figures.record(record_property, "Random histories with grants", ran, {"tenantry": len(wrong)})
    assert not wrong, dict(list(wrong.items())[:2])


def test_orders_with_any_keep_the_fields_of_the_subscription_and_the_access_of_grants() -> None:
    happened = contract_beside_a_checkout().events
    rules = RULES._replace(subscriptions=SubscriptionRule.ANY)
    expected, policy, found = Expected(happened, rules), policy_of(rules), set[object]()
    record = BillingRecord()
    for order in islice(permutations(happened), 0, None, 7):
        ledger = ledger_of(policy, order)
        record, folds = ledger.account.record, ledger.account.folds
        found.add((record, tuple((key, folds[key].state) for key in sorted(folds))))
    assert len(found) == 1
    assert record_in(record) == expected.record
    now = max(event.created for event in happened)
    for moment in moments(record, expected, now):
        assert access_in(record, moment, rules) == expected.access_at(moment)


@pytest.mark.parametrize("mode", SubscriptionRule)
def test_more_than_fifty_grants_of_a_lifetime_leave_those_that_count(
    mode: SubscriptionRule,
) -> None:
    ledger = Ledger(policy_of(RULES._replace(subscriptions=mode)))
    ledger.deliver([granted(START, "first", "first", plan="pro")])
    for number in range(60):
        name, second = f"n{number}", START + 2 * number
        ledger.deliver([granted(second, f"s{number}", name, plan="business")])
        ledger.deliver([grant_ended(second + 1, f"e{number}", name)])
    assert len(ledger.account.folds) == 50
    assert ledger.account.record.access[0].plan == "pro"
    again = granted(START, "late", "n0", plan="business")
    ledger.deliver([again])  # it arrives after its end, which the document has left out
    assert ledger.account.record.access[0].plan == "pro"
