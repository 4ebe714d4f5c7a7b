"""Pages of other origins behind gateways with the lines that the page on gateways adds for them."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.gateways import Answer, Gateway, ServiceBehindGateway, refused, running_gateway

PAGE: Final = Path(__file__).parents[3] / "docs" / "how-to" / "gateways.md"
APP: Final = ("Origin", "https://app.example.com")
OTHER: Final = ("Origin", "https://other.example.com")
ASKS: Final = ("Access-Control-Request-Method", "GET")
NGINX_LOCATIONS: Final = ("401", "403", "500")


def blocks(language: str) -> list[str]:
    """The code blocks of the page in this language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


def changes_of(name: str, folder: Path) -> dict[str, str]:
    """What the page says to add to an example, as replacements."""
    if name == "caddy":
        (added,) = blocks("caddy")
        return {
            "\troute {\n\t\trespond @ambiguous 400\n": f"\troute {{\n{added}\t\trespond @ambiguous 400\n"
        }
    headers, maps, answer = blocks("nginx")
    file = folder / "cors.conf"
    file.write_text(headers)
    include = f"    include {file};\n"
    changes = {
        "server {\n    listen": f"{maps}\nserver {{\n{include}    listen",
        "    auth_request /_tenantry;\n": f"{answer}\n    auth_request /_tenantry;\n",
    }
    for status in NGINX_LOCATIONS:
        changes[f"location @tenantry_{status} {{\n"] = (
            f"location @tenantry_{status} {{\n    {include}"
        )
    return changes


@pytest.fixture(scope="module", params=["nginx", "caddy"])
async def gateway(
    request: pytest.FixtureRequest,
    behind: ServiceBehindGateway,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Gateway]:
    folder = tmp_path_factory.mktemp(request.param)
    async with running_gateway(
        request.param, folder, behind.port, changes_of(request.param, folder)
    ) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def nothing_received(gateway: Gateway) -> None:
    gateway.application.received.clear()
    gateway.line.forget()


def readable(answer: Answer) -> Answer:
    assert answer.header("access-control-allow-origin") == APP[1]
    assert "RateLimit" in str(answer.header("access-control-expose-headers"))
    assert ("vary", "Origin") in answer.headers
    return answer


@pytest.mark.parametrize("path", ["/projects", "/reports/7", "/me", "/status"])
async def test_preflight_is_answered_by_the_gateway(gateway: Gateway, path: str) -> None:
    answer = readable(await gateway.send("OPTIONS", path, APP, ASKS))
    assert (answer.status, answer.body) == (204, b"")
    assert "Authorization" in str(answer.header("access-control-allow-headers"))
    assert gateway.application.received == []
    assert gateway.line.requests() == []


async def test_answers_and_rejections_are_readable(gateway: Gateway, reader: str) -> None:
    accepted = readable(await gateway.send("GET", "/projects", APP, credential=reader))
    assert accepted.header("x-from") == "application"
    refused(readable(await gateway.send("GET", "/projects", APP)), 401, "missing_credential")
    refused(
        readable(await gateway.send("GET", "/reports", APP, credential=reader)),
        403,
        "insufficient_scope",
    )


@pytest.mark.parametrize(
    "headers", [(OTHER, ASKS), (ASKS,), (APP,)], ids=["another origin", "no origin", "no method"]
)
async def test_everything_else_is_checked(
    gateway: Gateway, headers: tuple[tuple[str, str], ...]
) -> None:
    answer = refused(
        await gateway.send("OPTIONS", "/projects", *headers), 401, "missing_credential"
    )
    assert (answer.header("access-control-allow-origin") is None) is (APP not in headers)
    assert gateway.application.received == []


async def test_rejection_while_tenantry_is_away_is_readable(gateway: Gateway, reader: str) -> None:
    await gateway.line.cut()
    try:
        refused(
            readable(await gateway.send("GET", "/projects", APP, credential=reader)),
            503,
            "auth_unavailable",
        )
    finally:
        await gateway.line.restore()
