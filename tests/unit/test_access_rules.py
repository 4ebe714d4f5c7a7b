"""Which requests need a credential in an application's own process, and which scope."""

import pytest

from tenantry.in_process.access_rules import entries_for, scope_rule
from tenantry.in_process.application_request import asgi_request
from tenantry.in_process.tenantry import client_address
from tests.support.cases import cases

TABLE = scope_rule(
    {
        ("GET", "/projects"): "projects:read",
        ("GET", "/projects/"): "projects:read",
        ("post", "/projects"): "projects:write",
        ("GET", "/projects/secret/"): "secrets:read",
        ("GET", "/me"): None,
        ("HEAD", "/me"): "heads:read",
        ("GET", "/files/"): "files:read",
        ("HEAD", "/files/"): "heads:read",
        ("GET", "/files/secret/"): "secrets:read",
        ("GET", "/files/index"): "indexes:read",
    }
)


@cases(
    ("path", "public"),
    [
        ("/health", True),
        ("/assets/", True),
        ("/assets/a/b.css", True),
        ("/assets/a/", True),
        ("/", True),
        ("", False),
        ("/health/", False),
        ("/healthy", False),
        ("/assets", False),
        ("/assets/../admin", False),
        ("/assets/./a", False),
        ("/assets//admin", False),
        ("/assets/a\\..\\admin", False),
        ("/assets/\0", False),
        ("//health", False),
        ("/admin", False),
    ],
)
def test_public_paths_are_exact_or_below_a_prefix(path: str, *, public: bool) -> None:
    table = ("/health", "/assets/", "/")
    assert any(entry in table for entry in entries_for(path, max(map(len, table)))) is public


def test_path_of_thousands_of_segments_is_compared_with_few_entries() -> None:
    path = "/assets" + "/a" * 30_000
    assert list(entries_for(path, len("/assets/a/"))) == [path, "/assets/a/", "/assets/"]


@cases(
    ("method", "path", "needed"),
    [
        ("GET", "/projects", "projects:read"),
        ("HEAD", "/projects", "projects:read"),
        ("GET", "/projects/1", "projects:read"),
        ("GET", "/projects/1/files", "projects:read"),
        ("GET", "/projects/secret/1", "secrets:read"),
        ("POST", "/projects", "projects:write"),
        ("GET", "/me", None),
        ("HEAD", "/me", "heads:read"),
        ("GET", "/files/1", "files:read"),
        ("HEAD", "/files/1", "heads:read"),
        ("HEAD", "/files/", "heads:read"),
        ("HEAD", "/files/secret/1", "secrets:read"),
        ("HEAD", "/files/index", "indexes:read"),
        ("HEAD", "/files/../me", "*:*"),
        ("DELETE", "/projects", "*:*"),
        ("get", "/projects", "*:*"),
        ("GET", "/me/", "*:*"),
        ("GET", "/projects/../me", "*:*"),
        ("GET", "/anything", "*:*"),
        ("WEBSOCKET", "/me", "*:*"),
    ],
)
def test_unlisted_request_needs_all_scopes(method: str, path: str, needed: str | None) -> None:
    assert TABLE(method, path) == needed


@cases("scopes", [{("GET", "projects"): "a:b"}, {("GET", "/"): "a"}, {("GET", "/"): ""}])
def test_invalid_table_is_rejected(scopes: dict[tuple[str, str], str | None]) -> None:
    with pytest.raises(ValueError, match="is not a"):
        scope_rule(scopes)


@cases(
    ("path", "root", "below"),
    [
        ("/a", "", "/a"),
        ("/api/a", "/api", "/a"),
        ("/api/", "/api", "/"),
        ("/api", "/api", ""),
        ("/apis/a", "/api", "/apis/a"),
        ("/a", "/api", "/a"),
    ],
)
def test_paths_are_those_below_the_mount(path: str, root: str, below: str) -> None:
    assert asgi_request({"path": path, "root_path": root}).path == below


@cases("text", [None, "", "203.0.113.9\0", "x" * 65, "203.0.113.9\n"])
def test_address_that_cannot_be_stored_is_none(text: str | None) -> None:
    assert client_address(text) is None


@cases("text", ["203.0.113.9", "2001:db8::1", "fe80::1%eth0"])
def test_address_of_the_client_is_kept(text: str) -> None:
    assert client_address(text) == text
