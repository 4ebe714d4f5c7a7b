"""The declared properties of the service's routes."""

from typing import Final, NamedTuple, cast

from litestar.routes import HTTPRoute

from tenantry.api.guards import Credential, RouteGuard
from tenantry.app import litestar_routes
from tests.support.service import PROJECTS, VERIFY

WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
_TENANT: Final = "/orgs/{org_id}"
_NO_PAGES: Final = (
    "/-",
    "/api/",
    "/assets/",
    "/docs",
    "/healthz",
    "/metrics",
    "/readyz",
    f"{_TENANT}/events/stream",
)


def scopes_needed(credential: Credential) -> set[str]:
    """The scopes that the routes for this kind of credential need."""
    needed = set()
    for route in _routes():
        for handler in route.route_handlers:
            for guard in handler.guards or ():
                if isinstance(guard, RouteGuard) and guard.credential is credential and guard.scope:
                    needed.add(guard.scope)
    return needed


def dashboard_addresses() -> set[str]:
    """Each method and path of the pages of a tenant, the path from that of the tenant on."""
    found = set()
    for route in _routes():
        if route.path_format.startswith(_TENANT):
            path = route.path_format.removeprefix(_TENANT) or "/"
            found |= {f"{method} {path}" for method in route.methods & {"GET", "POST"}}
    return found


def pages() -> set[str]:
    """The path of each page that the dashboard can show, without its files and its stream."""
    return {
        route.path_format
        for route in _routes()
        if "GET" in route.methods and not route.path_format.startswith(_NO_PAGES)
    }


def form_addresses() -> set[str]:
    """The path of each page that takes a form."""
    return {
        route.path_format
        for route in _routes()
        if "POST" in route.methods and not route.path_format.startswith("/api/")
    }


def changing_routes() -> set[str]:
    """Each method and path that may change something, as the router has it; the webhook's is in
    front of it.
    """
    methods = {"POST", "PUT", "PATCH", "DELETE"}
    return {
        f"{method} {route.path_format}" for route in _routes() for method in route.methods & methods
    }


def requests_of_every_kind() -> list[tuple[str, str]]:
    """Method and path of everything there is, with ``x`` for each parameter, and of what there is
    not.
    """
    found = {
        ("GET", PROJECTS),
        ("HEAD", PROJECTS),
        ("GET", f"{VERIFY}-"),
        ("POST", WEBHOOK),
        ("GET", WEBHOOK),
        ("GET", "/nothing"),
        ("GET", "/%00"),
        ("PUT", "/docs"),
        ("GET", "/api/v1/nothing"),
        ("TRACE", "/"),
    }
    for route in _routes():
        path = "/".join(
            "x" if part.startswith("{") else part for part in route.path_format.split("/")
        )
        found |= {(method, path) for method in route.methods}
    return sorted(found)


class Address(NamedTuple):
    """A method and a path, with ``x`` for each parameter, and the credential that it needs; None if
    it needs none.
    """

    method: str
    path: str
    credential: Credential | None

    @property
    def is_hot(self) -> bool:
        """Whether the service answers it without parsing cookies and other headers."""
        return self.path in (PROJECTS, WEBHOOK) or self.path.startswith(VERIFY)


def addresses() -> list[Address]:
    """Everything there is."""
    found = {
        Address("GET", f"{VERIFY}-", Credential.CALLER),
        Address("GET", PROJECTS, Credential.CALLER),
        Address("POST", WEBHOOK, None),
    }
    for route in _routes():
        path = "/".join(
            "x" if part.startswith("{") else part for part in route.path_format.split("/")
        )
        for handler in route.route_handlers:
            guards = [
                guard.credential for guard in handler.guards or () if isinstance(guard, RouteGuard)
            ]
            methods = route.methods & set(handler.http_methods) - {"OPTIONS"}
            found |= {Address(method, path, guards[0] if guards else None) for method in methods}
    return sorted(found, key=lambda one: one[:2])


def _routes() -> list[HTTPRoute]:
    routes = litestar_routes().routes
    assert all(isinstance(route, HTTPRoute) for route in routes)
    return cast("list[HTTPRoute]", routes)
