"""Laws of `SUBSCRIPTIONS=each` for cases too slow for `tests/laws`: 5,040 orders, and 2,000 random
histories.
"""

import pytest

from tests.laws.test_each_subscription_laws import LONG
from tests.support import figures
from tests.support.subscription_histories import NAMED_HISTORIES, NamedHistory
from tests.support.subscription_orders import (
    check_in_batches,
    check_one_at_a_time,
    check_random_histories,
)

HISTORIES = 2_000
AT_ONCE = 1_000
EVERY = 15
"""Of the orders in batches; an odd number meets each way to cut an order."""


def by_name(history: NamedHistory) -> str:
    return history.name


@pytest.mark.parametrize("history", LONG, ids=by_name)
def test_every_order_ends_as_the_oracle_says_and_passes_through_nothing_else(
    history: NamedHistory, record_property: figures.RecordProperty
) -> None:
    check_one_at_a_time(history, record_property)


@pytest.mark.parametrize("history", NAMED_HISTORIES, ids=by_name)
def test_orders_in_batches_end_as_the_oracle_says(
    history: NamedHistory, record_property: figures.RecordProperty
) -> None:
    check_in_batches(history, record_property, every=EVERY)


@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_random_histories_end_as_the_oracle_says(
    first: int, record_property: figures.RecordProperty
) -> None:
    check_random_histories(range(first, first + AT_ONCE), 4, record_property)
