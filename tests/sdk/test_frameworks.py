"""The answers of web frameworks to callers that the service rejects."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx2
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test.utils import override_settings
from django.urls import path
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tenantry_sdk import Tenantry, errors, frameworks
from tests.sdk.sdk_support import Served
from tests.support.app import BASE_URL
from tests.support.django_project import configure_django
from tests.support.documentation import ROOT, blocks
from tests.support.service import Caller
from tests.support.wsgi import wsgi_client

PROBLEM: Final = "application/problem+json"
REJECTIONS: Final = [
    (401, {"WWW-Authenticate": 'Bearer realm="api", error="invalid_token"'}),
    (403, {"WWW-Authenticate": 'Bearer realm="api", error="insufficient_scope"'}),
    (429, {"Retry-After": "7", "RateLimit": '"tenant";r=0;t=7'}),
    (503, {"Retry-After": "1"}),
]


class RejectingService:
    """What the client asks: it answers every request in the same way."""

    def __init__(self) -> None:
        self.answer = httpx2.Response(401)

    def reject(self, status: int, headers: dict[str, str], code: str = "why") -> None:
        problem = {"status": status, "code": code, "detail": "Why.", "requestId": "4f2a"}
        given = {"Content-Type": PROBLEM, "Set-Cookie": "x=1", **headers}
        self.answer = httpx2.Response(status, json=problem, headers=given)

    def __call__(self, _request: httpx2.Request) -> httpx2.Response:
        return self.answer


SERVICE: Final = RejectingService()
TENANTRY: Final = Tenantry(
    "key", http_client=httpx2.Client(transport=httpx2.MockTransport(SERVICE)), retries=0
)


def check() -> str:
    return TENANTRY.auth.verify({"Authorization": "Bearer x"}, "reports:read").org_id


def consume() -> str:
    return str(TENANTRY.entitlements.consume("exports").remaining)


def own_call() -> str:
    return TENANTRY.api_keys.get("key_1").name


VIEWS: Final[dict[str, Callable[[], str]]] = {
    "check": check,
    "consume": consume,
    "own-call": own_call,
}


def fastapi() -> httpx2.AsyncClient:
    app = FastAPI()
    app.add_exception_handler(errors.APIError, frameworks.starlette_handler)
    for name, view in VIEWS.items():
        app.get(f"/{name}")(view)
    return asgi_client(app)


def starlette() -> httpx2.AsyncClient:
    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse(VIEWS[request.path_params["name"]]())

    app = Starlette(routes=[Route("/{name}", answer)])
    app.add_exception_handler(errors.APIError, frameworks.starlette_handler)
    return asgi_client(app)


def flask() -> httpx2.AsyncClient:
    app = Flask("tests")
    app.register_error_handler(errors.APIError, frameworks.flask_handler)
    app.get("/<name>")(lambda name: VIEWS[name]())
    return wsgi_client(app)


def django() -> httpx2.AsyncClient:
    with django_settings():
        return wsgi_client(WSGIHandler())


def django_asgi() -> httpx2.AsyncClient:
    with django_settings():
        return asgi_client(ASGIHandler())


def django_view(_request: HttpRequest, name: str) -> HttpResponse:
    return HttpResponse(VIEWS[name]())


async def django_async_view(_request: HttpRequest, name: str) -> HttpResponse:
    return HttpResponse(VIEWS[name]())


urlpatterns = [path("<name>", django_view), path("async/<name>", django_async_view)]


@contextmanager
def django_settings() -> Iterator[None]:
    configure_django()
    middleware = ["tenantry_sdk.frameworks.DjangoMiddleware"]
    with override_settings(MIDDLEWARE=middleware, ROOT_URLCONF=__name__):
        yield


def asgi_client(app: Any) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url=BASE_URL)


@pytest.fixture(params=[fastapi, starlette, flask, django, django_asgi])
async def application(request: pytest.FixtureRequest) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an application in each framework."""
    with django_settings():
        async with request.param() as client:
            yield client


@pytest.mark.parametrize(("status", "headers"), REJECTIONS)
async def test_rejected_caller_gets_the_answer_of_the_service(
    application: httpx2.AsyncClient, status: int, headers: dict[str, str]
) -> None:
    SERVICE.reject(status, headers)
    answer = await application.get("/check")
    assert (answer.status_code, answer.content) == (status, SERVICE.answer.content)
    assert answer.headers["content-type"] == PROBLEM
    assert answer.headers["cache-control"] == "no-store"
    assert {name: answer.headers[name] for name in headers} == headers
    assert "set-cookie" not in answer.headers


async def test_caller_without_quota_gets_the_answer_of_the_service(
    application: httpx2.AsyncClient,
) -> None:
    SERVICE.reject(403, {}, "quota_exceeded")
    answer = await application.get("/consume")
    assert (answer.status_code, answer.json()["code"]) == (403, "quota_exceeded")


@pytest.mark.parametrize(
    ("view", "status", "code"),
    [("own-call", 401, "invalid_credential"), ("check", 404, "unknown_feature")],
)
async def test_mistake_of_the_application_is_an_error_of_the_application(
    application: httpx2.AsyncClient, view: str, status: int, code: str
) -> None:
    SERVICE.reject(status, {"WWW-Authenticate": "Bearer"}, code)
    answer = await application.get(f"/{view}")
    assert answer.status_code == 500
    assert "www-authenticate" not in answer.headers
    assert code not in answer.text


async def test_django_answers_a_caller_that_an_asynchronous_view_rejects() -> None:
    SERVICE.reject(401, {}, "missing_credential")
    with django_settings():
        async with django_asgi() as client:
            answer = await client.get("/async/check")
    assert (answer.status_code, answer.json()["code"]) == (401, "missing_credential")


def test_import_loads_no_framework() -> None:
    code = (
        "import sys, tenantry_sdk.frameworks;"
        "print(*{'asgiref', 'django', 'fastapi', 'flask', 'starlette'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


async def test_application_of_the_readme_answers_callers(served: Served) -> None:
    (text,) = (block.text for block in blocks(ROOT / "README.md") if "FastAPI()" in block.text)
    module: dict[str, Any] = {}
    exec(text.replace("http://127.0.0.1:3001", served.url), module)  # noqa: S102  # our own text
    organization = await served.service.organization()
    async with asgi_client(module["app"]) as client:
        caller = Caller(client, organization.owner.credential)
        assert (await caller.get("/reports")).json() == {"tenant": organization.id, "plan": "free"}
        answer = await client.get("/reports")
    module["tenantry"].close()
    assert (answer.status_code, answer.json()["code"]) == (401, "missing_credential")
    assert answer.headers["www-authenticate"] == 'Bearer realm="api"'
