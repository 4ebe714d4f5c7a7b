"""The law of billing for cases too slow for `tests/laws`: short histories in the old shape, and
histories with 5,040 orders.
"""

import pytest

from tests.laws.test_every_order import SHORT_PLOTS
from tests.support import figures
from tests.support.events import Shape
from tests.support.histories import PLOTS, Plot
from tests.support.orders import check_every_order


@pytest.mark.parametrize(
    ("plot", "shape"),
    [
        pytest.param(plot, shape, id=f"{plot.name}-{shape.name.lower()}")
        for plot in PLOTS
        for shape in [Shape.OLD if plot in SHORT_PLOTS else Shape.NEW]
    ],
)
def test_every_order_of_a_history_ends_in_the_truth(
    plot: Plot, shape: Shape, record_property: figures.RecordProperty
) -> None:
    check_every_order(plot, shape, record_property)
