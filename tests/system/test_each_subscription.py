"""Laws of `SUBSCRIPTIONS=each` for cases too slow for `tests/laws`: 5,040 orders, and 20,000 random histories."""

import pytest

from tests.laws.test_each_subscription import LONG
from tests.support import figures
from tests.support.subscription_histories import SCENES, Scene
from tests.support.subscription_orders import check_in_batches, check_one_at_a_time, check_random_histories

HISTORIES = 20_000
AT_ONCE = 2_500


def by_name(scene: Scene) -> str:
    return scene.name


@pytest.mark.parametrize("scene", LONG, ids=by_name)
def test_every_order_ends_as_the_oracle_says_and_passes_through_nothing_else(
    scene: Scene, record_property: figures.RecordProperty
) -> None:
    check_one_at_a_time(scene, record_property)


@pytest.mark.parametrize("scene", SCENES, ids=by_name)
def test_every_order_in_batches_ends_as_the_oracle_says(scene: Scene, record_property: figures.RecordProperty) -> None:
    check_in_batches(scene, record_property)


@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_random_histories_end_as_the_oracle_says(first: int, record_property: figures.RecordProperty) -> None:
    check_random_histories(range(first, first + AT_ONCE), 4, record_property)
