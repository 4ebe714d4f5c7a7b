"""The components of pages: what each promises about its markup."""

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from tenantry.dashboard.context import TEMPLATES
from tenantry.dashboard.labels import distance_text, labels, show_distance
from tenantry.server.page_assets import page_templates
from tests.support.cases import cases

_NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)


def _render(template: str, **values: object) -> str:
    environment = page_templates(TEMPLATES)
    environment.filters["distance"] = show_distance
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
    assert '<rect class="accent" x="1" y="25.0" width="8" height="75.0"/>' in page
    assert '<rect class="red" x="1" y="0.0" width="8" height="25.0"/>' in page
    assert '<rect class="accent" x="11" y="75.0" width="8" height="25.0"/>' in page
    assert page.count('class="red" x') == 1, "an empty part has no bar"


def test_a_chart_has_its_numbers_as_a_table_newest_first() -> None:
    bars = [("1 Mar", [1234]), ("2 Mar", [5])]
    page = _render("{{ bar_chart('Requests', [('All', 'accent')], bars) }}", bars=bars)
    table = page[page.index("<tbody>") :]
    assert table.index("2 Mar") < table.index("1 Mar")
    assert '<td class="number" data-label="All">1,234</td>' in table


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
