"""How doctor judges a server and the settings; each problem with why it matters."""

import ast
import tomllib
from pathlib import Path
from typing import Final

from tenantry import installation
from tenantry.cli import doctor
from tenantry.cli.doctor.database_checks import judge_connections
from tenantry.cli.doctor.setup_checks import check_values, judge_address, judge_secrets
from tenantry.common.secret import Secret
from tenantry.domain.billing.events import Anomaly
from tenantry.installation.checks_store import ConnectionLimits
from tenantry.installation.data_checks import judge_server
from tenantry.installation.findings import Finding, Level
from tenantry.settings import load
from tests.support.cases import cases
from tests.support.findings import levels, only

PACKAGE: Final = Path(installation.__file__).parent
COMMAND: Final = Path(doctor.__file__).parent
SERVER: Final = {
    "max_connections": "100",
    "superuser_reserved_connections": "3",
    "reserved_connections": "2",
}


def problem(findings: list[Finding], level: Level = Level.WARNING) -> Finding:
    """The one finding, with the reason and the remedy."""
    return only(findings, level)


# Connections


def test_a_server_that_accepts_no_writes_is_an_error() -> None:
    server = {"server_version": "17.1", "transaction_read_only": "on"}
    assert judge_server(server).level is Level.ERROR


@cases(
    ("limits", "needed", "level", "most"),
    [
        ((None, None, 7), 95, Level.OK, "95 available (max_connections, less those reserved)"),
        ((None, None, 7), 96, Level.WARNING, "95 available (max_connections, less those reserved)"),
        ((20, None, 7), 21, Level.WARNING, "20 available (the limit of the database)"),
        ((20, 10, 7), 11, Level.WARNING, "10 available (the limit of the user)"),
        ((20, 10, 7), 10, Level.OK, "10 available (the limit of the user)"),
    ],
)
def test_needed_connections_are_compared_with_the_lowest_limit(
    limits: tuple[int | None, int | None, int], needed: int, level: Level, most: str
) -> None:
    finding = judge_connections(SERVER, ConnectionLimits(*limits), needed)
    assert finding.level is level
    assert finding.message == f"one `tenantry serve` needs up to {needed}, 7 open now, {most}"


def test_a_server_before_16_reserves_none_for_others() -> None:
    server = {"max_connections": "10", "superuser_reserved_connections": "3"}
    assert judge_connections(server, ConnectionLimits(None, None, 0), 7).level is Level.OK


# The settings


@cases(
    ("address", "level"),
    [
        ("https://api.example", Level.OK),
        ("http://127.0.0.1:3001", Level.OK),
        ("http://[::1]:3001", Level.OK),
        ("http://localhost:3001", Level.OK),
        ("http://api.example", Level.WARNING),
        ("http://10.0.0.7:3001", Level.WARNING),
    ],
)
def test_an_address_for_others_must_be_https(address: str, level: Level) -> None:
    assert judge_address(address).level is level


def test_one_secret_in_two_variables_is_reported_without_being_shown() -> None:
    shared, own = (
        Secret("the-same-secret-0123456789abcdef"),
        Secret("another-secret-0123456789abcdefg"),
    )
    finding = problem(
        judge_secrets(
            [("API_KEY_PEPPER", shared), ("SESSION_SECRET", shared), ("OPERATOR_TOKEN", own)]
        )
    )
    assert finding.message == "API_KEY_PEPPER and SESSION_SECRET hold the same secret"
    assert "the-same" not in repr(finding)


def test_one_secret_twice_in_one_variable_is_reported() -> None:
    finding = problem(
        judge_secrets([("API_KEY_PEPPER", Secret("the-same-secret-0123456789abcdef"))] * 2)
    )
    assert finding.message == "API_KEY_PEPPER contains the same secret twice"
    assert "the-same" not in repr(finding)


def test_one_secret_in_two_variables_is_reported_as_shared_though_one_repeats_it() -> None:
    shared = Secret("the-same-secret-0123456789abcdef")
    finding = problem(
        judge_secrets(
            [("API_KEY_PEPPER", shared), ("API_KEY_PEPPER", shared), ("SESSION_SECRET", shared)]
        )
    )
    assert finding.message == "API_KEY_PEPPER and SESSION_SECRET hold the same secret"


def test_different_secrets_are_accepted() -> None:
    assert levels(judge_secrets([("A", Secret("a" * 16)), ("B", Secret("b" * 16))])) == {Level.OK}


def test_the_demo_has_no_address_to_judge() -> None:
    weak = dict.fromkeys(("PROVIDER_WEBHOOK_SECRET", "API_KEY_PEPPER", "SESSION_SECRET"), "weak")
    findings = check_values(
        load({**weak, "TENANTRY_DEMO": "true", "BASE_URL": "http://api.example"})
    )
    assert "BASE_URL" not in {finding.subject for finding in findings}


def test_invitations_without_a_sign_in_are_reported() -> None:
    demo = dict.fromkeys(("PROVIDER_WEBHOOK_SECRET", "API_KEY_PEPPER", "SESSION_SECRET"), "weak")
    mail = {"SMTP_URL": "smtp://127.0.0.1:9", "MAIL_FROM": "mail@acme.example"}
    client = {
        "OIDC_ISSUER": "https://id.example",
        "OIDC_AUDIENCE": "api",
        "OIDC_CLIENT_ID": "dashboard",
    }
    enabled = {**demo, **mail, "TENANTRY_DEMO": "true", "INVITATIONS": "true"}
    assert "invitations" in {one.subject for one in check_values(load(enabled))}
    assert "invitations" not in {one.subject for one in check_values(load({**enabled, **client}))}


# The texts


def test_checks_and_texts_name_the_same_problems() -> None:
    parsed = [
        node
        for path in [*PACKAGE.glob("*.py"), *COMMAND.glob("*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    words = {
        node.value
        for node in parsed
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    composed = {f"billing ledger.{kind}" for kind in Anomaly}
    texts = tomllib.loads((PACKAGE / "problems.toml").read_text())
    known = {f"{subject}.{problem}" for subject, problems in texts.items() for problem in problems}
    assert known - words - composed == {"billing ledger.ambiguous_order_without_key"}
    named = {word for word in words if word.rpartition(".")[0] in texts and not word.endswith(".")}
    assert named - known == set()
    assert composed - known == {
        "billing ledger.drift",  # a problem of the tenants
        "billing ledger.ignored_livemode",  # as the setting says
    }
