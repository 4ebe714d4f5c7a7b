"""Flask applications that authenticate in their own process."""

from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
from flask import Blueprint, Flask, g, request

from tenantry.wsgi import TenantryWsgiMiddleware, WsgiAuthenticator, principal_of
from tenantry.wsgi.flask import install, requires
from tests.support.application_checks import (
    check_counted_once,
    check_public_path,
    check_readable_projects,
)
from tests.support.in_process import closing_in_thread, owner_and_reader, threaded_tenantry_of
from tests.support.service import Caller, Service, refusal
from tests.support.wsgi import wsgi_client

READ = "projects:read"
WRITE = "projects:write"


def application() -> Flask:
    app = Flask("tests")

    @app.get("/health")
    def health() -> dict[str, bool]:
        return {"anonymous": g.principal is None}

    @app.route("/projects", methods=["GET", "POST"])
    @requires(READ)
    def projects() -> dict[str, str]:
        if request.method == "POST":
            g.principal.require(WRITE)
        return {"caller": g.principal.id, "same": principal_of(request).id}

    @app.get("/either")
    @requires(READ, mode="any")
    def either() -> dict[str, str]:
        return {"mode": g.principal.mode}

    @app.get("/later")
    @requires()
    async def later() -> dict[str, str]:
        return {"caller": g.principal.id}

    @app.get("/stream")
    @requires()
    def stream() -> Iterator[str]:
        yield "a"
        yield "b"

    @app.get("/broken")
    @requires()
    def broken() -> str:
        raise LookupError("a bug of the view")

    section = Blueprint("section", __name__, url_prefix="/section")
    section.before_request(requires(WRITE)(lambda: None))

    @section.get("/")
    def inside() -> dict[str, str]:
        return {"caller": g.principal.id}

    app.register_blueprint(section)
    return app


@pytest.fixture(scope="module")
async def connection(service: Service) -> AsyncIterator[WsgiAuthenticator]:
    async with closing_in_thread(threaded_tenantry_of(service)) as tenantry:
        yield tenantry


@pytest.fixture(scope="module")
async def client(connection: WsgiAuthenticator) -> AsyncIterator[httpx2.AsyncClient]:
    app = application()
    install(app, connection)
    async with wsgi_client(app) as client:
        yield client


async def test_view_accepts_callers_with_its_scope(
    service: Service, client: httpx2.AsyncClient
) -> None:
    owner, reader = await check_readable_projects(service, client)
    for caller in (owner, reader):
        answer = (await caller.get("/projects")).json()
        assert answer["caller"] == answer["same"]
    assert (await owner.get("/section/")).status_code == 200
    assert refusal(await reader.get("/section/")) == (403, "insufficient_scope")


async def test_scope_asked_for_in_the_views_own_code_is_403(
    service: Service, client: httpx2.AsyncClient
) -> None:
    owner, reader = await owner_and_reader(service, client)
    assert (await owner.post("/projects")).status_code == 200
    answer = await reader.post("/projects")
    assert refusal(answer) == (403, "insufficient_scope")
    assert answer.headers["www-authenticate"].endswith(f'scope="{WRITE}"')
    assert len(answer.headers.get_list("x-request-id")) == 1


async def test_view_without_a_requirement_needs_no_credential(client: httpx2.AsyncClient) -> None:
    await check_public_path(client, {"anonymous": True})
    assert (await client.get("/nothing")).status_code == 404


async def test_other_kinds_of_views(service: Service, client: httpx2.AsyncClient) -> None:
    owner, _ = await owner_and_reader(service, client)
    assert (await owner.get("/later")).status_code == 200
    assert (await owner.get("/stream")).text == "ab"
    answer = await owner.get("/broken")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
    for path in ("/later", "/stream", "/broken"):
        assert refusal(await client.get(path)) == (401, "missing_credential")


async def test_error_handler_of_the_application_does_not_replace_rejections(
    service: Service, connection: WsgiAuthenticator
) -> None:
    app = application()
    shop = Blueprint("shop", __name__, url_prefix="/shop")
    shop.before_request(requires(READ)(lambda: None))
    shop.register_error_handler(Exception, lambda _error: ("the application's error page", 500))

    @shop.get("/broken")
    def broken() -> str:
        raise LookupError("a bug of the view")

    @app.get("/inline")
    def inline() -> str:
        requires(READ)(lambda: None)()
        return "checked"

    app.register_blueprint(shop)
    install(app, connection)
    async with wsgi_client(app) as client:
        owner, _ = await owner_and_reader(service, client)
        for path in ("/shop/broken", "/inline"):
            assert refusal(await client.get(path)) == (401, "missing_credential")
        assert (await owner.get("/inline")).text == "checked"
        assert (await owner.get("/shop/broken")).text == "the application's error page"


async def test_view_declares_the_accepted_mode(
    service: Service, client: httpx2.AsyncClient
) -> None:
    org = await service.organization()
    test = Caller(
        client, (await service.key(org.owner, org.id, READ, mode="test")).caller.credential
    )
    assert refusal(await test.get("/projects")) == (403, "mode_mismatch")
    assert (await test.get("/either")).json() == {"mode": "test"}
    for scope, mode in ((READ, "sandbox"), ("projects", "live")):
        with pytest.raises(ValueError, match="is not a"):
            requires(scope, mode=mode)


async def test_with_the_middleware_everything_needs_a_credential_and_is_authenticated_once(
    service: Service, connection: WsgiAuthenticator
) -> None:
    app = application()
    install(app, connection)
    app.wsgi_app = TenantryWsgiMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, tenantry=connection, public=["/health"]
    )
    async with wsgi_client(app) as client:
        owner, _ = await owner_and_reader(service, client)
        await check_counted_once(owner)
        assert (await client.get("/health")).json() == {"anonymous": True}
        assert refusal(await client.get("/nothing")) == (401, "missing_credential")
        assert (await owner.get("/nothing")).status_code == 404


async def test_without_install_a_view_fails(
    service: Service, connection: WsgiAuthenticator
) -> None:
    app = application()
    app.testing = True
    async with wsgi_client(
        TenantryWsgiMiddleware(app, tenantry=connection, optional=True)
    ) as client:
        with pytest.raises(RuntimeError, match=r"Call tenantry\.wsgi\.flask\.install"):
            await client.get("/projects")
