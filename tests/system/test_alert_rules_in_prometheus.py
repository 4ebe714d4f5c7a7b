"""The alert rules of examples/monitoring in Prometheus' own tool. `tests/unit` compares them with
the metrics.
"""

import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.required import debian_program

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "monitoring"
RULES: Final[list[dict[str, Any]]] = yaml.safe_load((EXAMPLES / "alerts.yml").read_text("utf-8"))[
    "groups"
][0]["rules"]
NAMES: Final = {rule["alert"] for rule in RULES}
TESTS: Final = ("alerts_test.yml", "alerts_of_days_test.yml")


def promtool(*arguments: str) -> str:
    """What Prometheus' own tool says of the examples."""
    done = subprocess.run(
        [debian_program("promtool", package="prometheus"), *arguments],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_the_rules_and_the_scrape_configuration() -> None:
    assert f"SUCCESS: {len(RULES)} rules found" in promtool("check", "config", "prometheus.yml")


def test_every_alert_is_raised_where_it_should_be() -> None:
    assert "SUCCESS" in promtool("test", "rules", *TESTS)
    tested = {
        test["alert_rule_test"][0]["alertname"]
        for name in TESTS
        for test in yaml.safe_load((EXAMPLES / name).read_text("utf-8"))["tests"]
    }
    assert tested == NAMES
