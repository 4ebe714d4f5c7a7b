"""Figures from tests, for the end of pytest's report.

They travel as properties of the test's report, so that they arrive from the processes of
pytest-xdist too.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import pytest

TITLE: Final = "Counted by the tests"
_PROPERTY: Final = "orders_of_delivery"

RecordProperty = Callable[[str, object], None]


def record(
    record_property: RecordProperty, what: str, ran: Mapping[str, int], wrong: Mapping[str, int]
) -> None:
    """Note that so much ran, and how much of it ended wrong by whose rule; the first of ``ran`` is
    what is counted.
    """
    record_property(_PROPERTY, {"what": what, "ran": dict(ran), "wrong": dict(wrong)})


def lines(reports: Iterable[pytest.TestReport]) -> list[str]:
    """One line for each kind of figures, added up over the tests that recorded them."""
    ran: dict[str, Counter[str]] = {}
    wrong: dict[str, Counter[str]] = {}
    for report in reports:
        for name, figures in report.user_properties:
            if name == _PROPERTY and isinstance(figures, dict):
                ran.setdefault(figures["what"], Counter()).update(figures["ran"])
                wrong.setdefault(figures["what"], Counter()).update(figures["wrong"])
    return [
        f"{what}: {_counts(ran[what])}; wrong: {_shares(wrong[what], ran[what])}" for what in ran
    ]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _shares(wrong: Mapping[str, int], ran: Mapping[str, int]) -> str:
    all_of_them = next(iter(ran.values()))
    return ", ".join(
        f"{name} {count:,} ({count / all_of_them:.1%})" for name, count in wrong.items()
    )
