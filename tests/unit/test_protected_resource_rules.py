"""Where the metadata of a protected resource is, and what challenges say of it (RFC 9728)."""

import json
from typing import Final

from tenantry.server.asgi_types import Header
from tenantry.server.protected_resource import ProtectedResource
from tests.support.cases import cases

ROOT: Final = "/.well-known/oauth-protected-resource"


def challenged(resource: ProtectedResource, status: int, *headers: Header) -> list[Header]:
    given = [*headers]
    resource.add_to(status, given)
    return given


@cases(
    ("resource", "address", "paths"),
    [
        ("https://api.example", f"https://api.example{ROOT}", {ROOT}),
        ("https://api.example/", f"https://api.example{ROOT}", {ROOT}),
        ("https://api.example/mcp", f"https://api.example{ROOT}/mcp", {ROOT, f"{ROOT}/mcp"}),
        ("https://api.example/mcp/", f"https://api.example{ROOT}/mcp/", {ROOT, f"{ROOT}/mcp/"}),
        (
            "https://api.example:8443/a/b",
            f"https://api.example:8443{ROOT}/a/b",
            {ROOT, f"{ROOT}/a/b"},
        ),
        ("http://[::1]:80/a%20b", f"http://[::1]:80{ROOT}/a%20b", {ROOT, f"{ROOT}/a b"}),
    ],
)
def test_path_of_the_resource_follows_the_well_known_one(
    resource: str, address: str, paths: set[str]
) -> None:
    found = ProtectedResource(resource, ["https://id.example"])
    assert found.paths == paths
    [(_, value)] = challenged(found, 401, (b"www-authenticate", b'Bearer realm="api"'))
    assert value.decode() == f'Bearer realm="api", resource_metadata="{address}"'


def test_document_names_what_is_known() -> None:
    issuers = ["https://id.example/", "https://login.example/a"]
    resource = "https://API.example:443/mcp"
    for scopes in ([], ["reports:read"]):
        response = ProtectedResource(resource, issuers, scopes).find("GET", f"{ROOT}/mcp")
        assert response is not None
        assert json.loads(response.body) == {
            "resource": resource,
            "authorization_servers": issuers,
            "bearer_methods_supported": ["header"],
            **({"scopes_supported": scopes} if scopes else {}),
        }


@cases(
    ("method", "path"),
    [
        ("POST", ROOT),
        ("GET", f"{ROOT}/"),
        ("GET", f"{ROOT}/mcp/"),
        ("GET", f"{ROOT}/other"),
        ("GET", "/mcp"),
        ("GET", "/"),
    ],
)
def test_other_requests_are_not_for_it(method: str, path: str) -> None:
    found = ProtectedResource("https://api.example/mcp", ["https://id.example"])
    assert found.find(method, path) is None


@cases(
    ("status", "header"),
    [
        (200, (b"www-authenticate", b'Bearer realm="api"')),
        (403, (b"www-authenticate", b'Bearer realm="api", error="insufficient_scope"')),
        (401, (b"www-authenticate", b'Basic realm="x"')),
        (401, (b"x-problem", b"Bearer ")),
    ],
)
def test_other_headers_stay_as_they_are(status: int, header: Header) -> None:
    found = ProtectedResource("https://api.example", ["https://id.example"])
    assert challenged(found, status, header) == [header]
