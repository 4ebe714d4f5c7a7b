"""FastAPI routes with required scopes: in the code, in their answers, and in the OpenAPI
document.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import httpx2
import pytest
from fastapi import APIRouter, Depends, FastAPI, Security, WebSocket
from pydantic import BaseModel

from tenantry.asgi import RequestPrincipal, TenantryAsgiMiddleware
from tenantry.asgi.fastapi import install, require
from tenantry.server.asgi_types import AsgiApp
from tests.support.app import client_of, lifespan
from tests.support.application_checks import (
    check_counted_once,
    check_public_path,
    check_readable_projects,
)
from tests.support.in_process import owner_and_reader, tenantry_of
from tests.support.service import Caller, Service, refusal
from tests.support.websocket import open_websocket

READ: Final = "projects:read"
WRITE: Final = "projects:write"

Reader = Annotated[RequestPrincipal, Depends(require(READ))]
Writer = Annotated[RequestPrincipal, Security(require(WRITE))]
Anybody = Annotated[RequestPrincipal, Depends(require())]


class Project(BaseModel):
    name: str


def application(**options: Any) -> FastAPI:
    app = FastAPI(**options)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/projects")
    async def list_projects(principal: Reader) -> dict[str, str]:
        return {"caller": principal.id}

    @app.post("/projects")
    async def make_project(project: Project, principal: Writer) -> dict[str, str]:
        return {"caller": principal.id, "name": project.name}

    @app.get("/me", responses={403: {"description": "Our own words"}})
    async def me(principal: Anybody) -> dict[str, str]:
        return {"caller": principal.id}

    @app.get("/sandbox")
    async def sandbox(
        principal: Annotated[RequestPrincipal, Depends(require(READ, mode="test"))],
    ) -> dict[str, str]:
        return {"caller": principal.id}

    @app.get("/either")
    async def either(
        principal: Annotated[RequestPrincipal, Depends(require(READ, mode="any"))],
    ) -> dict[str, str]:
        return {"mode": principal.mode}

    @app.delete("/all")
    async def delete_all(principal: Anybody) -> None:
        principal.require("*:*")

    @app.get("/both")
    async def both(
        principal: Annotated[RequestPrincipal, Security(require(READ), scopes=[WRITE])],
    ) -> dict[str, str]:
        return {"caller": principal.id}

    return app


@asynccontextmanager
async def running(app: AsgiApp) -> AsyncIterator[httpx2.AsyncClient]:
    async with lifespan(app), client_of(app) as client:
        yield client


@pytest.fixture(scope="module")
async def client(service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    """Of an application without the middleware."""
    tenantry = tenantry_of(service)
    app = application(lifespan=tenantry.lifespan)
    install(app, tenantry)
    async with running(app) as client:
        yield client


async def test_route_accepts_callers_with_its_scope(
    service: Service, client: httpx2.AsyncClient
) -> None:
    owner, reader = await check_readable_projects(service, client)
    assert (await owner.post("/projects", {"name": "a"})).status_code == 200
    assert refusal(await reader.post("/projects", {"name": "a"})) == (403, "insufficient_scope")


async def test_route_without_a_requirement_needs_no_credential(client: httpx2.AsyncClient) -> None:
    await check_public_path(client, {"status": "ok"})


async def test_scope_asked_for_in_the_routes_own_code_is_403(
    service: Service, client: httpx2.AsyncClient
) -> None:
    owner, reader = await owner_and_reader(service, client)
    assert (await owner.delete("/all")).status_code == 200
    answer = await reader.delete("/all")
    assert refusal(answer) == (403, "insufficient_scope")
    assert answer.headers["www-authenticate"].endswith('scope="*:*"')


async def test_scopes_beside_the_requirement_count_too(
    service: Service, client: httpx2.AsyncClient
) -> None:
    owner, reader = await owner_and_reader(service, client)
    assert (await owner.get("/both")).status_code == 200
    answer = await reader.get("/both")
    assert refusal(answer) == (403, "insufficient_scope")
    assert answer.headers["www-authenticate"].endswith(f'scope="{WRITE}"')


async def test_route_declares_the_accepted_mode(
    service: Service, client: httpx2.AsyncClient
) -> None:
    org = await service.organization()
    live = Caller(client, org.owner.credential)
    test = Caller(
        client, (await service.key(org.owner, org.id, READ, mode="test")).caller.credential
    )
    assert refusal(await test.get("/projects")) == (403, "mode_mismatch")
    assert refusal(await test.get("/me")) == (403, "mode_mismatch")
    assert refusal(await live.get("/sandbox")) == (403, "mode_mismatch")
    assert (await test.get("/sandbox")).status_code == 200
    assert [(await caller.get("/either")).json()["mode"] for caller in (live, test)] == [
        "live",
        "test",
    ]
    with pytest.raises(ValueError, match="must be live, test or any"):
        require(READ, mode="sandbox")


async def test_invalid_scope_is_rejected_at_its_declaration() -> None:
    with pytest.raises(ValueError, match="'projects' is not a scope"):
        require("projects")


@pytest.mark.parametrize("place", ["added", "around"])
async def test_with_the_middleware_each_request_is_authenticated_once_and_before_its_body_is_read(
    service: Service, place: str
) -> None:
    tenantry = tenantry_of(service)
    api = application(lifespan=tenantry.lifespan)
    install(api, tenantry)
    app: AsgiApp = api
    if place == "added":
        api.add_middleware(TenantryAsgiMiddleware, tenantry=tenantry, public=["/health"])
    else:
        app = TenantryAsgiMiddleware(api, tenantry=tenantry, public=["/health"])
    async with running(app) as client:
        owner, reader = await owner_and_reader(service, client)
        answers = await check_counted_once(owner)
        assert [len(answer.headers.get_list("x-request-id")) for answer in answers] == [1, 1, 1]
        assert refusal(await reader.post("/projects", {"name": "a"})) == (403, "insufficient_scope")
        assert refusal(await Caller(client, None).post("/projects", "not a project")) == (
            401,
            "missing_credential",
        )
        assert (await owner.post("/projects", "not a project")).status_code == 422
        assert (await client.get("/health")).status_code == 200
        assert refusal(await client.get("/nothing")) == (401, "missing_credential")


@pytest.mark.parametrize("where", ["nowhere", "outside"])
async def test_without_install_every_request_is_rejected(service: Service, where: str) -> None:
    tenantry = tenantry_of(service)
    inner = application()
    app = FastAPI(lifespan=tenantry.lifespan)
    app.mount("/inner", inner)
    if where == "outside":
        install(app, tenantry)
    async with running(app) as client:
        owner, _ = await owner_and_reader(service, client)
        with pytest.raises(RuntimeError, match=r"Call tenantry\.asgi\.fastapi\.install"):
            await owner.get("/inner/projects")


async def test_mounted_application_and_router(service: Service) -> None:
    tenantry = tenantry_of(service)
    inner = application()
    router = APIRouter(prefix="/v1", dependencies=[Depends(require(READ))])

    @router.get("/things")
    async def things() -> dict[str, str]:
        return {}

    inner.include_router(router)
    install(inner, tenantry)
    app = FastAPI(lifespan=tenantry.lifespan)
    app.mount("/inner", inner)
    async with running(app) as client:
        owner, reader = await owner_and_reader(service, client)
        assert (await owner.get("/inner/projects")).status_code == 200
        assert (await reader.get("/inner/v1/things")).status_code == 200
        assert refusal(await Caller(client, None).get("/inner/v1/things")) == (
            401,
            "missing_credential",
        )
        assert refusal(await reader.post("/inner/projects", {"name": "a"})) == (
            403,
            "insufficient_scope",
        )


async def test_websocket_route(service: Service) -> None:
    tenantry = tenantry_of(service)
    app = FastAPI()
    install(app, tenantry)

    @app.websocket("/chat")
    async def chat(websocket: WebSocket, principal: Writer) -> None:
        await websocket.accept()
        await websocket.close(reason=principal.id)

    async with tenantry, client_of(app) as client:
        owner, reader = await owner_and_reader(service, client)
        headers = [(b"authorization", f"Bearer {owner.credential}".encode())]
        accepted, closed = await open_websocket(app, "/chat", headers)
        assert (accepted["type"], closed["code"]) == ("websocket.accept", 1000)
        start, _ = await open_websocket(
            app, "/chat", [(b"authorization", f"Bearer {reader.credential}".encode())]
        )
        assert (start["type"], start["status"]) == ("websocket.http.response.start", 403)


async def test_document_names_the_scheme_the_scopes_and_the_refusals(
    client: httpx2.AsyncClient,
) -> None:
    document = (await client.get("/openapi.json")).json()
    assert document["components"]["securitySchemes"]["tenantry"]["type"] == "http"
    assert document["components"]["securitySchemes"]["tenantry"]["scheme"] == "bearer"
    paths = document["paths"]
    needed = {
        f"{method} {path}": op.get("security")
        for path, ops in paths.items()
        for method, op in ops.items()
    }
    assert needed == {
        "get /health": None,
        "get /projects": [{"tenantry": [READ]}],
        "post /projects": [{"tenantry": [WRITE]}],
        "get /me": [{"tenantry": []}],
        "delete /all": [{"tenantry": []}],
        "get /either": [{"tenantry": [READ]}],
        "get /sandbox": [{"tenantry": [READ]}],
        "get /both": [{"tenantry": [WRITE, READ]}],
    }
    assert set(paths["/health"]["get"]["responses"]) == {"200"}
    refusals = paths["/projects"]["get"]["responses"]
    assert set(refusals) == {"200", "401", "403", "429", "503"}
    for status, headers in (
        ("401", {"WWW-Authenticate"}),
        ("403", {"WWW-Authenticate"}),
        ("429", {"Retry-After", "RateLimit", "RateLimit-Policy"}),
        ("503", {"Retry-After"}),
    ):
        assert set(refusals[status]["headers"]) == {*headers, "X-Request-Id"}
        schema = refusals[status]["content"]["application/problem+json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/TenantryProblem"}
    assert paths["/me"]["get"]["responses"]["403"] == {"description": "Our own words"}
    problem = document["components"]["schemas"]["TenantryProblem"]
    assert {"type", "title", "status", "detail", "code", "requestId"} == set(problem["required"])
    assert problem["properties"]["errors"]["anyOf"][0]["items"]["$ref"] in {
        f"#/components/schemas/{name}" for name in document["components"]["schemas"]
    }


async def test_document_names_the_header_for_keys(service: Service) -> None:
    app = application()
    install(app, tenantry_of(service, KEY_PREFIX="acme", API_KEY_HEADER="X-API-Key"))
    app.openapi()
    document = app.openapi()
    schemes = document["components"]["securitySchemes"]
    assert "`acme_...`" in schemes["tenantry"]["description"]
    assert schemes["tenantryApiKey"] == {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    paths = document["paths"]
    assert paths["/projects"]["post"]["security"] == [
        {"tenantry": [WRITE]},
        {"tenantryApiKey": [WRITE]},
    ]
    assert "security" not in paths["/health"]["get"]


async def test_document_describes_routes_that_were_added_later(service: Service) -> None:
    tenantry = tenantry_of(service)
    app = application()
    install(app, tenantry)
    assert "/late" not in app.openapi()["paths"]

    @app.get("/late")
    async def late(principal: Reader) -> dict[str, str]:
        return {"caller": principal.id}

    assert set(app.openapi()["paths"]["/late"]["get"]["responses"]) == {
        "200",
        "401",
        "403",
        "429",
        "503",
    }
