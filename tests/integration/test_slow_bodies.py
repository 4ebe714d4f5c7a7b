"""A request that changes something is authorized as of the moment when its body is complete, on
every route.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Final, NamedTuple, cast

import httpx2
import pytest
from litestar import Litestar, route

from tenantry.api.guards import Connection, RouteGuard
from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.server.asgi_types import AsgiApp
from tenantry.server.protocol import HttpProtocol
from tests.contract.test_openapi import LEAK_REPORT, WEBHOOK, operations
from tests.support.app import make_app
from tests.support.cases import cases
from tests.support.emptying import SharedDatabase
from tests.support.http_line import Line
from tests.support.issuer import running_issuer
from tests.support.members import add_member, path_of
from tests.support.service import (
    KEYS,
    PROJECTS,
    TENANTS,
    Caller,
    ManualClock,
    Organization,
    Service,
    identity_settings,
)
from tests.support.serving import served
from tests.support.slow_request import SlowRequest

PORTAL: Final = "/api/v1/billing/portal-sessions"
SAFE: Final = ("get", "head")
PUBLIC: Final = (WEBHOOK, LEAK_REPORT)
"""Routes without a credential. The gateway check accepts any method and changes nothing."""


class Site(NamedTuple):
    """A service that real connections lead to, and its address."""

    service: Service
    address: str

    async def begin(
        self, caller: Caller, method: str, path: str, content: object = None, **headers: str
    ) -> SlowRequest:
        """A request of which the head and half of the body were sent."""
        body = json.dumps(
            {"name": "slow"} if content is None else content, separators=(",", ":")
        ).encode()
        sent = {**caller._headers, "Content-Type": "application/json", **headers}
        return await SlowRequest.begin(self.address, method, path, body, sent)


@pytest.fixture(scope="module")
async def site(shared_database: SharedDatabase) -> AsyncIterator[Site]:
    clock = ManualClock()
    async with running_issuer() as issuer:
        app = make_app(
            shared_database.conninfo, clock, DEFAULT_TIMEOUTS, **identity_settings(issuer)
        )
        async with (
            served(app, HttpProtocol) as address,
            httpx2.AsyncClient(
                base_url=address, trust_env=False, verify=False, timeout=30
            ) as client,
        ):
            yield Site(Service(client, clock, issuer, shared_database.conninfo), address)


def changing(scheme: str) -> list[tuple[str, str]]:
    """Return method and path of each operation that changes data and accepts this kind of
    credential.
    """
    return [
        (method.upper(), path)
        for path, method, operation in operations()
        if method not in SAFE
        and path not in PUBLIC
        and any(scheme in needed for needed in operation["security"])
    ]


def test_walk_includes_every_changing_route() -> None:
    changed = {
        (method.upper(), path)
        for path, method, _ in operations()
        if method not in SAFE and path not in PUBLIC
    }
    assert {*changing("bearer"), *changing("userToken"), *changing("operatorToken")} == changed


async def test_revoked_key_changes_nothing_on_any_route(site: Site) -> None:
    org = await site.service.organization()
    key = await site.service.key(org.owner, org.id, accessLevel="OWNER")
    routes = changing("bearer")
    assert len(routes) > 10
    started = [
        (route, await site.begin(key.caller, route[0], route[1].replace("{tenant_id}", org.id)))
        for route in routes
    ]
    assert (await org.owner.delete(key.path)).status_code == 204
    answers = [(*route, *(await request.refused())) for route, request in started]
    assert answers == [(*route, 401, "api_key_revoked") for route in routes]


async def test_expired_token_changes_nothing_on_any_route(site: Site) -> None:
    org = await site.service.organization()
    owner = site.service.user("slow-owner", org=org.id, role="owner")
    routes = changing("userToken")
    started = [
        (route, await site.begin(owner, route[0], route[1].replace("{tenant_id}", org.id)))
        for route in routes
    ]
    site.service.clock.advance(hours=2)
    answers = [(*route, *(await request.refused())) for route, request in started]
    assert answers == [(*route, 401, "token_expired") for route in routes]


async def by_removal(
    site: Site, org: Organization
) -> tuple[Caller, Callable[[], Awaitable[object]]]:
    member = await add_member(org.owner, "removed", "admin")
    return site.service.user("removed", asks_for=org.id), lambda: org.owner.delete(path_of(member))


async def by_lower_role(
    site: Site, org: Organization
) -> tuple[Caller, Callable[[], Awaitable[object]]]:
    member = await add_member(org.owner, "lowered", "admin")
    return site.service.user("lowered", asks_for=org.id), lambda: org.owner.patch(
        path_of(member), {"role": "member"}
    )


async def by_suspension(
    site: Site, org: Organization
) -> tuple[Caller, Callable[[], Awaitable[object]]]:
    body = {"name": "n", "ownerEmail": "owner@x.example", "suspended": True}
    return org.owner, lambda: site.service.operator.put(org.path, body)


async def by_end_of_tenant(
    site: Site, org: Organization
) -> tuple[Caller, Callable[[], Awaitable[object]]]:
    return org.owner, lambda: site.service.operator.delete(org.path)


async def by_fewer_scopes(
    site: Site, org: Organization
) -> tuple[Caller, Callable[[], Awaitable[object]]]:
    key = await site.service.key(org.owner, org.id, "billing:write")
    return key.caller, lambda: org.owner.patch(key.path, {"scopes": ["billing:read"]})


async def by_expiry(
    site: Site, org: Organization
) -> tuple[Caller, Callable[[], Awaitable[object]]]:
    clock = site.service.clock
    expires_at = (clock.now + timedelta(minutes=1)).isoformat()
    key = await site.service.key(org.owner, org.id, "billing:write", expiresAt=expires_at)

    async def expire() -> None:
        clock.advance(minutes=2)

    return key.caller, expire


async def test_revoked_key_creates_no_project(site: Site) -> None:
    org = await site.service.organization()
    key = await site.service.key(org.owner, org.id, "projects:write")
    request = await site.begin(key.caller, "POST", PROJECTS, {"name": "too late"})
    await org.owner.delete(key.path)
    assert await request.refused() == (401, "api_key_revoked")
    assert (await org.owner.get(PROJECTS)).json()["data"] == []


@pytest.mark.parametrize(
    ("prepare_withdrawal", "status", "code"),
    [
        (by_removal, 403, "no_organization"),
        (by_lower_role, 403, "insufficient_scope"),
        (by_suspension, 403, "org_suspended"),
        (by_end_of_tenant, 401, "api_key_revoked"),
        (by_fewer_scopes, 403, "insufficient_scope"),
        (by_expiry, 401, "api_key_expired"),
    ],
)
async def test_scope_revoked_before_the_body_is_complete_opens_no_portal(
    site: Site,
    prepare_withdrawal: Callable[
        [Site, Organization], Awaitable[tuple[Caller, Callable[[], Awaitable[object]]]]
    ],
    status: int,
    code: str,
) -> None:
    org = await site.service.organization()
    caller, withdraw = await prepare_withdrawal(site, org)
    request = await site.begin(caller, "POST", PORTAL, {})
    await withdraw()
    assert await request.refused() == (status, code)


async def test_kept_answer_is_not_given_to_a_revoked_key(site: Site) -> None:
    org = await site.service.organization()
    key = await site.service.key(org.owner, org.id, "projects:write")
    body = {"name": "once"}
    assert (await key.caller.post(PROJECTS, body, idempotency_key="k")).status_code == 201
    request = await site.begin(key.caller, "POST", PROJECTS, body, **{"Idempotency-Key": "k"})
    await org.owner.delete(key.path)
    assert await request.refused() == (401, "api_key_revoked")


async def test_slow_request_of_an_authorized_caller_is_answered_and_counted_once(
    site: Site,
) -> None:
    org = await site.service.organization()
    key = await site.service.key(org.owner, org.id, "projects:*")
    before = await key.caller.get(PROJECTS)
    request = await site.begin(key.caller, "POST", PROJECTS, {"name": "slow"})
    status, headers, body = await request.finish()
    assert (status, json.loads(body)["name"]) == (201, "slow")
    assert left(before.headers["ratelimit"]) - left(headers["ratelimit"]) == 1


def left(field: str) -> int:
    """How many requests a ``RateLimit`` field says are left."""
    return int(field.partition("r=")[2].partition(";")[0])


async def test_caller_without_the_scope_is_rejected_before_the_body_is_sent(site: Site) -> None:
    org = await site.service.organization()
    reader = await site.service.key(org.owner, org.id, "projects:read")
    for caller, status, code in (
        (site.service.anonymous, 401, "missing_credential"),
        (reader.caller, 403, "insufficient_scope"),
    ):
        request = await site.begin(
            caller, "POST", TENANTS if caller is site.service.anonymous else KEYS
        )
        assert await request.refused(send_rest=False) == (status, code)


async def checks_of(method: str, *parts: bytes) -> int:
    """Return how often a guard checks a request whose parts arrive one after another."""
    checked = []

    class CountingGuard(RouteGuard):
        async def authorize(self, connection: Connection) -> None:
            checked.append(connection.scope["path"])

    @route(
        "/",
        http_method=["GET", "POST", "DELETE"],
        status_code=200,
        guards=[CountingGuard()],
    )
    async def answer() -> None: ...

    app = cast("AsgiApp", Litestar([answer], openapi_config=None))
    async with served(app, HttpProtocol) as address:
        line = await Line.to(address)
        await line.send(f"{method} / HTTP/1.1\r\nHost: x\r\n".encode() + parts[0], *parts[1:])
        assert (await line.head())[0] == 200
        line.close()
    return len(checked)


@cases(
    ("method", "parts", "checks"),
    [
        ("POST", [b"Content-Length: 2\r\n\r\n{}"], 1),
        ("POST", [b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"], 1),
        ("POST", [b"Content-Length: 0\r\n\r\n"], 1),
        ("DELETE", [b"\r\n"], 1),
        ("GET", [b"Content-Length: 2\r\n\r\n{}"], 1),
        ("GET", [b"Content-Length: 2\r\n\r\n", b"{}"], 1),
        ("POST", [b"Content-Length: 2\r\n\r\n", b"{}"], 2),
        ("POST", [b"Content-Length: 2\r\n\r\n", b"{", b"}"], 2),
        ("DELETE", [b"Content-Length: 2\r\n\r\n{", b"}"], 2),
        ("POST", [b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", b"0\r\n\r\n"], 2),
    ],
)
async def test_request_that_comes_at_once_is_checked_once(
    method: str, parts: list[bytes], checks: int
) -> None:
    assert await checks_of(method, *parts) == checks
