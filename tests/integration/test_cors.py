"""Pages of other origins: every answer of the API permits a listed one to read it, and no other."""

from collections.abc import AsyncIterator
from typing import Final

import httpx2
import pytest

from tenantry.app import build_app
from tests.support.app import client_of, make_settings
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.database_link import database_link
from tests.support.emptying import SharedDatabase
from tests.support.routes import WEBHOOK, requests_of_every_kind
from tests.support.service import (
    KEYS,
    PROJECTS,
    SHORT_TIMEOUTS,
    VERIFY,
    WHOAMI,
    Caller,
    Service,
    refusal,
    running_service,
)

APP: Final = "https://app.example"
OTHER: Final = "https://other.example"
HOT: Final = (PROJECTS, f"{VERIFY}projects:read")
TWIN: Final = f"{PROJECTS}/"
"""The list on its ordinary route."""
MANY: Final = 50
"""There are more routes of the API than this."""
ALLOW_ORIGIN: Final = "access-control-allow-origin"


@pytest.fixture(scope="module")
async def open_service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    """A service that pages of `APP` may call."""
    async with running_service(
        shared_database.conninfo, CORS_ORIGINS=f"http://localhost:5173, {APP}"
    ) as service:
        yield service


@pytest.fixture(scope="module")
async def applications(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    """A service that pages of applications may call."""
    async with running_service(
        shared_database.conninfo,
        CORS_ORIGINS=(
            "capacitor://localhost, ionic://localhost/, tauri://localhost, app://., "
            f"chrome-extension://{'abcdefghijklmnop' * 2}"
        ),
    ) as service:
        yield service


def cors_headers(answer: httpx2.Response) -> dict[str, str]:
    return {
        name: value for name, value in answer.headers.items() if name.startswith("access-control-")
    }


def readable(answer: httpx2.Response, origin: str = APP) -> httpx2.Response:
    """Return the response, which must permit pages of this origin to read it with its headers."""
    assert answer.headers.get_list(ALLOW_ORIGIN) == [origin], answer.headers
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"].split(", ")
    assert "access-control-allow-credentials" not in answer.headers
    assert "Origin" in answer.headers["vary"].split(", ")
    return answer


async def ask(
    caller: Caller,
    path: str,
    method: str = "GET",
    origin: str = APP,
    json: object = None,
    **headers: str,
) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await caller.call(method, path, json, headers={"Origin": origin, **named})


async def test_every_answer_of_the_api_is_readable_and_no_other_one(open_service: Service) -> None:
    number = 0
    for method, path in requests_of_every_kind():
        answer = await ask(open_service.anonymous, path, method)
        if path.startswith("/api/v1/") and path != WEBHOOK:
            readable(answer)
            number += 1
        else:
            assert cors_headers(answer) == {}, (method, path)
            assert "Origin" not in answer.headers.get("vary", ""), (method, path)
    assert number > MANY


@pytest.mark.parametrize("path", [*HOT, TWIN, WHOAMI])
async def test_origin_that_is_not_listed_gets_nothing(open_service: Service, path: str) -> None:
    org = await open_service.organization()
    for headers in ({"Origin": OTHER}, {"Origin": "null"}, {"Origin": f"{APP}, {APP}"}, {}):
        answer = await org.owner.call("GET", path, headers=headers)
        assert answer.status_code == 200
        assert cors_headers(answer) == {}
        assert answer.headers["vary"].split(", ") == [
            "Origin",
            "Authorization",
            "X-Organization-Id",
        ]


async def test_hot_and_ordinary_route_have_the_same_headers(open_service: Service) -> None:
    org = await open_service.organization()
    writer = await open_service.key(org.owner, org.id, "projects:write")
    callers = {200: org.owner, 401: open_service.anonymous, 403: writer.caller}
    for status, caller in callers.items():
        hot, ordinary = [readable(await ask(caller, path)) for path in (PROJECTS, TWIN)]
        assert (hot.status_code, ordinary.status_code) == (status, status)
        assert cors_headers(hot) == cors_headers(ordinary)


async def test_errors_are_readable(open_service: Service) -> None:
    org = await open_service.organization()
    reader = await open_service.key(org.owner, org.id, "projects:read")
    large = {"name": "x", "description": "x" * 1_100_000}
    answers = {
        "missing_credential": await ask(open_service.anonymous, PROJECTS),
        "invalid_credential": await ask(open_service.caller("x"), HOT[1]),
        "insufficient_scope": await ask(reader.caller, KEYS),
        "not_found": await ask(org.owner, f"{PROJECTS}/x"),
        "method_not_allowed": await ask(org.owner, PROJECTS, "PUT"),
        "validation_failed": await ask(org.owner, f"{PROJECTS}?limit=0"),
        "payload_too_large": await ask(org.owner, PROJECTS, "POST", json=large),
        "unsupported_media_type": await ask(
            org.owner, PROJECTS, "POST", json={}, Content_Encoding="gzip"
        ),
    }
    assert {refusal(readable(answer))[1]: code for code, answer in answers.items()} == {
        code: code for code in answers
    }


async def test_rate_limits_and_locations_are_exposed(open_service: Service) -> None:
    org = await open_service.organization()
    listed = readable(await ask(org.owner, PROJECTS))
    made = readable(await ask(org.owner, PROJECTS, "POST", json={"name": "x"}))
    assert {"RateLimit", "RateLimit-Policy", "Location"} <= {
        *listed.headers["access-control-expose-headers"].split(", ")
    }
    assert "ratelimit" in listed.headers
    assert "location" in made.headers


async def test_exceeded_rate_limit_is_readable(conninfo: str) -> None:
    catalog = catalog_file('[[plans]]\nid = "free"\n[plans.limits]\nrequests_per_minute = 1')
    async with running_service(conninfo, CORS_ORIGINS=APP, TENANTRY_PLANS=catalog) as service:
        org = await service.organization()
        await org.owner.get(PROJECTS)
        for path in (*HOT, TWIN):
            answer = readable(await ask(org.owner, path))
            assert refusal(answer) == (429, "rate_limited")
            assert "Retry-After" in answer.headers["access-control-expose-headers"]


async def test_answers_without_the_database_are_readable(conninfo: str) -> None:
    async with (
        database_link(conninfo) as link,
        running_service(link.conninfo, SHORT_TIMEOUTS, CORS_ORIGINS=APP) as service,
    ):
        org = await service.organization()
        await link.cut()
        for path in (*HOT, KEYS):
            assert refusal(readable(await ask(org.owner, path))) == (503, "auth_unavailable")


@pytest.fixture
async def unstarted() -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a service that never had a database."""
    async with client_of(build_app(make_settings(CORS_ORIGINS=APP), "host=/nowhere")) as client:
        yield client


PREFLIGHT: Final = {"Origin": APP, "Access-Control-Request-Method": "POST"}


@pytest.mark.parametrize("path", [*HOT, KEYS, f"{PROJECTS}/x", "/api/v1/nothing"])
async def test_preflight_needs_neither_credential_nor_database(
    unstarted: httpx2.AsyncClient, path: str
) -> None:
    answer = readable(await unstarted.options(path, headers=PREFLIGHT))
    assert (answer.status_code, answer.content) == (204, b"")
    assert "content-length" not in answer.headers
    assert {"GET", "POST", "PATCH", "DELETE"} <= {
        *answer.headers["access-control-allow-methods"].split(", ")
    }
    permitted = {
        name.lower() for name in answer.headers["access-control-allow-headers"].split(", ")
    }
    assert {"authorization", "content-type", "idempotency-key", "x-organization-id"} <= permitted
    assert int(answer.headers["access-control-max-age"]) > 0


async def test_preflight_is_counted(unstarted: httpx2.AsyncClient) -> None:
    await unstarted.options(PROJECTS, headers=PREFLIGHT)
    counted = (await unstarted.get("/metrics")).text
    assert (
        'tenantry_http_requests_total{method="OPTIONS",route="preflight",status="204"} 1.0'
        in counted
    )


async def test_preflight_of_another_origin_is_not_permitted(open_service: Service) -> None:
    for path in (*HOT, KEYS, WEBHOOK):
        answer = await open_service.anonymous.call(
            "OPTIONS", path, headers={**PREFLIGHT, "Origin": OTHER}
        )
        assert cors_headers(answer) == {}


async def test_preflight_of_the_webhook_is_not_answered(open_service: Service) -> None:
    answer = await open_service.anonymous.call("OPTIONS", WEBHOOK, headers=PREFLIGHT)
    assert answer.status_code == 405
    assert cors_headers(answer) == {}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": APP},
        {**PREFLIGHT, "Origin": OTHER},
        {**PREFLIGHT, "X-Forwarded-Method": "OPTIONS"},
    ],
)
async def test_gateway_that_passes_the_method_on_is_answered_as_ever(
    open_service: Service, headers: dict[str, str]
) -> None:
    org = await open_service.organization()
    accepted = await org.owner.call("OPTIONS", HOT[1], headers=headers)
    assert (accepted.status_code, accepted.headers["x-tenant-id"]) == (200, org.id)
    rejected = await open_service.anonymous.call("OPTIONS", HOT[1], headers=headers)
    assert refusal(rejected) == (401, "missing_credential")


@cases(
    ("origin", "method", "headers"),
    [
        ("capacitor://localhost", "POST", "authorization,content-type"),
        ("ionic://localhost", "DELETE", "authorization"),
        ("tauri://localhost", "PATCH", "authorization,content-type,idempotency-key"),
        ("app://.", "GET", "authorization,x-organization-id"),
        (f"chrome-extension://{'abcdefghijklmnop' * 2}", "POST", "authorization,content-type"),
    ],
)
async def test_application_gets_its_preflight_and_answer(
    applications: Service, origin: str, method: str, headers: str
) -> None:
    preflight = await ask(
        applications.anonymous,
        PROJECTS,
        "OPTIONS",
        origin,
        Access_Control_Request_Method=method,
        Access_Control_Request_Headers=headers,
        Sec_Fetch_Mode="cors",
    )
    assert readable(preflight, origin).status_code == 204
    assert method in preflight.headers["access-control-allow-methods"].split(", ")
    permitted = preflight.headers["access-control-allow-headers"].lower().split(", ")
    assert {*headers.split(",")} <= {*permitted}
    for path in (*HOT, TWIN):
        answer = readable(await ask(applications.anonymous, path, origin=origin), origin)
        assert refusal(answer) == (401, "missing_credential")


@cases(
    "origin",
    [
        "capacitor://localhost:8080",
        "capacitor://localhost.example",
        "Capacitor://localhost",
        "capacitor://localhost/",
        "chrome-extension://ponmlkjihgfedcbaponmlkjihgfedcba",
        "http://localhost",
        "null",
    ],
)
async def test_application_that_is_not_listed_gets_nothing(
    applications: Service, origin: str
) -> None:
    for path in (*HOT, TWIN):
        assert cors_headers(await ask(applications.anonymous, path, origin=origin)) == {}
        answer = await ask(
            applications.anonymous, path, "OPTIONS", origin, Access_Control_Request_Method="POST"
        )
        assert cors_headers(answer) == {}


async def test_any_origin_gets_the_star(shared_database: SharedDatabase) -> None:
    async with running_service(shared_database.conninfo, CORS_ORIGINS="*") as service:
        for path in (*HOT, TWIN):
            for origin in (APP, "null"):
                answer = await ask(service.anonymous, path, origin=origin)
                assert answer.headers[ALLOW_ORIGIN] == "*"
                assert "Origin" not in answer.headers["vary"]
            assert (await service.anonymous.call("OPTIONS", path, headers=PREFLIGHT)).headers[
                ALLOW_ORIGIN
            ] == "*"


async def test_without_the_setting_nothing_changes(service: Service) -> None:
    for method, path in requests_of_every_kind():
        answer = await ask(service.anonymous, path, method)
        assert cors_headers(answer) == {}
        assert "Origin" not in answer.headers.get("vary", "")
    assert (await service.anonymous.call("OPTIONS", HOT[1], headers=PREFLIGHT)).status_code == 401
    assert (await service.anonymous.call("OPTIONS", KEYS, headers=PREFLIGHT)).headers["allow"]
