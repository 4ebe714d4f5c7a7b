"""Mode `any` gives the recorded states, byte for byte.

`tests/system` compares all of the recorded histories.
"""

from tests.support.recorded_states import check


def test_histories_of_one_subscription_end_as_recorded() -> None:
    check("one", most=20)


def test_histories_of_two_subscriptions_end_as_recorded() -> None:
    check("two", most=10)
