"""The law of billing for the histories that have too many orders for `tests/laws`: 5,040 each, in both shapes."""

import pytest

from tests.laws.test_every_order import SHORT_PLOTS
from tests.support import figures
from tests.support.events import Shape
from tests.support.histories import PLOTS, Plot
from tests.support.orders import check_every_order


@pytest.mark.parametrize("shape", Shape, ids=lambda shape: shape.name.lower())
@pytest.mark.parametrize("plot", [plot for plot in PLOTS if plot not in SHORT_PLOTS], ids=lambda plot: plot.name)
def test_every_order_of_a_history_ends_in_the_truth(
    plot: Plot, shape: Shape, record_property: figures.RecordProperty
) -> None:
    check_every_order(plot, shape, record_property)
