"""What is Caddy's own: it passes the service's refusals on as they are."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateways import Gateway, ServiceBehindGateway, running_gateway
from tests.support.service import Organization


@pytest.fixture
async def gateway(behind: ServiceBehindGateway, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway("caddy", tmp_path, behind.port) as gateway:
        yield gateway


async def test_refusal_is_the_services_own(gateway: Gateway, behind: ServiceBehindGateway) -> None:
    answer = await gateway.send("GET", "/reports", credential="missing")
    direct = await behind.service.caller("missing").get("/api/v1/auth/verify/reports:read")
    assert answer.body.partition(b'"requestId"')[0] == direct.content.partition(b'"requestId"')[0]
    assert answer.header("www-authenticate") == direct.headers["www-authenticate"]
    assert answer.header("x-problem") is None


async def test_two_credentials_are_none(gateway: Gateway, org: Organization) -> None:
    good = f"Bearer {org.owner.credential}"
    answer = await gateway.send("GET", "/me", ("Authorization", good), ("Authorization", good))
    assert (answer.status, gateway.application.received) == (401, [])


async def test_neither_query_nor_cookies_are_sent_to_the_service(
    gateway: Gateway, org: Organization
) -> None:
    await gateway.send(
        "GET", "/me?secret=1", ("Cookie", "session=1"), credential=org.owner.credential
    )
    [asked] = gateway.line.requests()
    assert asked.target == "/api/v1/auth/verify/-/mode/live"
    assert asked.values("cookie") == []


@pytest.mark.parametrize("scope", ["", "reports"])
async def test_invalid_scope_rejects_every_request(
    behind: ServiceBehindGateway, org: Organization, tmp_path: Path, scope: str
) -> None:
    line = "vars tenantry_scope reports:read/mode/live\n"
    changes = {line: f"vars tenantry_scope {scope}\n" if scope else ""}
    async with running_gateway("caddy", tmp_path, behind.port, changes) as gateway:
        answer = await gateway.send("GET", "/reports", credential=org.owner.credential)
        assert (answer.status, gateway.application.received) == (404, [])
