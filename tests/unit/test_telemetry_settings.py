"""Which of OpenTelemetry's own variables make traces, and where its packages are."""

import tomllib
from pathlib import Path

import pytest

from tenantry.settings import SettingsError
from tests.support.app import make_settings
from tests.support.cases import cases

ENDPOINT = "http://collector.example:4318"


@cases(
    ("values", "traces"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "accounts"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{ENDPOINT}/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}, False),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}, False),
    ],
)
def test_traces_are_made_where_the_standard_variables_ask_for_them(
    values: dict[str, str], traces: bool
) -> None:
    assert make_settings(**values).traces is traces


def test_a_missing_exporter_is_an_error() -> None:
    with pytest.raises(SettingsError) as refused:
        make_settings(OTEL_TRACES_EXPORTER="zipkin")
    assert refused.value.faults == ["OTEL_TRACES_EXPORTER: must be one of otlp, none"]


def test_the_collectors_credential_is_a_secret() -> None:
    settings = make_settings(
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20token-of-the-collector, x-team=accounts-team"
    )
    secrets = [secret.reveal() for secret in settings.secrets()]
    assert {"Bearer token-of-the-collector", "token-of-the-collector", "accounts-team"} <= set(
        secrets
    )


def test_the_packages_of_the_extra_are_pinned_for_the_tests_and_are_none_of_the_services() -> None:
    root = Path(__file__).parents[2]
    extra = tomllib.loads((root / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["otel"]
    pinned, needed = [
        (root / "requirements" / f"{name}.txt").read_text() for name in ("dev", "runtime")
    ]
    assert extra
    assert all(f"\n{package.partition('>')[0]}==" in pinned for package in extra)
    assert "opentelemetry" not in needed
