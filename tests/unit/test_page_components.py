"""The components of pages: what each promises about its markup."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

import pytest

from tenantry.dashboard.chart_axes import axis_top, bar_paths, texts_below
from tenantry.dashboard.context import TEMPLATES
from tenantry.dashboard.labels import distance_text, labels, show_distance
from tenantry.server.page_assets import page_templates
from tests.support.cases import cases

_NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)


def _render(template: str, **values: object) -> str:
    environment = page_templates(TEMPLATES)
    environment.filters["distance"] = show_distance
    environment.filters["axis_top"] = axis_top
    environment.filters["texts_below"] = texts_below
    environment.filters["bar_paths"] = bar_paths
    environment.globals["labels"] = labels()
    names = {
        "alert": "alert",
        "bar_chart": "bar_chart",
        "copyable": "copyable",
        "form": "form",
        "meter": "meter",
        "page_head": "page_head",
        "pager": "pager",
        "sparkline": "sparkline",
        "table": "table",
        "time": "time",
    }
    imports = "".join(
        f'{{% from "components/{file}.html" import {name} %}}' for name, file in names.items()
    )
    return " ".join(environment.from_string(imports + template).render(values).split())


@cases(
    ("seconds", "words"),
    [
        (-10, "just now"),
        (10, "in less than a minute"),
        (-60, "1 minute ago"),
        (-3 * 3600 - 59, "3 hours ago"),
        (12 * 24 * 3600, "in 12 days"),
    ],
)
def test_distances_in_words(seconds: float, words: str) -> None:
    assert distance_text(seconds) == words


def test_a_moment_far_away_is_a_date() -> None:
    assert ">1 Mar 2025</time>" in show_distance(_NOW - timedelta(days=365), _NOW)


def test_the_title_of_a_distance_is_exact_and_names_its_zone() -> None:
    page = _render("{{ time(moment, now) }}", moment=_NOW - timedelta(hours=2), now=_NOW)
    assert 'title="2026-03-01 10:00:00 UTC"' in page
    assert 'dir="auto">2 hours ago<' in page


def test_a_form_lists_all_faults_and_takes_the_focus() -> None:
    user = {"form_token": "token"}
    errors = {"name": "Enter a name.", "role": "Choose a role."}
    page = _render("{% call form(user, errors=errors) %}{% endcall %}", user=user, errors=errors)
    assert '<a href="#name">Name</a>: Enter a name.' in page
    assert '<a href="#role">Role</a>: Choose a role.' in page
    assert page.count("autofocus") == 1


def test_a_single_fault_leaves_the_focus_to_its_field() -> None:
    user = {"form_token": "token"}
    page = _render("{% call form(user, errors={'name': 'x'}) %}{% endcall %}", user=user)
    assert "autofocus" not in page


def test_a_bar_is_as_high_as_its_share_of_the_highest() -> None:
    series = [("Accepted", "accent"), ("Rejected", "red")]
    bars = [("1 Mar", [30, 10]), ("2 Mar", [10, 0])]
    page = _render("{{ bar_chart('Requests', series, bars) }}", series=series, bars=bars)
    assert '<path class="bar accent" d="M1 100v-75h8v75zM11 100v-25h8v25z"/>' in page
    assert '<path class="bar red" d="M1 25v-25h8v25z"/>' in page, "an empty part has no bar"


def test_parts_that_are_rounded_leave_no_gap_below_the_top() -> None:
    bars = [("1 Mar", [1] * 7)]
    tops = [path.partition("v-") for path in bar_paths(bars, 7)]
    assert tops[0][0] == "M1 100"
    for lower, upper in pairwise(tops):
        begin, height = float(lower[0].split()[1]), float(lower[2].partition("h")[0])
        assert float(upper[0].split()[1]) == pytest.approx(begin - height, abs=0.001)
    assert bar_paths([], 1) == []


def test_a_bar_says_its_time_and_its_sum() -> None:
    series = [("Accepted", "accent"), ("Rejected", "red")]
    bars = [("1 Mar", [1200, 34])]
    page = _render("{{ bar_chart('Requests', series, bars) }}", series=series, bars=bars)
    assert "<title>1 Mar: 1,234</title>" in page


@cases(
    ("most", "top"),
    [(0, 1), (1, 1), (2, 2), (3, 4), (9, 10), (10, 10), (11, 12), (99, 100), (1234, 1600)],
)
def test_an_axis_ends_at_a_round_number(most: int, top: int) -> None:
    assert axis_top(most) == top


def test_texts_below_a_chart_are_at_equal_distances_below_their_bars() -> None:
    bars = [(str(number), None) for number in range(30)]
    assert texts_below(bars) == [
        ("0", 0.0, "start"),
        ("5", 18.33, "middle"),
        ("10", 35.0, "middle"),
        ("15", 51.67, "middle"),
        ("20", 68.33, "middle"),
        ("25", 85.0, "middle"),
    ]
    assert texts_below([]) == []


def test_a_chart_has_its_numbers_as_a_table_newest_first() -> None:
    bars = [("1 Mar", [1234]), ("2 Mar", [5])]
    page = _render("{{ bar_chart('Requests', [('All', 'accent')], bars) }}", bars=bars)
    table = page[page.index("<tbody>") :]
    assert table.index("2 Mar") < table.index("1 Mar")
    assert "<td>1,234</td>" in table


@pytest.mark.parametrize("values", [[], [0, 0, 0]])
def test_charts_without_use_have_no_height(values: list[int]) -> None:
    page = _render("{{ sparkline(values, 'None', 'bars') }}", values=values)
    assert '<path d=""/>' in page
    assert page.count("v-1") == len(values)


@pytest.mark.parametrize(("used", "shown"), [(3, "3 of 10"), (12, "12 of 10")])
def test_a_meter_says_its_numbers(used: int, shown: str) -> None:
    page = _render("{{ meter(used, 10, 'Keys') }}", used=used)
    assert shown in page
    assert f'value="{min(used, 10)}"' in page


def test_a_pager_says_where_the_page_is() -> None:
    page = _render(
        "{{ pager('keys', {'next': '/?after=x'}, first=1, last=50, total=1000, is_more=true) }}"
    )
    assert "<strong>1\N{EN DASH}50</strong> of more than 1,000 keys" in page
    assert '<span class="button" aria-disabled="true">Previous</span>' in page
    assert '<a class="button" href="/?after=x" rel="next">Next</a>' in page


def test_values_are_escaped() -> None:
    page = _render("{{ page_head(name) }}{{ copyable(name, name) }}", name="<b>")
    assert "<b>" not in page
