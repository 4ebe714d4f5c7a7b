"""Mode `any` gives the states that it gave before there was a state of each subscription: all
recorded histories.
"""

import pytest

from tests.support.recorded_states import check


@pytest.mark.parametrize("subscriptions", ["one", "two"])
def test_histories_end_as_recorded(subscriptions: str) -> None:
    check(subscriptions)
