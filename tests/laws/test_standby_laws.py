"""Checks on standbys: after an acknowledged change no check misses it, whatever fails and however
long each step takes. The product's rules run in a simulated world; `tests/system` shows that it
finds the mistakes that are easy to make.
"""

from collections.abc import Iterator

from hypothesis import settings

from tenantry.domain.standby_checks import (
    CheckSource,
)
from tests.support import figures
from tests.support.standby_simulation import Protocol, Simulation

SECONDS = 6.0
"""Of one run. In short runs much happens at the beginning, and right after a failure."""


def runs(protocol: Protocol, number: int) -> Iterator[Simulation]:
    for seed in range(number):
        simulation = Simulation(seed, protocol)
        simulation.run(SECONDS)
        yield simulation


def test_no_check_misses_an_acknowledged_change(record_property: figures.RecordProperty) -> None:
    number = 20 * settings().max_examples
    by_standby = acknowledged = stale = 0
    for simulation in runs(Protocol(), number):
        by_standby += simulation.sources[CheckSource.STANDBY]
        acknowledged += len(simulation.acknowledged)
        stale += simulation.stale is not None
        assert not simulation.stale, simulation.stale
    figures.record(
        record_property,
        "Checks on simulated standbys",
        {"checks": by_standby, "changes": acknowledged, "runs": number},
        {"stale": stale},
    )
    assert by_standby > 20 * number
    assert acknowledged > 20 * number
