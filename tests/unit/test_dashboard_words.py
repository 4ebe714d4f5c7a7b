"""Why somebody may not do something, in words."""

from typing import cast

from litestar import Litestar
from litestar.routes import HTTPRoute

from tenantry.http.access import Credential, RouteGuard
from tenantry.http.dashboard.words import refusal_of
from tenantry.main import build_app
from tests.support.app import make_settings
from tests.support.principals import make_principal


def test_whatever_a_page_needs_has_words() -> None:
    needed = set()
    for route in cast("Litestar", build_app(make_settings(), "host=/nowhere")._app).routes:
        assert isinstance(route, HTTPRoute)
        for handler in route.route_handlers:
            for guard in handler.guards or ():
                if isinstance(guard, RouteGuard) and guard.credential is Credential.SESSION and guard.scope:
                    needed.add(guard.scope)
    assert "api-keys:read" in needed
    for scope in needed:
        said = refusal_of(make_principal(), ("openid",), scope)
        assert said.startswith("Your role, member, does not let you ")
        assert scope not in said


def test_token_of_few_scopes_is_the_reason_whatever_the_role_is() -> None:
    said = refusal_of(make_principal("projects:read"), ("openid", "projects:read"), "api-keys:read")
    assert said == "Your identity provider signed you in for projects:read only. That does not let you see API keys."
