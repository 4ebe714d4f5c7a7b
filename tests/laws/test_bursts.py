"""The law of billing for many events of one second, several subscriptions and invoices among them.

Where the payloads prove the order, every order of arrival ends in the truth; elsewhere the ledger
says that the order is ambiguous. Events that arrive in their true order end in the truth in any
case. `tests/system` has larger samples.
"""

from hypothesis import settings

from tests.support import figures
from tests.support.bursts import (
    check,
    every_order_of_a_burst,
    random_orders_of_a_history,
    random_orders_of_a_long_burst,
    random_orders_of_a_proven_burst,
)


def test_no_order_of_a_burst_ends_wrong_silently(record_property: figures.RecordProperty) -> None:
    check(
        "Every order of a burst",
        (every_order_of_a_burst(seed, 5) for seed in range(3)),
        record_property,
    )


def test_no_order_of_a_long_burst_ends_wrong_silently(
    record_property: figures.RecordProperty,
) -> None:
    check(
        "Orders of long bursts",
        (random_orders_of_a_long_burst(seed, 3) for seed in range(5)),
        record_property,
    )


def test_no_order_of_a_history_with_late_events_ends_wrong_silently(
    record_property: figures.RecordProperty,
) -> None:
    check(
        "Orders of histories",
        (random_orders_of_a_history(seed, 3) for seed in range(8)),
        record_property,
    )


def test_every_order_that_the_payloads_allow_ends_in_the_provider_state(
    record_property: figures.RecordProperty,
) -> None:
    seeds = range(settings().max_examples)
    histories = (random_orders_of_a_proven_burst(seed, 3) for seed in seeds)
    assert check("Orders of proven bursts", histories, record_property).wrong == 0
