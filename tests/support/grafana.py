"""The dashboard of examples/monitoring, and its queries."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE: Final = Path(__file__).parents[2] / "examples" / "monitoring" / "grafana-dashboard.json"
DASHBOARD: Final[dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


class Query(NamedTuple):
    """A query of a panel."""

    panel: str
    number: int
    expression: str
    legend: str

    def __str__(self) -> str:
        """The name of the query."""
        return f"{self.panel}-{self.number}"

    def filled_in(self, *, job: str, interval: str) -> str:
        """The expression with the values that Grafana puts in for its variables, for all
        instances.
        """
        values = {"$job": job, "$instance": ".*", "$__rate_interval": interval}
        expression = self.expression
        for variable, value in values.items():
            expression = expression.replace(variable, value)
        return expression


QUERIES: Final = [
    Query(panel["title"], number, target["expr"], target.get("legendFormat", ""))
    for panel in PANELS
    for number, target in enumerate(panel["targets"])
]
