"""A real MCP client knows the address of a server alone, and finds the identity provider by
itself.
"""

import asyncio
import json
import re
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tenantry.app import build_app
from tenantry.asgi import AsgiAuthenticator, TenantryAsgiMiddleware, principal_of
from tenantry.server.asgi_types import AsgiApp
from tenantry_sdk import AsyncTenantry
from tenantry_sdk.errors import APIError
from tests.support.app import OPERATOR_TOKEN, PEPPER, make_settings
from tests.support.catalogs import catalog_file
from tests.support.node_provider import node_provider
from tests.support.ports import free_port
from tests.support.required import node, node_package
from tests.support.serving import LOOPBACK, served

IN_PROCESS: Final = "in-process"
BY_VERIFY: Final = "by the check for gateways"
SCOPE: Final = "reports:read"
WELL_KNOWN: Final = "/.well-known/oauth-protected-resource/mcp"
CATALOG: Final = '[[plans]]\nid = "free"\n[[scopes]]\nid = "reports:read"\nname = "Read reports"\n'
FOLDER: Final = Path(__file__).parents[1] / "support" / "mcp_client"
FIELD: Final = re.compile(r'<input[^>]*type="hidden"[^>]*name="([^"]+)"[^>]*value="([^"]*)"')
ACTION: Final = re.compile(r'<form[^>]*action="([^"]+)"')


def results(message: dict[str, Any], tenant: str) -> dict[str, Any] | None:
    """Answer a message of the protocol; None for a notification."""
    methods = {
        "initialize": {
            "protocolVersion": message.get("params", {}).get("protocolVersion"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "reports", "version": "1"},
        },
        "tools/list": {
            "tools": [{"name": f"reports-of-{tenant}", "inputSchema": {"type": "object"}}]
        },
    }
    return methods.get(message["method"])


async def answered(request: Request, tenant: str) -> Response:
    message = await request.json()
    result = results(message, tenant)
    if result is None:
        return Response(status_code=202)
    return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})


def in_process(conninfo: str, **values: str) -> AsgiApp:
    """The MCP server with tenantry's middleware."""

    async def answer(request: Request) -> Response:
        return await answered(request, principal_of(request).org_id)

    tenantry = AsgiAuthenticator.from_values(
        {"DATABASE_URL": conninfo, "API_KEY_PEPPER": PEPPER, **values}
    )
    app = Starlette(routes=[Route("/mcp", answer, methods=["POST"])])
    return TenantryAsgiMiddleware(
        app, tenantry=tenantry, scopes=lambda *_: SCOPE, owns_lifespan=True
    )


def by_verify(service: str) -> AsgiApp:
    """The MCP server that asks the service at this address, and passes its answers on."""

    async def answer(request: Request) -> Response:
        async with AsyncTenantry(base_url=service) as tenantry:
            try:
                caller = await tenantry.auth.verify(request.headers, SCOPE)
            except APIError as error:
                return Response(error.content, error.status_code, error.headers_to_pass_on)
        return await answered(request, caller.org_id)

    async def metadata(_: Request) -> Response:
        async with httpx2.AsyncClient(trust_env=False) as client:
            found = await client.get(f"{service}{WELL_KNOWN}")
        return Response(found.content, media_type=found.headers["content-type"])

    return Starlette(routes=[Route("/mcp", answer, methods=["POST"]), Route(WELL_KNOWN, metadata)])


class McpClient:
    """A client that runs."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line, await self._process.wait()
        return dict(json.loads(line))

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())


@asynccontextmanager
async def mcp_client(address: str) -> AsyncIterator[McpClient]:
    node_package(FOLDER.name, "@modelcontextprotocol/sdk")
    process = await asyncio.create_subprocess_exec(
        node(), "client.js", address, cwd=FOLDER, stdin=PIPE, stdout=PIPE
    )
    try:
        yield McpClient(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def code_for(address: str, user: str) -> str:
    """Sign in and consent on the provider's pages, as a browser does; return the code."""
    async with httpx2.AsyncClient(trust_env=False) as browser:
        answer = await browser.get(address)
        while True:
            while answer.is_redirect:
                target = urljoin(str(answer.url), answer.headers["location"])
                if target.startswith("http://127.0.0.1/callback"):
                    [code] = parse_qs(urlsplit(target).query)["code"]
                    return code
                answer = await browser.get(target)
            assert answer.status_code == 200, answer.text
            action = ACTION.search(answer.text)
            assert action is not None, answer.text
            form = {**dict(FIELD.findall(answer.text)), "login": user, "password": "any"}
            answer = await browser.post(urljoin(str(answer.url), action[1]), data=form)


@pytest.mark.parametrize("road", [IN_PROCESS, BY_VERIFY])
async def test_client_finds_the_identity_provider_and_gets_in(conninfo: str, road: str) -> None:
    port = free_port()
    resource = f"http://{LOOPBACK}:{port}/mcp"
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(node_provider(resource=resource))
        values = {
            "OIDC_ISSUER": provider.issuer,
            "OIDC_AUDIENCE": resource,
            "OAUTH_RESOURCE": resource,
            "TENANTRY_PLANS": catalog_file(CATALOG),
        }
        service = await stack.enter_async_context(
            served(build_app(make_settings(**values), conninfo))
        )
        async with httpx2.AsyncClient(trust_env=False) as operator:
            made = await operator.put(
                f"{service}/api/v1/tenants/acme",
                json={"name": "Acme", "ownerEmail": "ann@acme.example", "ownerId": "ann"},
                headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"},
            )
        assert made.status_code == 201, made.text
        app = in_process(conninfo, **values) if road == IN_PROCESS else by_verify(service)
        await stack.enter_async_context(served(app, port=port))
        client = await stack.enter_async_context(mcp_client(resource))
        [(name, address)] = (await client.told()).items()
        assert name == "url"
        assert address.startswith(f"{provider.issuer}/auth?")
        asked = parse_qs(urlsplit(address).query)
        assert (asked["resource"], asked["scope"]) == ([resource], [SCOPE])
        client.tell(await code_for(address, "ann"))
        assert await client.told() == {"tools": ["reports-of-acme"], "scope": SCOPE}
