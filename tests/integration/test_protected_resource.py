"""OAuth clients find the identity provider by the metadata of the resource (RFC 9728)."""

from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.support.catalogs import catalog_file
from tests.support.emptying import SharedDatabase
from tests.support.in_process import (
    DJANGO,
    DJANGO_ASGI,
    FASTAPI,
    FLASK,
    MIDDLEWARE,
    SERVICE,
    WSGI,
    running_app,
)
from tests.support.service import (
    KEYS,
    PROJECTS,
    VERIFY,
    WHOAMI,
    Service,
    running_service,
)

RESOURCE: Final = "https://api.example/mcp"
ROOT: Final = "/.well-known/oauth-protected-resource"
PATHS: Final = (ROOT, f"{ROOT}/mcp")
PARAMETER: Final = f', resource_metadata="https://api.example{ROOT}/mcp"'
CHALLENGE: Final = 'Bearer realm="api"'
INVALID: Final = (
    f'{CHALLENGE}, error="invalid_token", error_description="The API key is not valid."'
)
APPS: Final = (MIDDLEWARE, FASTAPI, WSGI, FLASK, DJANGO, DJANGO_ASGI)
SET: Final = {"OAUTH_RESOURCE": RESOURCE}


@pytest.fixture(scope="module")
async def resource(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    """A service that OAuth clients know."""
    async with running_service(shared_database.conninfo, **SET) as service:
        yield service


async def challenge_of(service: Service, path: str, credential: str | None = None) -> str:
    caller = service.anonymous if credential is None else service.caller(credential)
    answer = await caller.get(path)
    assert answer.status_code == 401, answer.text
    [value] = answer.headers.get_list("www-authenticate")
    return str(value)


@pytest.mark.parametrize("path", PATHS)
async def test_service_answers_with_its_metadata(resource: Service, path: str) -> None:
    answer = await resource.anonymous.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {
        "resource": RESOURCE,
        "authorization_servers": [resource.issuer.url],
        "bearer_methods_supported": ["header"],
    }
    assert answer.headers["cache-control"] == "public, max-age=3600"
    assert "vary" not in answer.headers
    assert "set-cookie" not in answer.headers
    head = await resource.anonymous.call("HEAD", path)
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", PATHS)
async def test_pages_of_any_origin_read_the_metadata(resource: Service, path: str) -> None:
    origin = {"Origin": "https://client.example"}
    answer = await resource.anonymous.call("GET", path, headers=origin)
    assert answer.headers.get_list("access-control-allow-origin") == ["*"]
    preflight = await resource.anonymous.call(
        "OPTIONS",
        path,
        headers={
            **origin,
            "Access-Control-Request-Method": "GET",
            "Access-Control-Request-Headers": "mcp-protocol-version",
        },
    )
    assert (preflight.status_code, preflight.content) == (200, b"")
    assert preflight.headers["access-control-allow-origin"] == "*"
    assert preflight.headers["access-control-allow-headers"] == "*"


@pytest.mark.parametrize("path", [PROJECTS, f"{PROJECTS}/", KEYS, WHOAMI, f"{VERIFY}projects:read"])
async def test_challenges_of_the_service_name_the_metadata(resource: Service, path: str) -> None:
    assert await challenge_of(resource, path) == CHALLENGE + PARAMETER
    assert await challenge_of(resource, path, "svc_live_x") == INVALID + PARAMETER


async def test_other_rejections_are_as_ever(resource: Service) -> None:
    org = await resource.organization()
    reader = await resource.key(org.owner, org.id, "projects:read")
    for path in (KEYS, f"{VERIFY}api_keys:read"):
        answer = await reader.caller.get(path)
        assert answer.status_code == 403
        assert "resource_metadata" not in answer.headers["www-authenticate"]
    other = await resource.anonymous.get(f"{ROOT}/other")
    assert other.status_code == 404
    assert (await resource.anonymous.post(ROOT, {})).status_code == 404


async def test_scopes_of_the_catalog_are_named(conninfo: str) -> None:
    catalog = catalog_file(
        '[[plans]]\nid = "free"\n[[scopes]]\nid = "reports:read"\nname = "Read reports"\n'
    )
    async with running_service(conninfo, TENANTRY_PLANS=catalog, **SET) as service:
        document = (await service.anonymous.get(ROOT)).json()
    assert document["scopes_supported"] == ["reports:read"]


@pytest.mark.parametrize("kind", APPS)
async def test_application_in_process_answers_too(service: Service, kind: str) -> None:
    async with running_app(kind, service, **SET) as app:
        for path in PATHS:
            answer = await app.caller(None).get(path)
            assert (answer.status_code, answer.json()["resource"]) == (200, RESOURCE)
            assert answer.headers["access-control-allow-origin"] == "*"
            assert answer.headers["cache-control"] == "public, max-age=3600"
            assert answer.headers["content-length"] == f"{len(answer.content)}"
            head = await app.caller(None).call("HEAD", path)
            assert head.status_code == 200
            assert (await app.caller(None).call("OPTIONS", path)).status_code == 200
        for credential, challenge in ((None, CHALLENGE), ("svc_live_x", INVALID)):
            refused = await app.caller(credential).get(app.path("projects:read"))
            assert refused.status_code == 401
            assert refused.headers.get_list("www-authenticate") == [challenge + PARAMETER]


@pytest.mark.parametrize("kind", [SERVICE, *APPS])
async def test_without_the_setting_nothing_changes(service: Service, kind: str) -> None:
    async with running_app(kind, service) as app:
        for path in PATHS:
            answer = await app.caller(None).get(path)
            assert answer.status_code != 200
            assert b"authorization_servers" not in answer.content
        for credential, challenge in ((None, CHALLENGE), ("svc_live_x", INVALID)):
            refused = await app.caller(credential).get(app.path("projects:read"))
            assert refused.headers.get_list("www-authenticate") == [challenge]
    for path in PATHS:
        assert (await service.anonymous.get(path)).status_code == 404
