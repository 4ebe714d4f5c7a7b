"""Django projects that authenticate in their own process, under WSGI and ASGI."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import httpx2
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.test import RequestFactory
from django.test.utils import override_settings

from tenantry.wsgi import WsgiAuthenticator
from tenantry.wsgi.django import TenantryDjangoMiddleware, requires
from tests.support.app import client_of
from tests.support.database_link import database_link
from tests.support.django_project import caller, configure_django, django_app, optional_caller
from tests.support.in_process import closing_in_thread, threaded_tenantry_of
from tests.support.service import Caller, Service, refusal
from tests.support.wsgi import wsgi_client

READ: Final = "projects:read"
CLIENTS: Final[dict[Any, Callable[[Any], httpx2.AsyncClient]]] = {
    WSGIHandler: wsgi_client,
    ASGIHandler: client_of,
}


@pytest.fixture(scope="module")
async def connection(service: Service) -> AsyncIterator[WsgiAuthenticator]:
    async with closing_in_thread(threaded_tenantry_of(service)) as tenantry:
        yield tenantry


@pytest.fixture(autouse=True)
def configured() -> None:
    configure_django()


@pytest.fixture(params=CLIENTS)
def handler(request: pytest.FixtureRequest) -> Any:
    """The handler of the server's interface."""
    return request.param


def client_for(handler: Any, tenantry: WsgiAuthenticator, **options: Any) -> httpx2.AsyncClient:
    """A client of the project, whose middleware has these options."""
    return CLIENTS[handler](django_app(tenantry, handler, **options))


async def callers(service: Service, client: httpx2.AsyncClient) -> tuple[Caller, Caller]:
    """An owner and a reader, as they meet this application."""
    org = await service.organization()
    reader = await service.key(org.owner, org.id, READ)
    return Caller(client, org.owner.credential), Caller(client, reader.caller.credential)


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")  # under ASGI
async def test_everything_but_public_paths_needs_a_credential(
    service: Service, connection: WsgiAuthenticator, handler: Any
) -> None:
    async with client_for(handler, connection, PUBLIC=["/open"]) as client:
        owner, reader = await callers(service, client)
        assert (await client.get("/open")).json()["caller"] is None
        for path in ("/stream", "/all", "/nothing", "/caller/-", "/open/"):
            assert refusal(await client.get(path)) == (401, "missing_credential"), path
        answers = [await owner.get(f"/caller/{READ}") for _ in range(3)]
        left = [
            int(answer.headers["ratelimit"].partition("r=")[2].partition(";")[0])
            for answer in answers
        ]
        assert left == [left[0], left[0] - 1, left[0] - 2]
        assert (await owner.get("/nothing")).status_code == 404
        assert (await owner.get("/stream")).text == "ab"
        assert (await owner.get("/all")).status_code == 200
        answer = await reader.get("/all")
        assert refusal(answer) == (403, "insufficient_scope")
        assert answer.headers["www-authenticate"].endswith('scope="*:*"')


async def test_table_of_scopes(
    service: Service, connection: WsgiAuthenticator, handler: Any
) -> None:
    async with client_for(handler, connection, SCOPES={("GET", "/open"): READ}) as client:
        _, reader = await callers(service, client)
        assert (await reader.get("/open")).status_code == 200
        assert (await reader.call("HEAD", "/open")).status_code == 200
        assert refusal(await reader.post("/open")) == (403, "insufficient_scope")
        head = await client.head("/open")
        assert (head.status_code, head.content) == (401, b"")


async def test_unknown_path_is_404_to_callers_and_401_without_a_credential(
    service: Service, connection: WsgiAuthenticator, handler: Any
) -> None:
    async with client_for(handler, connection, SCOPES={("GET", "/open"): READ}) as client:
        owner, reader = await callers(service, client)
        assert refusal(await reader.get("/nothing")) == (404, "not_found")
        assert (await owner.get("/nothing")).status_code == 404
        assert refusal(await reader.get("/stream")) == (403, "insufficient_scope")
        assert refusal(await client.get("/nothing")) == (401, "missing_credential")


async def test_views_declare_their_scope_and_mode(
    service: Service, connection: WsgiAuthenticator, handler: Any
) -> None:
    async with client_for(handler, connection, ON_DEMAND=True) as client:
        owner, reader = await callers(service, client)
        for kind in ("caller", "async"):
            assert (await owner.get(f"/{kind}/projects:write")).status_code == 200
            assert refusal(await reader.get(f"/{kind}/projects:write")) == (
                403,
                "insufficient_scope",
            )
            assert refusal(await client.get(f"/{kind}/-")) == (401, "missing_credential")
        assert (await reader.get("/projects/7")).json()["number"] == 7
        assert refusal(await client.get("/projects/7")) == (401, "missing_credential")
        assert (await client.get("/open")).json()["caller"] is None
        org = await service.organization()
        test = Caller(
            client, (await service.key(org.owner, org.id, READ, mode="test")).caller.credential
        )
        assert (await test.get("/any-mode")).json()["mode"] == "test"
        assert refusal(await test.get(f"/caller/{READ}")) == (403, "mode_mismatch")


async def test_asynchronous_class_based_view_leaves_the_event_loop_free(service: Service) -> None:
    # the requests of the connection to the database pass through this event loop
    async with (
        database_link(service.conninfo) as link,
        closing_in_thread(threaded_tenantry_of(service, DATABASE_URL=link.conninfo)) as tenantry,
        client_for(ASGIHandler, tenantry, ON_DEMAND=True) as client,
    ):
        owner, _ = await callers(service, client)
        assert (await owner.get("/async-projects")).status_code == 200
        assert (await owner.post("/async-projects")).status_code == 405
        assert refusal(await client.get("/async-projects")) == (401, "missing_credential")


async def test_error_handler_of_the_project_does_not_replace_rejections(
    service: Service, connection: WsgiAuthenticator, handler: Any
) -> None:
    inner = ["tests.support.django_project.ErrorPages"]
    async with client_for(handler, connection, inner=inner, ON_DEMAND=True) as client:
        owner, _ = await callers(service, client)
        for path in (
            "/caller/-",
            "/async/-",
            "/projects/7",
            "/async-projects",
            "/in-thread",
            "/inline",
            "/swallowing",
        ):
            assert refusal(await client.get(path)) == (401, "missing_credential"), path
        assert (await owner.get("/broken")).text == "the project's error page"
        assert (await owner.get("/inline")).text == "checked"
        assert (await owner.get("/in-thread")).json()["kind"] == "api_key"


async def test_client_cannot_name_itself(
    service: Service, connection: WsgiAuthenticator, handler: Any
) -> None:
    sent = {
        "X-Tenant-Id": "other",
        "X-Plan": "business",
        "X_Tenant_Id": "other",
        "X-Mine": "1",
        "tenantry.principal": "x",
    }
    async with client_for(handler, connection, PUBLIC=["/open"]) as client:
        shown = (await Caller(client, None).call("GET", "/open", headers=sent)).json()
    assert shown == {"caller": None, "headers": ["X-Mine"]}


async def test_exceptions_of_views_reach_django(
    service: Service, connection: WsgiAuthenticator, handler: Any
) -> None:
    async with client_for(handler, connection) as client:
        owner, _ = await callers(service, client)
        answer = await owner.get("/broken")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "x-request-id" in answer.headers


def test_headers_that_an_earlier_middleware_has_read_are_dropped_too(
    connection: WsgiAuthenticator,
) -> None:
    request = RequestFactory().get("/open", headers={"X-Tenant-Id": "other", "X-Mine": "1"})
    assert request.headers["X-Tenant-Id"] == "other"
    with override_settings(TENANTRY={"CONNECTION": connection, "ON_DEMAND": True}):
        answer = TenantryDjangoMiddleware(optional_caller)(request)
    assert json.loads(answer.content)["headers"] == ["X-Mine"]  # type: ignore[union-attr]


def test_view_fails_without_the_middleware() -> None:
    with pytest.raises(
        ImproperlyConfigured,
        match=r"Add tenantry\.wsgi\.django\.TenantryDjangoMiddleware to MIDDLEWARE",
    ):
        requires(READ)(caller)(RequestFactory().get("/"))


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"PUBLICK": []}, "TENANTRY has unknown options: PUBLICK"),
        ({"MODE": "tset"}, "'tset' is not a mode"),
        ({"PUBLIC": ["health"]}, "'health' is not a path"),
    ],
)
def test_invalid_options_stop_the_start(
    connection: WsgiAuthenticator, options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ImproperlyConfigured, match=fault):
        django_app(connection, **options)
