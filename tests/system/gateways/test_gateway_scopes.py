"""Which scope a request needs is written in the configuration; the client has no say in it."""

from typing import Final

import pytest

from tests.support.gateways import Gateway, refused

VERIFY: Final = "/api/v1/auth/verify"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_reading_needs_the_scope_to_read(gateway: Gateway, reader: str, method: str) -> None:
    assert (await gateway.send(method, "/projects/7", credential=reader)).status == 200
    assert gateway.application.only().method == method
    assert [asked.target for asked in gateway.line.requests()] == [
        f"{VERIFY}/projects:read/mode/live"
    ]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "REPORT"])
async def test_any_other_method_needs_the_scope_to_write(
    gateway: Gateway, reader: str, owner: str, method: str
) -> None:
    refused(await gateway.send(method, "/projects/7", credential=reader), 403, "insufficient_scope")
    assert gateway.application.received == []
    assert (await gateway.send(method, "/projects/7", credential=owner)).status == 200
    assert gateway.application.only().method == method
    assert [asked.target for asked in gateway.line.requests()] == [
        f"{VERIFY}/projects:write/mode/live"
    ] * 2


ALTERED_PATHS: Final = {
    "a query": ("/reports?scope=projects:read&X-Original-URI=/projects", []),
    "another address": (
        "/reports",
        [("X-Original-URI", "/projects"), ("X-Original-URL", "/status")],
    ),
    "another forwarded address": (
        "/reports",
        [("X-Forwarded-Uri", "/status"), ("X-Forwarded-Prefix", "/projects")],
    ),
    "a rewritten address": ("/reports", [("X-Rewrite-URL", "/status")]),
    "its own scope": ("/reports", [("X-Scope", "projects:read"), ("Scope", "-")]),
    "another method": (
        "/reports",
        [("X-HTTP-Method-Override", "GET"), ("X-Forwarded-Method", "GET")],
    ),
    "an absolute form": ("http://api.example/reports", []),
    "the absolute form of another host": ("http://127.0.0.1:3001/reports", []),
    "capitals": ("/REPORTS", []),
    "encoded letters": ("/%72eports", []),
}


@pytest.mark.parametrize(("target", "headers"), ALTERED_PATHS.values(), ids=ALTERED_PATHS)
async def test_client_cannot_choose_the_required_scope(
    gateway: Gateway, reader: str, target: str, headers: list[tuple[str, str]]
) -> None:
    refused(
        await gateway.send("GET", target, *headers, credential=reader), 403, "insufficient_scope"
    )
    assert [(asked.method, asked.target) for asked in gateway.line.requests()] == [
        ("GET", f"{VERIFY}/reports:read/mode/live")
    ]
    assert gateway.application.received == []


OVERRIDES: Final = (
    "X-HTTP-Method",
    "X-HTTP-Method-Override",
    "X-Method-Override",
    "X-Original-Method",
    "X-Original-Uri",
    "X-Original-Url",
    "X-Rewrite-Url",
    "X-Forwarded-Method",
    "X-Forwarded-Uri",
    "X-Forwarded-Prefix",
    "Forwarded",
    "X-Real-Ip",
    "X_HTTP_Method_Override",
)


async def test_application_gets_exactly_the_checked_request(gateway: Gateway, reader: str) -> None:
    headers = [(name, "DELETE") for name in OVERRIDES]
    assert (await gateway.send("GET", "/projects", *headers, credential=reader)).status == 200
    assert "DELETE" not in str(gateway.application.only())


AMBIGUOUS: Final = (
    "/status/../reports",
    "/status/..%2freports",
    "/status/%2e%2e/reports",
    "/status%2f..%2freports",
    "/./reports",
    "//reports",
    "/status//reports",
    "/reports/..",
    "/reports/.",
    "/status/..;/reports",
    "/status;/../reports",
    "/status\\..\\reports",
    "/status%5c..%5creports",
    "/status%00/reports",
    "/status/%252e%252e/reports",
    "/status#/../reports",
    "/status%23/reports",
    "/status%3b/reports",
    "http://api.example/status/../reports",
)


@pytest.mark.parametrize("target", AMBIGUOUS)
async def test_path_that_can_be_read_in_two_ways_is_400(
    gateway: Gateway, owner: str, target: str
) -> None:
    answer = await gateway.send("GET", target, credential=owner)
    assert answer.status == 400
    assert gateway.application.received == []
    assert gateway.line.requests() == []


@pytest.mark.parametrize(
    "target", ["/projects/a%20b/c?x=%2F..%2f//;", "/projects/.well-known", "/projects/a..b"]
)
async def test_ordinary_path_reaches_the_application_as_it_is(
    gateway: Gateway, owner: str, target: str
) -> None:
    assert (await gateway.send("GET", target, credential=owner)).status == 200
    assert gateway.application.only().target == target


@pytest.mark.parametrize("target", ["/", "/other", "/projectsx", "/status/", "/_tenantry", VERIFY])
async def test_unlisted_path_is_404(gateway: Gateway, owner: str, target: str) -> None:
    assert (await gateway.send("GET", target, credential=owner)).status == 404
    assert gateway.application.received == []


NEARLY_PUBLIC: Final = (
    "/STATUS",
    "/Status",
    "/status.",
    "/status...",
    "/status%20",
    "/status%20.",
    "/status%0a",
)


@pytest.mark.parametrize("target", NEARLY_PUBLIC)
async def test_public_path_is_exact(gateway: Gateway, target: str) -> None:
    assert (await gateway.send("GET", target)).status == 404
    assert gateway.application.received == []


async def test_public_path_needs_no_check(gateway: Gateway) -> None:
    assert (await gateway.send("GET", "/status?x=1")).status == 200
    assert gateway.application.only().target == "/status?x=1"
    assert gateway.line.requests() == []
