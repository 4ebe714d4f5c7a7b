"""Keys in a header of their own, behind gateways with the lines that the page on gateways adds."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.gateways import (
    Gateway,
    ServiceBehindGateway,
    refused,
    running_gateway,
    service_behind_gateway,
)
from tests.support.postgres import PostgresServer

PAGE: Final = Path(__file__).parents[3] / "docs" / "how-to" / "gateways.md"
HEADER: Final = "X-API-Key"
CHANGES: Final = {
    "nginx": {
        "        proxy_set_header Authorization      $http_authorization;": (
            "proxy_set_header X-API-Key $http_x_api_key;"
        ),
        '    proxy_set_header Authorization           "";': 'proxy_set_header X-API-Key "";',
    },
    "caddy": {"\t\theader_up -Authorization\n": "header_up -X-API-Key\n"},
}
"""What the page adds, by the line that it is added to."""


@pytest.fixture(scope="module")
async def behind(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceBehindGateway]:
    with postgres.database() as conninfo:
        folder = tmp_path_factory.mktemp("service")
        async with service_behind_gateway(
            conninfo, folder, API_KEY_HEADER=HEADER, KEY_PREFIX="acme"
        ) as behind:
            yield behind


@pytest.fixture(scope="module", params=["nginx", "caddy"])
async def gateway(
    request: pytest.FixtureRequest,
    behind: ServiceBehindGateway,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Gateway]:
    folder = tmp_path_factory.mktemp(request.param)
    changes = {line: f"{line}\n{more}" for line, more in CHANGES[request.param].items()}
    async with running_gateway(request.param, folder, behind.port, changes) as gateway:
        yield gateway


@pytest.fixture(scope="module")
async def key(behind: ServiceBehindGateway) -> str:
    org = await behind.service.organization()
    key = await behind.service.key(org.owner, org.id, "projects:read")
    return str(key.caller.credential)


def test_the_page_has_these_lines() -> None:
    text = PAGE.read_text("utf-8")
    for changes in CHANGES.values():
        for line in changes.values():
            assert f"`{line.strip()}`" in text


async def test_key_in_its_header_is_checked_and_not_passed_on(gateway: Gateway, key: str) -> None:
    gateway.application.received.clear()
    answer = await gateway.send("GET", "/projects", (HEADER, key))
    assert (answer.status, answer.header("x-from")) == (200, "application")
    [received] = gateway.application.received
    assert key.startswith("acme_live_")
    assert key not in str(received.headers)
    assert received.identity()["x-principal-kind"] == ["api_key"]


async def test_scheme_for_keys_is_passed_on(gateway: Gateway, key: str) -> None:
    answer = await gateway.send("GET", "/projects", ("Authorization", f"Api-Key {key}"))
    assert answer.status == 200


async def test_two_credentials_are_refused(gateway: Gateway, key: str) -> None:
    gateway.application.received.clear()
    answer = await gateway.send("GET", "/projects", (HEADER, key), credential=key)
    refused(answer, 401, "invalid_credential")
    assert gateway.application.received == []


async def test_without_a_credential_both_headers_are_named(gateway: Gateway) -> None:
    answer = refused(await gateway.send("GET", "/projects"), 401, "missing_credential")
    assert HEADER.encode() in answer.body
