"""What the routes of the service say of themselves."""

from typing import cast

from litestar import Litestar
from litestar.routes import HTTPRoute

from tenantry.http.access import Credential, RouteGuard
from tenantry.main import build_app
from tests.support.app import make_settings


def scopes_needed(credential: Credential) -> set[str]:
    """The scopes that the routes for this kind of credential need."""
    needed = set()
    for route in cast("Litestar", build_app(make_settings(), "host=/nowhere")._app).routes:
        assert isinstance(route, HTTPRoute)
        for handler in route.route_handlers:
            for guard in handler.guards or ():
                if isinstance(guard, RouteGuard) and guard.credential is credential and guard.scope:
                    needed.add(guard.scope)
    return needed
