"""How values of a token are written for people."""

import math

import msgspec

from tenantry.integrations.oidc.claims import format_duration, format_json, format_time
from tests.support.cases import cases

NOW = 1_767_268_800.0  # 2026-01-01T12:00:00Z


@cases(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min 59 s"),
        (3600, "1 h"),
        (86_400, "1 d"),
        (90_061, "1 d 1 h"),
    ],
)
def test_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@cases(
    ("seconds", "text"),
    [
        (NOW, "2026-01-01T12:00:00Z, now"),
        (NOW + 3600, "2026-01-01T13:00:00Z, in 1 h"),
        (NOW - 90.5, "2026-01-01T11:58:29Z, 1 min 30 s ago"),
        (10**20, "100000000000000000000"),
        (-(10**400), f"-1{'0' * 118}... (402 characters)"),
        (math.inf, "Infinity"),
    ],
)
def test_time_has_its_distance(seconds: float, text: str) -> None:
    assert format_time(seconds, NOW) == text


def test_json_has_a_bounded_length() -> None:
    assert format_json("\x1b[2J\ud800\u202e") == '"\\u001b[2J\\ud800\\u202e"'
    assert format_json(msgspec.UNSET) == "none"
    assert format_json(["x" * 200]) == f'["{"x" * 118}... (204 characters)'


def test_deeply_nested_value_is_not_shown() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert format_json(nested) == "nested deeply"
