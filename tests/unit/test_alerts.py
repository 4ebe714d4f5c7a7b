"""The alert rules for Prometheus, beside what the service counts and what is written about them."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

from tenantry.db import job_names
from tests.support.cases import cases
from tests.support.metrics import asked_for, documented

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples" / "monitoring"
RULES: Final[list[dict[str, Any]]] = yaml.safe_load((EXAMPLES / "alerts.yml").read_text("utf-8"))[
    "groups"
][0]["rules"]
NAMES: Final = [rule["alert"] for rule in RULES]
RUNBOOK: Final = (ROOT / "docs" / "how-to" / "operations.md").read_text("utf-8")
PARTS: Final = dict(re.findall(r"^### (\w+)\n(.*?)(?=^#|\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))


@cases("rule", RULES, ids=NAMES)
def test_an_alert_asks_for_metrics_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    known = documented()
    for name, labels in asked_for(rule["expr"]).items():
        assert name in known
        assert labels - {"le"} <= known[name].labels, name


@cases("rule", RULES, ids=NAMES)
def test_an_alert_has_a_severity_and_a_summary(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"]["summary"].endswith(".")


@cases("rule", RULES, ids=NAMES)
def test_an_alert_links_to_its_runbook(rule: dict[str, Any]) -> None:
    name = rule["alert"]
    assert rule["annotations"]["runbook"] == f"docs/how-to/operations.md#{name.lower()}"
    assert PARTS[name].strip().startswith(f"*{rule['labels']['severity']}.*")
    assert "- Look at: " in PARTS[name]
    assert "- Do: " in PARTS[name]


def test_no_part_of_the_runbook_is_about_an_alert_that_is_not_there() -> None:
    assert sorted(name for name in PARTS if name.startswith("Tenantry")) == sorted(NAMES)


def test_the_alert_of_overdue_jobs_covers_every_periodic_job() -> None:
    [rule] = [rule for rule in RULES if rule["alert"] == "TenantryJobOverdue"]
    named = "|".join(re.findall(r'task=~?"([^"]+)"', rule["expr"]))
    assert sorted(named.split("|")) == sorted(job_names.PERIODIC)


def test_a_metric_that_is_not_there_is_found() -> None:
    assert asked_for('rate(tenantry_gone_bucket{kind="x", le="1"}[5m])') == {
        "tenantry_gone": {"kind", "le"}
    }
