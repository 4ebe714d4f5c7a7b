"""The rules that other secret scanners find API keys with."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from tenantry.domain.api_keys import DEFAULT_FORMAT, KeyFormat
from tenantry.domain.permissions import Mode
from tests.support.cases import cases

KEYS: Final = [DEFAULT_FORMAT.compose(mode, bytes(range(32))) for mode in Mode]
RULES: Final = Path(__file__).parents[2] / "examples" / "secret-scanners"


def gitleaks_rule() -> dict[str, Any]:
    [rule] = tomllib.loads((RULES / "gitleaks.toml").read_text())["rules"]
    return dict(rule)


def detect_secrets_patterns() -> list[str]:
    tree = ast.parse((RULES / "detect_secrets_plugin.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [str(ast.literal_eval(call.args[0])) for call in calls]


def found_by(patterns: list[str], text: str) -> list[str]:
    return [found for pattern in patterns for found in re.findall(pattern, text)]


PATTERNS: Final = {
    "gitleaks": [gitleaks_rule()["regex"]],
    "detect-secrets": detect_secrets_patterns(),
}


@cases("scanner", PATTERNS)
@cases("prefix", ["svc", "acme", "0123456789abcdef"])
def test_rules_match_keys_and_nothing_shorter(scanner: str, prefix: str) -> None:
    patterns = PATTERNS[scanner]
    for mode in Mode:
        for first in range(100):
            key = KeyFormat(prefix).compose(mode, bytes([first]) * 32)
            assert found_by(patterns, f'token = "{key}"; x') == [key]
            assert found_by(patterns, key[:-1]) == []


@pytest.mark.parametrize("scanner", PATTERNS)
def test_rules_match_no_key_of_the_payment_provider(scanner: str) -> None:
    assert found_by(PATTERNS[scanner], f"sk_live_51{'aB3' * 35}") == []


def test_gitleaks_rule_is_restricted_to_lines_without_the_allow_mark() -> None:
    rule = gitleaks_rule()
    assert all(any(word in key for word in rule["keywords"]) for key in KEYS)
    [allowed] = rule["allowlists"]
    assert (allowed["regexTarget"], allowed["regexes"]) == ("line", ["tenantry:allow"])
