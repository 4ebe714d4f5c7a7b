"""The dashboard for Grafana, beside the metrics that it shows. `tests/system` runs its queries in
Prometheus.
"""

import itertools
import re
from typing import Any, Final

from tests.support.cases import cases
from tests.support.grafana import DASHBOARD, DATASOURCE, PANELS, QUERIES, Query
from tests.support.metrics import asked_for, documented

COLUMNS: Final = 24
SCRAPED: Final = {"job", "instance"}
"""The labels that Prometheus adds."""


@cases("query", QUERIES, ids=str)
def test_a_query_asks_for_metrics_and_labels_that_there_are(query: Query) -> None:
    known = documented()
    asked = asked_for(query.expression)
    for name, labels in asked.items():
        assert name in known
        assert labels - SCRAPED - {"le"} <= known[name].labels, name
    grouped = {
        label
        for labels in re.findall(r"by \(([^)]*)\)", query.expression)
        for label in labels.split(", ")
    }
    assert grouped - SCRAPED - {"le"} <= {label for name in asked for label in known[name].labels}
    assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= grouped


def test_a_query_is_about_the_chosen_job() -> None:
    for query in QUERIES:
        metrics = re.findall(r"(?:tenantry_\w+|up)\{([^}]*)\}", query.expression)
        assert metrics, query
        assert all('job="$job"' in matchers for matchers in metrics), query


def test_every_metric_has_a_panel() -> None:
    shown = {name for query in QUERIES for name in asked_for(query.expression)}
    assert shown == documented().keys()


def test_every_panel_says_what_it_shows() -> None:
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert [target["refId"] for target in panel["targets"]] == list(
            "ABCDEF"[: len(panel["targets"])]
        )


def test_everything_reads_the_chosen_data_source() -> None:
    variables = DASHBOARD["templating"]["list"]
    assert [variable["name"] for variable in variables] == ["datasource", "job", "instance"]
    assert (variables[0]["type"], variables[0]["query"]) == ("datasource", "prometheus")
    readers = [*variables[1:], *DASHBOARD["annotations"]["list"], *PANELS]
    readers += [target for panel in PANELS for target in panel["targets"]]
    assert all(reader["datasource"] == DATASOURCE for reader in readers)


def test_panels_fill_the_grid_without_overlap() -> None:
    cells = [cell for panel in DASHBOARD["panels"] for cell in covered(panel["gridPos"])]
    rows = 1 + max(y for _, y in cells)
    assert sorted(cells) == sorted(itertools.product(range(COLUMNS), range(rows)))


def covered(place: dict[str, int]) -> list[tuple[int, int]]:
    """The cells of the grid that a panel covers."""
    columns = range(place["x"], place["x"] + place["w"])
    return list(itertools.product(columns, range(place["y"], place["y"] + place["h"])))


def test_the_dashboard_can_be_imported_beside_others() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert "id" not in DASHBOARD  # Grafana gives it
    expected: dict[str, Any] = {"uid": "tenantry", "title": "tenantry", "schemaVersion": 42}
    assert {name: DASHBOARD[name] for name in expected} == expected
