"""The figures of docs/explanation/growth.md follow from the costs that the page names."""

import math
import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.cases import cases

PAGE: Final = (Path(__file__).parents[2] / "docs" / "explanation" / "growth.md").read_text()
ROWS: Final = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line[:1] == "|"
]
USED_SHARE: Final = 0.7
CORES_OF_A_DATABASE: Final = 32
EVENTS_A_MONTH: Final = 10
KEYS: Final = 5
MONTH: Final = 30 * 24 * 3600
UNITS: Final = {"": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def number(text: str) -> float:
    return float(text.replace(",", ""))


def found(pattern: str) -> tuple[float, ...]:
    """The numbers of the one place of the page that a pattern describes."""
    [match] = re.findall(pattern, PAGE)
    return tuple(number(each) for each in ([match] if isinstance(match, str) else match))


def quantities(cell: str) -> list[float]:
    """The quantities of a cell, in bytes if they have a unit; the last unit is that of all: ``10 to
    38 MB``.
    """
    unit = UNITS[(re.findall(r"[KMGT]B", cell) or [""])[-1]]
    return [number(each) * unit for each in re.findall(r"[\d,.]+\d|\d", cell)]


def two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def row(title: str) -> list[list[float]]:
    [cells] = [cells for cells in ROWS if cells[0] == title]
    return [quantities(cell) for cell in cells[1:]]


LIST: Final = found(
    r"\| ([\d.]+) us of the service, ([\d.]+) us of PostgreSQL \| request with an API key"
)
EVENT: Final = found(r"\| ([\d.]+) us, ([\d.]+) us \| event \|")
LARGE: Final = found(r"\| ([\d.]+) and ([\d.]+) times PostgreSQL's time")
REQUESTS: Final = [cells for cells in ROWS if re.fullmatch(r"[\d,]+ x [\d,]+", cells[0])]
TENANTS: Final = (1e4, 1e6, 1e8)


@cases("cells", REQUESTS, ids=[cells[0] for cells in REQUESTS])
def test_cores_and_databases_follow_from_the_cost_of_a_list(cells: list[str]) -> None:
    each, of_each = map(number, cells[0].split(" x "))
    total = each * of_each
    service, database = (total * cost / 1e6 / USED_SHARE for cost in (LIST[0], LIST[1] * LARGE[0]))
    databases = math.ceil(database / CORES_OF_A_DATABASE)
    assert [number(cell) for cell in cells[1:4]] == [
        total,
        two_digits(service),
        two_digits(database),
    ]
    assert number(cells[4]) == (databases if databases < 100 else two_digits(databases))


def test_every_combination_of_tenants_and_rates_has_a_row() -> None:
    assert {cells[0] for cells in REQUESTS} == {
        f"{each:,.0f} x {rate:,}" for each in TENANTS for rate in (10, 100, 1000)
    }


def test_disk_follows_from_the_size_of_a_row() -> None:
    [tenant], [key], [event] = (
        found(rf"\| ([\d.]+) KB[^|]*\| {what}")
        for what in ("tenant", "API key", "event in the ledger")
    )
    [body] = found(r"\| ([\d.]+) KB for `RAW_BODY_DAYS`")
    for title, kilobytes in (
        ("tenants and their keys", tenant + KEYS * key),
        ("ledger, for each year", 12 * EVENTS_A_MONTH * event),
        ("raw bodies, for 90 days", 3 * EVENTS_A_MONTH * body),
    ):
        for [shown], tenants in zip(row(title), TENANTS, strict=True):
            assert shown == pytest.approx(1000 * kilobytes * tenants, rel=0.05), title


def test_the_log_follows_from_that_of_an_event() -> None:
    [least], [factor] = (
        found(r"\| ([\d.]+) KB of log \(WAL\) \| event"),
        found(r"\| ([\d.]+) times the log \| event"),
    )
    for shown, tenants in zip(row("log a day, at least and at most"), TENANTS, strict=True):
        daily = 1000 * least * EVENTS_A_MONTH / 30 * tenants
        assert shown == pytest.approx([daily, factor * daily], rel=0.05)


def test_events_a_second_and_their_cores_follow_from_the_assumptions() -> None:
    averages = [tenants * EVENTS_A_MONTH / MONTH for tenants in TENANTS]
    for shown, average in zip(row("events a second: average, peak"), averages, strict=True):
        assert shown == pytest.approx([average, 10 * average], rel=0.05)
    for shown, average in zip(row("cores at the peak: service, PostgreSQL"), averages, strict=True):
        costs = (EVENT[0], EVENT[1] * LARGE[1])
        assert shown == pytest.approx(
            [10 * average * cost / 1e6 / USED_SHARE for cost in costs], abs=0.05
        )
