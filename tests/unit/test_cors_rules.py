"""Which requests of pages count, and which headers permit them."""

import json
from pathlib import Path
from typing import Any, Final

from tenantry.server.cors import ALLOWED_HEADERS, ANY_ORIGIN, EXPOSED_HEADERS, CorsPolicy
from tests.support.cases import cases

APP: Final = "https://app.example"
LISTED: Final = CorsPolicy([APP, "http://localhost:5173"])
ANY: Final = CorsPolicy([ANY_ORIGIN])
PROJECTS: Final = "/api/v1/projects"
PREFLIGHT: Final = {"origin": APP, "access-control-request-method": "GET"}
DOCUMENT: Final = json.loads(Path("tests/contract/openapi.json").read_bytes())


def scope_of(path: str = PROJECTS, method: str = "OPTIONS", /, **headers: str) -> dict[str, Any]:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "headers": named}


def allowed(policy: CorsPolicy, path: str, origin: str) -> str | None:
    """Return the origin that the response to a request names."""
    headers = dict(policy.headers_of(scope_of(path, "GET", origin=origin)))
    value = headers.get(b"access-control-allow-origin")
    return None if value is None else value.decode()


@cases(
    ("origin", "expected"),
    [
        (APP, APP),
        ("http://localhost:5173", "http://localhost:5173"),
        ("http://app.example", None),
        ("https://app.example:8443", None),
        ("https://app.example.evil.example", None),
        ("https://sub.app.example", None),
        ("HTTPS://APP.EXAMPLE", None),
        (f"{APP}, {APP}", None),
        ("null", None),
        ("", None),
        ("*", None),
    ],
)
def test_origin_must_be_listed_exactly(origin: str, expected: str | None) -> None:
    assert allowed(LISTED, PROJECTS, origin) == expected


@cases(
    ("path", "is_open"),
    [
        (PROJECTS, True),
        ("/api/v1/auth/verify/projects:read", True),
        ("/api/v1/nothing", True),
        ("/api/v1/webhooks/payment-provider", False),
        ("/api/v1/webhooks/", False),
        ("/healthz", False),
        ("/docs", False),
        ("/orgs/acme", False),
        ("/", False),
    ],
)
@cases("policy", [LISTED, ANY], ids=["listed", "any"])
def test_webhook_and_dashboard_stay_closed(policy: CorsPolicy, path: str, is_open: bool) -> None:
    assert (allowed(policy, path, APP) is not None) is is_open
    assert policy.answers_preflight(scope_of(path, "OPTIONS", **PREFLIGHT)) is is_open
    raw = path.replace("w", "%77").encode() + b"?origin=x"
    assert (len(policy.headers_of_target(raw, APP.encode())) > 0) is is_open


def test_answers_to_listed_origins_vary_and_those_to_any_do_not() -> None:
    for origin in (APP, "https://other.example"):
        assert (b"vary", b"Origin") in LISTED.headers_of(scope_of(PROJECTS, "GET", origin=origin))
        assert b"vary" not in dict(ANY.headers_of(scope_of(PROJECTS, "GET", origin=origin)))
    assert [*LISTED.headers_of(scope_of(PROJECTS, "GET"))] == [(b"vary", b"Origin")]
    assert (b"access-control-allow-origin", b"*") in ANY.headers_of(scope_of(PROJECTS, "GET"))


@cases(
    ("headers", "is_preflight"),
    [
        (PREFLIGHT, True),
        ({**PREFLIGHT, "access_control_request_headers": "authorization, x-unknown"}, True),
        ({"origin": APP}, False),
        ({"access_control_request_method": "GET"}, False),
        ({**PREFLIGHT, "origin": "https://other.example"}, False),
        ({**PREFLIGHT, "x_forwarded_method": "OPTIONS"}, False),
    ],
)
def test_preflight_names_an_origin_and_a_method(
    headers: dict[str, str], is_preflight: bool
) -> None:
    assert LISTED.answers_preflight(scope_of(PROJECTS, "OPTIONS", **headers)) is is_preflight


def test_every_header_of_the_interface_is_permitted() -> None:
    operations = [
        operation
        for path, methods in DOCUMENT["paths"].items()
        if path.startswith("/api/v1/") and "/webhooks/" not in path
        for operation in methods.values()
    ]
    parameters = [one for operation in operations for one in operation.get("parameters", ())]
    sent = {one["name"] for one in parameters if one["in"] == "header"}
    answers = [answer for operation in operations for answer in operation["responses"].values()]
    received = {name for answer in answers for name in answer.get("headers", {})}
    assert sent
    assert received
    assert sent <= {*ALLOWED_HEADERS}
    assert received <= {*EXPOSED_HEADERS}
