"""Malformed requests to every route by authorized callers: error answers, and no internal error."""

import logging
import random
from functools import cache
from typing import Any, Final

import msgspec
import pytest
from litestar.routes import HTTPRoute

from tenantry.app import litestar_routes
from tests.support.cases import cases
from tests.support.service import PROJECTS, VERIFY, Caller, Service

REQUESTS: Final = 25
"""By each caller to the routes of each method; `tests/system` sends more."""
CALLERS: Final = ("missing", "owner", "user", "operator")
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
NOT_SET_UP: Final = frozenset({501})
WORDS: Final = (
    "",
    "x",
    "0",
    "-1",
    "1e9",
    "9" * 25,
    "null",
    "%00",
    "%ff",
    "%ed%a0%80",
    "..",
    "%2e%2e",
    "%2f",
    "\u202e",
    "key_1",
    "a" * 300,
    "*:*",
    "true",
    "2026-01-01T00:00:00Z",
    "9999-12-31T23:59:59+14:00",
    "0001-01-01T00:00:00-14:00",
    "'--",
    "live",
    "test",
    "{}",
    "demo",
    "gYCA",
    "kgGhYQ",
    "kv8AAAAAAAAAoWE",
    "kgGhAA",
)
PARAMETERS: Final = (
    "limit",
    "cursor",
    "orgId",
    "mode",
    "status",
    "targetId",
    "action",
    "actorId",
    "from",
    "to",
    "since",
    "until",
    "after",
    "type",
    "outcome",
    "return_to",
    "silent",
    "hint",
    "state",
    "code",
    "before",
    "days",
    "format",
    "q",
    "id",
)
HEADERS: Final = (
    "Idempotency-Key",
    "X-Organization-Id",
    "X-Request-Id",
    "Accept",
    "Accept-Encoding",
    "Cookie",
    "Content-Type",
    "If-None-Match",
    "Sec-Fetch-Site",
    "Sec-Fetch-Mode",
    "User-Agent",
    "Provider-Signature",
    "X-Forwarded-For",
    "Content-Encoding",
    "Range",
    "Host",
    "traceparent",
)
HEADER_VALUES: Final = (
    b"",
    b"x",
    b"\xff\xfe",
    b"a" * 3000,
    b"application/json",
    b"application/x-www-form-urlencoded",
    b"text/html",
    b"multipart/form-data; boundary=x",
    b"application/json; charset=\xff",
    b"*/*;q=x",
    b"gzip;q=",
    b"tenantry_session=x",
    b"tenantry_session=\xff; a=b; tenantry_sign_in_x=..a",
    b'a="',
    b"t=1,v1=" + b"0" * 64,
    b"same-origin",
    b"key 1",
    b"acme",
)
FIELDS: Final = (
    "orgId",
    "name",
    "scopes",
    "expiresAt",
    "accessLevel",
    "mode",
    "description",
    "ownerEmail",
    "ownerId",
    "userId",
    "role",
    "plan",
    "secret",
    "overlapSeconds",
    "suspended",
    "successUrl",
    "cancelUrl",
    "returnUrl",
    "plans",
    "\ud7ff",
)
VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    2**63,
    1.5,
    "",
    "x",
    "\x00",
    "\u202e",
    "a" * 3000,
    "OWNER",
    "*:*",
    "projects:read",
    [],
    ["*:*"],
    ["x"] * 70,
    [None],
    {},
    {"a": {}},
    "2026-01-01T00:00:00Z",
    "a@b.example",
    "a@\u0130.example",
    "https://a.example",
    "javascript:alert(1)",
    "http://[::1",
    "live",
    "member",
    "pro",
    "free",
)
BODIES: Final = (
    b"",
    b"{",
    b"\xff",
    b"[]",
    b'"\\ud800"',
    b"[" * 20_000,
    b'{"a":' * 5_000,
    b'{"name":"a","name":"b"}',
    b'{"name":"\xff"}',
    b"name=%ff&form_token=%00&once=x",
    b"a=b&" * 3000,
    b"--x\r\n\r\n\r\n--x--",
    b'{"name":"\\u0000"}',
    b"1e999",
)


@cache
def paths(method: str) -> list[str]:
    """Every path that answers this method, with its parameters by name."""
    found = {VERIFY + "{scope}", WEBHOOK, PROJECTS}
    for route in litestar_routes().routes:
        assert isinstance(route, HTTPRoute)
        if method in route.methods:
            found.add(route.path_format)
    return sorted(found)


def address(path: str, org: str, chance: random.Random) -> str:
    """A path with a value for each parameter, and a query."""
    parts = [
        chance.choice((org, *WORDS))
        if part.startswith("{") and chance.random() < 0.7
        else part.strip("{}")
        for part in path.split("/")
    ]
    query = "&".join(
        f"{chance.choice(PARAMETERS)}={chance.choice((org, *WORDS))}"
        for _ in range(chance.choice((0, 1, 1, 3)))
    )
    return "/".join(parts) + (f"?{query}" if query else "")


def body(org: str, chance: random.Random) -> bytes:
    """A body: one that is none, or an object of fields that some route takes."""
    if chance.random() < 0.3:
        return chance.choice(BODIES)
    fields = {
        name: chance.choice((org, *VALUES)) for name in chance.sample(FIELDS, chance.randint(0, 6))
    }
    return msgspec.json.encode(fields)


@pytest.mark.parametrize("who", CALLERS)
@cases("method", METHODS)
async def test_malformed_request_causes_no_internal_error(
    service: Service, caplog: pytest.LogCaptureFixture, who: str, method: str
) -> None:
    caplog.set_level(logging.ERROR)
    await send_hostile_requests(service, who, method, REQUESTS)
    assert [record.getMessage() for record in caplog.records] == []


async def send_hostile_requests(service: Service, who: str, method: str, number: int) -> None:
    """Send so many requests, always the same ones; each answer must be a refusal or a success."""
    acme = await service.organization()
    callers: dict[str, Caller] = {
        "missing": service.anonymous,
        "owner": acme.owner,
        "user": service.user("mia", org=acme.id, role="admin"),
        "operator": service.operator,
    }
    caller = callers[who]
    chance = random.Random(f"{who} {method}")  # noqa: S311  # no secret
    ways = paths(method.replace("HEAD", "GET"))
    for _ in range(number):
        path = address(chance.choice(ways), acme.id, chance)
        headers = {
            chance.choice(HEADERS): chance.choice(HEADER_VALUES)
            for _ in range(chance.choice((0, 0, 1, 3)))
        }
        content = body(acme.id, chance) if method not in {"GET", "HEAD"} else b""
        answer = await caller.call(method, path, headers=headers, content=content)
        sent = (method, path, headers, content[:200], answer.status_code, answer.text[:500])
        assert answer.status_code < 500 or answer.status_code in NOT_SET_UP, sent
        assert answer.headers["x-content-type-options"] == "nosniff", sent
        assert caller.credential is None or caller.credential not in answer.text, sent
        if (
            answer.status_code >= 400
            and path.startswith("/api/")
            and WEBHOOK not in path
            and method != "HEAD"
        ):
            assert answer.json()["status"] == answer.status_code, sent
