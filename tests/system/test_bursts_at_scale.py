"""Many events of one second: samples too slow for `tests/laws`."""

import pytest

from tests.support import figures
from tests.support.bursts import (
    check,
    every_order_of_a_burst,
    random_orders_of_a_history,
    random_orders_of_a_long_burst,
)


@pytest.mark.parametrize("part", range(2))
def test_every_order_of_twenty_bursts(part: int, record_property: figures.RecordProperty) -> None:
    seeds = range(100 + part, 120, 2)
    check(
        "Every order of a burst",
        (every_order_of_a_burst(seed, 6) for seed in seeds),
        record_property,
    )


@pytest.mark.parametrize("part", range(2))
def test_hundreds_of_orders_of_long_bursts(
    part: int, record_property: figures.RecordProperty
) -> None:
    seeds = range(1000 + part, 1050, 2)
    check(
        "Orders of long bursts",
        (random_orders_of_a_long_burst(seed, 9) for seed in seeds),
        record_property,
    )


@pytest.mark.parametrize("part", range(2))
def test_random_histories_with_late_events(
    part: int, record_property: figures.RecordProperty
) -> None:
    seeds = range(2000 + part, 2800, 2)
    check(
        "Orders of histories",
        (random_orders_of_a_history(seed, 1) for seed in seeds),
        record_property,
    )
