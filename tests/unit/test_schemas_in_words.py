"""The reference of the API says a schema's type and bounds in words."""

from typing import Any

from tenantry.api.reference import Schemas
from tests.support.cases import cases

SCHEMAS = Schemas({"Problem": {}})


@cases(
    ("schema", "words"),
    [
        ({"minLength": 1, "maxLength": 200}, "length 1 to 200"),
        ({"maxItems": 32}, "at most 32 items"),
        ({"minimum": 1}, "at least 1"),
        ({"minimum": 0, "maximum": 20, "default": 0}, "0 to 20, by default `0`"),
        ({"default": False}, "by default `false`"),
        ({"default": []}, ""),
        (
            {"enum": ["live", "test", None], "default": "live"},
            "one of `live`, `test`, by default `live`",
        ),
    ],
)
def test_bounds(schema: dict[str, Any], words: str) -> None:
    assert SCHEMAS.bounds(schema) == words


@cases(
    ("schema", "words"),
    [
        ({"type": ["null", "string"]}, "string or null"),
        ({"enum": ["live", "test"]}, "string"),
        ({"type": "array", "items": {"type": "string"}}, "array of string"),
        ({"type": "string", "format": "date-time"}, "date-time"),
    ],
)
def test_type(schema: dict[str, Any], words: str) -> None:
    assert SCHEMAS.type_of(schema) == words
